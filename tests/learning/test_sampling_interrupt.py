"""Ctrl-C in `sample_parameters`: the draws are kept, and the same call with `resume=` ends with the same numbers."""

import signal
import threading

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import girsanov as gv
from girsanov._core import progress
from girsanov.learning import chains, sample_parameters
from girsanov.learning.partial_draws import PartialDraws

pytest.importorskip("xarray")
pytestmark = [
    pytest.mark.filterwarnings("ignore:sample_parameters. the chains|sample_parameters. only"),
    pytest.mark.usefixtures("ctrl_c"),
]

MODEL = gv.Model(gv.OrnsteinUhlenbeck(1.0), 1.0, gv.GaussianState(0.0, 0.5), gv.likelihoods.Gaussian(0.1))
TIMES = np.arange(1, 21) * 0.25
SERIES = gv.simulate(MODEL, TIMES, key=jax.random.key(3), dt=0.05, start=0.0).series
PRIOR = {"drift.decay": dist.LogNormal(0.0, 0.7)}


def draw(**options):
    settings = {"priors": PRIOR, "key": jax.random.key(0), "draws": 40, "warmup": 30, "chains": 2, "particles": 20}
    return gv.sample_parameters(MODEL, SERIES, 0.25, (0.0, 5.0), progress=False, **{**settings, **options})


def press_ctrl_c_at(monkeypatch, module, name: str, number: int) -> None:
    """Send the process a real signal at a call of this function, from the thread in which that runs."""
    count, real = [0], getattr(module, name)

    def patched(*args):
        count[0] += 1
        if count[0] == number:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(module, name, patched)


@pytest.fixture(scope="module")
def straight():
    return draw()


def kept_of(**options) -> PartialDraws:
    with pytest.raises(KeyboardInterrupt) as stopped:
        draw(**options)
    kept = stopped.value.kept
    assert repr(kept) in stopped.value.__notes__[0] and "resume=" in stopped.value.__notes__[0]
    return kept


@pytest.mark.slow
def test_a_run_that_was_stopped_twice_ends_with_the_draws_of_one_that_was_not(monkeypatch, straight):
    with monkeypatch.context() as patched:
        patched.setattr(chains, "_CHUNK", 5)
        press_ctrl_c_at(patched, chains, "_advance", 6)
        first = kept_of()
    assert 0 < first.draws < first.total == 140
    with monkeypatch.context() as patched:
        press_ctrl_c_at(patched, sample_parameters, "predictions", 30)
        second = kept_of(resume=first)
    assert second.draws == second.total and 0 < len(second.rows) < 80
    with monkeypatch.context() as patched:
        counted = []
        real = sample_parameters.predictions
        patched.setattr(sample_parameters, "predictions", lambda *args: (counted.append(1), real(*args))[1])
        tree = draw(resume=second)
    assert len(counted) == 80 - len(second.rows)  # nothing is computed twice
    for group in ("posterior", "sample_stats", "posterior_predictive", "log_likelihood", "corrected"):
        for name, wanted in straight[group].data_vars.items():
            assert np.array_equal(tree[group][name].values, wanted.values, equal_nan=True), (group, name)


@pytest.mark.slow
def test_what_is_kept_does_not_change_while_threads_end(monkeypatch):
    """The chains' threads finish a call after the exception; what was handed over stays."""
    gate, real, entered = threading.Event(), chains._advance, threading.Event()

    def slow(*args):
        if entered.is_set():
            gate.wait(100.0)
        entered.set()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(chains, "_advance", slow)
    try:
        kept = kept_of(chains=1)
        drawn = kept.draws
    finally:
        gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(100.0)
    assert kept.draws == drawn < kept.total


def test_before_the_first_draw_there_is_nothing_to_keep(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_parameters, "make_reference", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        draw()
    assert not hasattr(stopped.value, "kept") and "nothing to keep" in stopped.value.__notes__[0]


@pytest.mark.slow
def test_only_the_same_call_goes_on(monkeypatch):
    with monkeypatch.context() as patched:
        press_ctrl_c_at(patched, chains, "_advance", 3)
        kept = kept_of(chains=1)
    for other, message in (
        ({"draws": 50}, "draws is another one"),
        ({"key": jax.random.key(1)}, "key is another one"),
        ({"priors": {"drift.decay": dist.LogNormal(0.0, 0.5)}}, "the prior of drift.decay is another one"),
        ({"method": gv.CVIDP()}, "method is another one"),
    ):
        with pytest.raises(ValueError, match=message):
            draw(**{"chains": 1, "resume": kept, **other})
    with pytest.raises(ValueError, match=r"resume must be the attribute `kept`.*got dict"):
        draw(resume={})


def test_a_countdown_tells_the_time_left(monkeypatch):
    """By the pace since the first piece was done: compilation, here of 100 s, does not count."""
    clock = iter([0.0, 100.0, 110.0, 190.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    count = progress.Countdown(200, "draws")
    assert count(0) == "[>                   ] 0 of 200 draws"
    assert count(20) == "[==>                 ] 20 of 200 draws"
    assert count(40) == "[====>               ] 40 of 200 draws, about 80 s left"
    assert count(200) == "[====================] 200 of 200 draws, about 0 s left"


def test_time_spans():
    assert [progress.duration(s) for s in (0.4, 119.0, 121.0, 7000.0, 9000.0)] == [
        "0 s", "119 s", "2 min", "117 min", "2.5 h",
    ]  # fmt: skip
