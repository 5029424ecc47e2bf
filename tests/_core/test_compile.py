"""The compiler's options: loops become one function, unless the user says otherwise or was there first."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from support import assert_close, random_chain

import girsanov as gv
from girsanov._core.compile import compiled
from girsanov.chain import smoother

OPTION = "xla_cpu_small_while_loop_byte_threshold"
LOOK = "import os, girsanov._core.compile as c; print(c.small_loops_are_functions(), os.environ['XLA_FLAGS'])"


def output(code: str, flags: str = "") -> str:
    source = str(Path(gv.__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


def test_importing_the_library_makes_loops_functions():
    fast, flags = output(f"import jax\n{LOOK}").split(" ", 1)
    assert fast == "True" and flags == f"--xla_backend_extra_options={OPTION}=98304"


def test_other_flags_stay():
    fast, flags = output(LOOK, "--xla_cpu_enable_fast_math=false").split(" ", 1)
    assert fast == "True" and flags.startswith("--xla_cpu_enable_fast_math=false --xla_backend")


def test_the_users_choice_is_kept():
    own = f"--xla_backend_extra_options={OPTION}=512"
    assert output(LOOK, own) == f"False {own}"


def test_where_jax_was_used_before_loops_stay_slow_and_the_answer_is_the_same(monkeypatch):
    assert output(f"import jax.numpy as jnp\njnp.ones(3)\n{LOOK}").startswith("False ")
    partitioned, calls = smoother.partitioned, []
    monkeypatch.setattr(smoother, "partitioned", lambda chain: calls.append(chain) or partitioned(chain))
    chain = random_chain(np.random.default_rng(0), 3, 3000)
    with jax.enable_x64(True):
        monkeypatch.setattr(smoother, "small_loops_are_functions", lambda: True)
        fast = jax.jit(lambda c: smoother.smooth(c))(chain)
        assert not calls
        monkeypatch.setattr(smoother, "small_loops_are_functions", lambda: False)
        slow = jax.jit(lambda c: smoother.smooth(c))(chain)
        assert len(calls) == 1
    assert_close(fast.moments.S, slow.moments.S, "exact")


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_during_a_compilation_and_the_users_choice_is_as_before(enabled):
    during = []

    @compiled
    def program(x):
        during.append(gc.isenabled())
        if x.ndim:
            raise ValueError("only scalars")
        return 2.0 * x

    before = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        assert program(np.asarray(3.0)) == 6.0
        with pytest.raises(ValueError, match="only scalars"):
            program(np.zeros(2))
        assert during == [False, False] and gc.isenabled() is enabled
    finally:
        gc.enable() if before else gc.disable()


def test_an_interrupt_in_a_compilation_leaves_garbage_collection_on():
    @compiled
    def program(x):
        raise KeyboardInterrupt

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        program(np.asarray(3.0))
    assert gc.isenabled()


def test_no_garbage_is_collected_during_the_import_and_collection_goes_on_after_it():
    look = "import gc, jax; before = gc.get_stats()[2]['collections']; import girsanov"
    full, enabled = output(f"{look}; print(gc.get_stats()[2]['collections'] - before, gc.isenabled())").split()
    assert (full, enabled) == ("0", "True")
    assert output("import gc; gc.disable(); import girsanov; print(gc.isenabled())") == "False"
