"""Compiled programs that more than one scenario times, alone and as the library runs them: in a loop on the device.

A call of its own also pays for its dispatch and for fresh memory; in a loop every pass uses the same buffers. A pass
moves the chain by next to nothing, so that no pass can be left out, and sums its scalar, so that it is computed.
"""

from typing import Any

import jax
import jax.numpy as jnp

from girsanov._core.compile import compiled
from girsanov.chain.natural import NaturalChain
from girsanov.chain.smoother import smooth, tangent
from girsanov.inference.loop import evaluate_trial
from girsanov.inference.objective import Posed

LOOP = 10  # passes
_NUDGE = 1e-14

smoother = compiled(lambda eta: smooth(eta, "auto"))
update = compiled(lambda problem, eta: evaluate_trial(problem, eta, "auto"))
fisher = compiled(lambda eta, direction: tangent(eta, direction, "auto"))


@compiled
def smoother_loop(eta: NaturalChain) -> Any:
    def body(_, carry):
        eta, total = carry
        out = smooth(eta, "auto")
        q = out.moments
        return eta + _NUDGE * NaturalChain(q.m, q.S, q.C), total + out.log_det

    return jax.lax.fori_loop(0, LOOP, body, (eta, jnp.zeros(())))


@compiled
def update_loop(problem: Posed, eta: NaturalChain) -> Any:
    def body(_, carry):
        eta, total = carry
        trial = evaluate_trial(problem, eta, "auto")
        return eta + _NUDGE * trial.residual, total + trial.elbo

    return jax.lax.fori_loop(0, LOOP, body, (eta, jnp.zeros(())))
