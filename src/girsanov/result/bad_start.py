"""What to say of a run that could not start."""

import jax
import jax.numpy as jnp
import numpy as np

from girsanov._core.compile import compiled
from girsanov.chain.smoother import smooth
from girsanov.inference.conditioning import scales_apart
from girsanov.inference.expectations import evaluate_drift
from girsanov.inference.objective import Posed, compose
from girsanov.inference.start import starting_sites
from girsanov.model.simulate import states


@compiled
def _start_values(problem: Posed):
    q = smooth(compose(problem, starting_sites(problem))).moments
    sd = jnp.sqrt(jnp.diagonal(q.S)).T
    xi = jnp.asarray(problem.rule.nodes)
    x = q.m[:, None] + sd[:, None] * xi[:, :, None]
    return x, evaluate_drift(problem.model.drift, x, problem.data.at_nodes)


@compiled
def _emitted(problem: Posed):
    """Return the emission at the mean of the initial state for every observation."""
    mean = jnp.asarray(problem.model.initial_state().mean)
    return jax.vmap(lambda t: problem.model.observation.emit(t, mean))(problem.data.times[problem.data.node])


def _explain_emission(problem: Posed) -> None:
    """Raise a ValueError if an emission that is not linear is not finite where a run starts."""
    if problem.model.observation.is_linear:
        return
    z = np.asarray(_emitted(problem))
    bad = np.flatnonzero(~np.isfinite(z).all(1))
    if len(bad):
        i, mean = bad[0], np.asarray(problem.model.initial_state().mean).tolist()
        raise ValueError(
            f"the emission returned {z[i].tolist()} at state {mean}, the mean of the initial state, and time "
            f"{float(problem.data.times[problem.data.node[i]])!r}; it must be finite wherever the posterior may go. "
            "Give initial=gv.GaussianState(mean, cov) with a mean inside its domain, or extend it with jnp.where"
        )


@compiled
def _readings(problem: Posed):
    rows, mean = problem.data.rows, jnp.asarray(problem.model.initial_state().mean)
    G, reading, precision = problem.model.observation.linearised(rows, jnp.broadcast_to(mean, (len(rows.t), len(mean))))
    away = jnp.abs(reading - G @ mean)
    return jnp.where(rows.observed, away, jnp.nan), jnp.where(rows.observed, 1.0 / jnp.sqrt(precision), jnp.nan)


def explain_bad_start(problem: Posed) -> None:
    """Raise a ValueError that explains why a run could not start.

    It names the first state and time at which the emission or the drift is not finite. Where there is none, the scales
    of the model lie too far apart, and it names these.
    """
    _explain_emission(problem)
    x, f = (np.asarray(a)[..., : int(problem.data.size)] for a in _start_values(problem))
    bad = np.argwhere((~np.isfinite(f) & np.isfinite(x).all(0)).any(0).T)
    if len(bad):
        m, n = bad[0]
        at = np.asarray(problem.data.times)[m : m + 1]
        state = states(problem.series_model, x[None, :, n, m], at)[0].tolist()
        raise ValueError(
            f"the drift returned {f[:, n, m].tolist()} at state {state} and time "
            f"{float(problem.data.times[m])!r}; it must be finite wherever the posterior may go"
        )
    apart = scales_apart(problem, *(np.asarray(a) for a in _readings(problem)))
    raise ValueError(
        f"the scales of the model lie too far apart for double precision: {apart}, and the bound is not finite where "
        "this method starts. Bring the scales closer together, or use method=gv.CVIDP(), which tolerates wider ones"
    )
