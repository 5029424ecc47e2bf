"""Ctrl-C in `learn`: it ends at once, the best parameters are kept, and learning goes on to the same maximum."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import equinox as eqx
import jax
import numpy as np
import pytest
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.learning.keeper import Keeper, Stopped
from girsanov.learning.learner import Learner

pytestmark = pytest.mark.usefixtures("ctrl_c")

DT, SPAN = 0.1, (0.0, 6.0)
TIMES = np.linspace(0.2, 6.0, 30)
TRAINABLE = ["drift.decay", "diffusion"]


def ou(decay: float = 4.0) -> gv.Model:
    return gv.Model(gv.OrnsteinUhlenbeck(decay), 3.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05))


SERIES = gv.simulate(
    gv.Model(gv.OrnsteinUhlenbeck(1.0), 1.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05)),
    TIMES, key=jax.random.key(3), dt=0.02, start=0.0,
).series  # fmt: skip


def fit_ou(model: gv.Model | None = None, **options) -> gv.Fit:
    options = {"trainable": TRAINABLE, "progress": False, **options}
    return gv.learn(ou() if model is None else model, SERIES, DT, SPAN, **options)


def interrupt_at(monkeypatch, number: int) -> None:
    """Press Ctrl-C in the E-step of this number."""
    count, real = [0], Learner.e_step

    def e_step(self, *args, **limits):
        count[0] += 1
        if count[0] == number:
            raise KeyboardInterrupt
        return real(self, *args, **limits)

    monkeypatch.setattr(Learner, "e_step", e_step)


def kept_of(**options) -> gv.Fit:
    with pytest.raises(KeyboardInterrupt) as stopped:
        fit_ou(**options)
    kept = stopped.value.kept
    assert kept.status == "interrupted" and "resume=" in kept.message
    assert any("resume=" in note for note in stopped.value.__notes__)
    return kept


@pytest.mark.parametrize("objective", ["modified", "standard", "profile"])
@pytest.mark.parametrize("number", [1, 4, 20])
def test_ctrl_c_keeps_the_best_parameters_and_resume_goes_on_from_them(monkeypatch, objective, number):
    """The bound of what is kept is that of inference at these parameters, and none before it was higher."""
    with monkeypatch.context() as patched:
        interrupt_at(patched, number)
        kept = kept_of(objective=objective)
    assert abs(gv.infer(kept.model, SERIES, DT, SPAN, progress=False).elbo - kept.elbo) < TOLERANCES["optimum"]
    assert kept.elbo == kept.history.elbo[-1] and kept.elbo >= kept.history.elbo.max() - 1e-3
    for path, value in kept.parameters.items():
        assert np.array_equal(value, kept.history.parameters[path][-1])
    again, straight = fit_ou(resume=kept), fit_ou()
    assert again.status == "converged" and abs(again.elbo - straight.elbo) < TOLERANCES["converged"]
    assert np.array_equal(again.history.elbo[: len(kept.history)], kept.history.elbo)


def test_before_the_first_inference_has_ended_there_is_nothing_to_keep(monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gv.CVIDP, "solve", interrupted)
    file = tmp_path / "fit.gv"
    file.write_text("from an earlier call")
    with pytest.raises(KeyboardInterrupt) as stopped:
        fit_ou(checkpoint=file)
    assert not hasattr(stopped.value, "kept") and "nothing to keep" in stopped.value.__notes__[0]
    assert file.read_text() == "from an earlier call"


def test_a_checkpoint_has_the_best_parameters_and_at_the_end_the_fit(monkeypatch, tmp_path):
    file = tmp_path / "fit.gv"
    with monkeypatch.context() as patched:
        interrupt_at(patched, 3)
        kept = kept_of(checkpoint=file)
    read = gv.load(file)
    assert read.status == "interrupted" and read.elbo == kept.elbo
    assert read.parameters == kept.parameters
    ended = fit_ou(resume=read, checkpoint=file)
    assert gv.load(file).status == ended.status == "converged" and gv.load(file).elbo == ended.elbo
    assert [p.name for p in tmp_path.iterdir()] == ["fit.gv"]


class Pull(eqx.Module):
    """A drift of the user's own, of which a file has nothing but the name."""

    decay: jax.Array
    constraints = {"decay": "positive"}  # noqa: RUF012

    def __call__(self, x, t):
        return -self.decay * x


def test_resume_takes_the_parameters_of_a_drift_of_ones_own_from_the_history(tmp_path):
    """The file does not have them where a model has them, since the drift that was given to `load` has its own."""
    model = gv.Model(Pull(np.float64(4.0)), 3.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05))
    part = fit_ou(model, max_iterations=1, check=False, standard_errors=False)
    read = gv.load(part.save(tmp_path / "fit.gv"), drift=model.drift)
    assert abs(float(part.parameters["drift.decay"]) - 4.0) > 0.1
    again = fit_ou(model, resume=read, max_iterations=1, check=False, standard_errors=False)
    n = len(part.history)
    assert again.history.parameters["drift.decay"][n - 1] == part.parameters["drift.decay"]
    assert again.history.elbo[n] >= part.elbo - TOLERANCES["optimum"]  # the first step goes on, not from the start


def test_ctrl_c_does_not_wait_for_restarts_in_other_threads(monkeypatch):
    """One thread presses Ctrl-C while all are held up in an E-step: `learn` must end before they go on."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    count, gate, real, lock, waited_in_vain = [0], threading.Event(), Learner.e_step, threading.Lock(), []

    def e_step(self, *args, **limits):
        with lock:
            count[0] += 1
            mine = count[0]
        if mine == 5:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if mine >= 5 and not gate.wait(100.0):
            waited_in_vain.append(mine)
        return real(self, *args, **limits)

    monkeypatch.setattr(Learner, "e_step", e_step)
    try:
        kept = kept_of(restarts=4, key=jax.random.key(0), reinitialise=lambda drift, key: gv.OrnsteinUhlenbeck(2.0))
        assert not waited_in_vain
    finally:
        gate.set()
    assert abs(gv.infer(kept.model, SERIES, DT, SPAN, progress=False).elbo - kept.elbo) < TOLERANCES["optimum"]


def test_a_fit_in_another_thread_ends_with_its_next_e_step():
    learner = fit_ou(check=False, max_iterations=1).session.learner
    keeper = Keeper(lambda *_: None, None)
    learner.keeper = keeper
    learner.e_step(np.zeros(2), None)
    assert np.array_equal(keeper.best.theta, np.zeros(2))
    keeper.stop()
    with pytest.raises(Stopped):
        learner.e_step(np.zeros(2), None)


def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "fit.gv"):
        with pytest.raises(ValueError, match="checkpoint must be a file in a folder that exists"):
            fit_ou(checkpoint=path)


def test_a_full_disk_is_no_reason_to_lose_the_fit(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("girsanov.learning.keeper.replace_file", full)
    with pytest.warns(UserWarning, match="cannot be written any more: no space left"):
        assert fit_ou(checkpoint=tmp_path / "fit.gv").status == "converged"


@pytest.mark.slow
def test_the_checkpoint_of_a_process_that_was_killed(tmp_path):
    """Killed without warning in the middle of learning, as soon as there is a file: it is complete, and goes on."""
    program = textwrap.dedent("""
        import sys, time
        import numpy as np, girsanov as gv
        import girsanov.learning.keeper as keeper
        from girsanov.learning.learner import Learner
        keeper._BETWEEN = 0.0
        real = Learner.e_step
        def slow(self, *args, **limits):
            time.sleep(0.2)
            return real(self, *args, **limits)
        Learner.e_step = slow
        model = gv.Model(gv.OrnsteinUhlenbeck(4.0), 3.0, gv.GaussianState(1.0, 0.1), gv.likelihoods.Gaussian(0.05))
        data = np.load(sys.argv[1])
        gv.learn(model, gv.TimeSeries(data["t"], data["y"]), 0.1, (0.0, 6.0), trainable=["drift.decay", "diffusion"],
                 objective="standard", checkpoint=sys.argv[2], progress=False)
    """)
    np.savez(tmp_path / "data.npz", t=SERIES.times, y=SERIES.values)
    file = tmp_path / "fit.gv"
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "data.npz"), str(file)])
    try:
        while not file.exists():
            assert process.poll() is None, "it ended without a checkpoint"
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    read = gv.load(file)
    assert read.status == "interrupted"
    again, straight = fit_ou(resume=read), fit_ou()
    assert again.status == "converged" and abs(again.elbo - straight.elbo) < TOLERANCES["converged"]
