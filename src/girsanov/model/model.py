"""The model a user states: a latent diffusion and how it is observed."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float

from girsanov._core.precision import float64, frozen, own, parameter
from girsanov._core.types import Array
from girsanov.data.series import TimeSeries
from girsanov.model.likelihoods import Gaussian, Likelihood, check_covariance


class GaussianState(eqx.Module):
    """x(t₀) ~ N(mean, cov); scalars and a diagonal (d,) broadcast to the state's dimension."""

    mean: Float[Array, "..."] = eqx.field(converter=parameter, default=0.0)
    cov: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)


class Stationary(eqx.Module):
    """x(t₀) from the stationary law of a linear drift; it follows the drift's parameters when they are learnt."""


class Model(eqx.Module):
    """dx = f(x, t) dt + L dβ with LLᵀ = Q,  x(t₀) ~ N(m₀, P₀),  y_i ~ p(y | H x(t_i)).

    - drift: f, any callable (x, t) -> array of shape (d,); a pytree's arrays are traced and can be learnt.
    - diffusion: spectral density Q, a scalar, (d,) or (d, d).
    - initial: `GaussianState`, or "stationary" for Ornstein–Uhlenbeck and linear drifts.
    - likelihood: p(y | z), see `girsanov.likelihoods`.
    - emission: H of shape (D, d), by default the identity.
    - dim: the state's dimension d, where neither the drift nor any of the shapes above says it.
    """

    drift: Callable
    diffusion: Float[Array, "d d"]
    initial: GaussianState | Stationary
    likelihood: Likelihood
    emission: Float[Array, "D d"]
    diffusion_form: str = eqx.field(static=True)  # as given: "scalar", "diagonal" or "full"; learning keeps it
    initial_form: str = eqx.field(static=True)

    @float64
    def __init__(
        self,
        drift: Callable,
        diffusion: Any = 1.0,
        initial: GaussianState | Literal["stationary"] | None = None,
        likelihood: Likelihood | None = None,
        emission: Any = None,
        *,
        dim: int | None = None,
    ):
        if not callable(drift):
            raise ValueError(f"drift must be a callable f(x, t), got {drift!r}")
        likelihood = Gaussian(variance=1.0) if likelihood is None else likelihood
        if not isinstance(likelihood, Likelihood):
            raise ValueError(f"likelihood must come from girsanov.likelihoods, got {likelihood!r}")
        Q = parameter(diffusion)
        H = None if emission is None else parameter(emission)
        if H is not None and H.ndim != 2:
            raise ValueError(f"emission must be a matrix of shape (D, d), got shape {H.shape}")
        state = GaussianState() if initial is None else initial
        d = _dimension(drift, Q, state, H, dim)
        self.drift = _traceable(drift)
        self.diffusion = _matrix("diffusion", Q, d)
        self.diffusion_form = _FORMS[Q.ndim]
        self.initial_form = _FORMS[np.ndim(state.cov)] if isinstance(state, GaussianState) else "scalar"
        self.initial = _initial_state(state, d, self.drift)
        self.likelihood = likelihood
        self.emission = frozen(np.eye(d)) if H is None else H
        if not np.isfinite(self.emission).all():
            raise ValueError(f"emission must be finite, got {self.emission!r}")
        _check_stationary(self)
        _check_likelihood(likelihood, self.emission.shape[0])
        _check_drift_shape(self.drift, d)

    @property
    def dim(self) -> int:
        """d, the dimension of the state."""
        return self.emission.shape[1]

    @property
    def data_dim(self) -> int:
        """D, the dimension of an observation."""
        return self.emission.shape[0]

    def initial_state(self) -> GaussianState:
        """Mean (d,) and covariance (d, d) of x(t₀)."""
        ours = own(self)
        if isinstance(ours.initial, Stationary):
            return GaussianState(*ours.drift.stationary(jnp.asarray(ours.diffusion)))
        return ours.initial


_FORMS = {0: "scalar", 1: "diagonal", 2: "full"}


def _dimension(drift: Any, Q: np.ndarray, state: Any, H: np.ndarray | None, dim: int | None) -> int:
    """The state's dimension from every source that fixes it; they must agree."""
    sources: dict[str, int] = {}
    if dim is not None:
        sources["dim"] = dim
    if isinstance(getattr(drift, "dim", None), int):
        sources["drift"] = drift.dim
    if Q.ndim:
        sources["diffusion"] = Q.shape[0]
    if isinstance(state, GaussianState):
        for name, a in (("initial.mean", state.mean), ("initial.cov", state.cov)):
            if np.ndim(a):
                sources[name] = np.shape(a)[0]
    if H is not None:
        sources["emission's columns"] = H.shape[1]
    if len(set(sources.values())) > 1:
        said = ", ".join(f"{k} says {v}" for k, v in sources.items())
        raise ValueError(f"the state's dimension is not clear: {said}")
    return next(iter(sources.values()), 1)


def _matrix(name: str, a: Any, d: int) -> Any:
    """A scalar, (d,) or (d, d) value as a symmetric positive-definite matrix."""
    if not isinstance(a, np.ndarray):
        return a * jnp.eye(d) if a.ndim == 0 else jnp.diag(a) if a.ndim == 1 else a
    if a.ndim < 2:
        bad = ~(np.isfinite(a) & (a > 0))
        if bad.any():
            raise ValueError(f"{name} must be positive and finite, got {float(a[bad].flat[0])!r}")
        a = np.diag(np.broadcast_to(a, (d,))).copy()
    check_covariance(name, a)
    return frozen(a)


def _initial_state(state: Any, d: int, drift: Any) -> GaussianState | Stationary:
    if isinstance(state, str):
        if state != "stationary":
            raise ValueError(f"initial must be a GaussianState or 'stationary', got {state!r}")
        if not hasattr(drift, "stationary"):
            raise ValueError(f"initial='stationary' needs a drift with a stationary law; {drift!r} does not offer one")
        return Stationary()
    if isinstance(state, Stationary):
        return state
    if not isinstance(state, GaussianState):
        raise ValueError(f"initial must be a GaussianState or 'stationary', got {state!r}")
    mean = state.mean
    if np.ndim(mean) > 1:
        raise ValueError(f"initial.mean must be a scalar or of shape ({d},), got {np.shape(mean)}")
    if isinstance(mean, np.ndarray):
        if not np.isfinite(mean).all():
            raise ValueError(f"initial.mean must be finite, got {mean!r}")
        mean = frozen(np.broadcast_to(mean, (d,)).copy())
    return GaussianState(mean, _matrix("initial.cov", state.cov, d))


def _check_stationary(model: Model) -> None:
    """A stationary start needs a drift that pulls back: its covariance must be positive definite."""
    if not isinstance(model.initial, Stationary) or not isinstance(model.diffusion, np.ndarray):
        return
    try:
        cov = np.asarray(model.initial_state().cov)
    except jax.errors.TracerArrayConversionError:
        return  # traced: constraints are the optimiser's business
    if not (np.isfinite(cov).all() and np.linalg.eigvalsh(cov)[0] > 0):
        raise ValueError(
            f"{model.drift!r} has no stationary law, since it does not pull back everywhere; "
            "give initial=GaussianState(...)"
        )


def _traceable(drift: Any) -> Any:
    """Numbers inside a drift become float64 arrays: they are parameters, and a changed one does not compile again.

    Arrays are copied, as those of the library's own drifts are; JAX's become NumPy's. Arrays of whole numbers and
    truth values stay what they are.
    """

    def own(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, jnp.floating):
            return parameter(leaf)
        if isinstance(leaf, np.ndarray):
            if leaf.dtype in (np.float32, np.float16):
                return parameter(leaf)
            return frozen(leaf.copy()) if leaf.flags.writeable else leaf
        number = isinstance(leaf, int | float) and not isinstance(leaf, bool)
        return parameter(leaf) if number else leaf

    return jax.tree.map(own, drift)


def _check_likelihood(likelihood: Likelihood, D: int) -> None:
    for name, value in vars(likelihood).items():
        if np.ndim(value) and np.shape(value)[0] != D:
            raise ValueError(
                f"likelihood.{name} has shape {np.shape(value)} but an observation has {D} entries (emission's rows)"
            )


def _check_drift_shape(drift: Callable, d: int) -> None:
    x, t = jax.ShapeDtypeStruct((d,), np.float64), jax.ShapeDtypeStruct((), np.float64)
    try:
        out = eqx.filter_eval_shape(own(drift), x, t)
    except Exception as error:
        raise ValueError(
            f"the drift failed on a state of shape ({d},) and a scalar time: {type(error).__name__}: {error}. "
            "It is called as drift(x, t) with JAX arrays; use jax.numpy inside, give dim= if d is not what you mean, "
            "and mark numbers that are no parameters, such as sizes, with equinox.field(static=True)"
        ) from error
    shape = getattr(out, "shape", None)
    if shape != (d,):
        raise ValueError(f"the drift must return an array of shape ({d},) for a state of shape ({d},), got {shape}")
    if not jnp.issubdtype(out.dtype, jnp.floating):  # whole numbers would round what is computed from them
        remedy = (
            "take jnp.real(...) of it, or state the real and the imaginary part as two coordinates"
            if jnp.issubdtype(out.dtype, jnp.complexfloating)
            else "multiply it by 1.0"
        )
        raise ValueError(f"the drift must return real floating-point numbers, got {out.dtype}; {remedy}")


def check_inputs(model: Any, series: Any) -> None:
    """The model and the series fit together."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be a gv.Model, got {type(model).__name__}")
    if not isinstance(series, TimeSeries):
        raise ValueError(f"series must be a gv.TimeSeries(times, values), got {type(series).__name__}")
    if series.dim != model.data_dim:
        raise ValueError(
            f"the series has {series.dim} values a time but the model observes {model.data_dim}; "
            f"give emission= a matrix of shape ({series.dim}, {model.dim})"
        )
    model.likelihood.check(series.values, series.observed)
