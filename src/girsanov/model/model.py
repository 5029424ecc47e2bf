"""The model that a user states: a latent diffusion process and how it is observed."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import float64, frozen, own, parameter, traceable
from girsanov._core.types import Array
from girsanov.data.series import TimeSeries
from girsanov.model.covariates import Covariates, of_series, with_covariates
from girsanov.model.diffusions import FORMS, Diffusion, StateDiffusion, as_matrix, check_inside
from girsanov.model.drifts.base import takes_inputs
from girsanov.model.driven import check_driven, shift, without_inputs
from girsanov.model.latent import LatentDrift, latent_initial, latent_observation
from girsanov.model.likelihoods import Likelihood
from girsanov.model.observation import Observation, as_emission, make_observation
from girsanov.model.stated import as_diffusion, as_names, check_drift_shape, common_dimension


class GaussianState(eqx.Module):
    """A Gaussian initial state, x(t₀) ~ N(mean, cov).

    Args:
        mean: a scalar or shape (d,); 0 by default.
        cov: a scalar, the diagonal of shape (d,) or a matrix of shape (d, d); 1 by default.
    """

    mean: Float[Array, "..."] = eqx.field(converter=parameter, default=0.0)
    cov: Float[Array, "..."] = eqx.field(converter=parameter, default=1.0)


class Stationary(eqx.Module):
    """An initial state with the stationary law of the drift; it changes with the drift's parameters in learning."""


class Model(eqx.Module):
    """A latent diffusion process and its observation model.

    dx = f(x, t) dt + L dβ with LLᵀ = Q, or with L a function of x,  x(t₀) ~ N(m₀, P₀),
    y_i ~ p(y | z_i),  z_i = H x(t_i) + c or g(x(t_i), t_i).

    Args:
        drift: f, a callable of a state of shape (d,) and a scalar time that returns shape (d,), written with jax.numpy.
            If the series has inputs, f(x, t, u) has a third argument, their values of shape (m,). If it is a pytree,
            such as an equinox module, its floating-point arrays are parameters that can be learnt.
        diffusion: the spectral density Q: a scalar, its diagonal of shape (d,) or a matrix of shape (d, d); 1 by
            default. For noise whose size depends on the state, a noise of `girsanov.diffusions`, or a list with one
            for each coordinate, in which a number is a constant spectral density.
        initial: the initial state, a `GaussianState` (by default with mean 0 and covariance 1), or "stationary" for a
            drift with a stationary law: `OrnsteinUhlenbeck`, `Linear`, `HarmonicOscillator` or `Matern`. If the noise
            depends on the state, the initial state is Gaussian where the noise is constant: its median is the mean
            given, and its covariance the one given to first order.
        likelihood: p(y | z), from `girsanov.likelihoods`, or a list of those, one for each output. By default it is
            Gaussian noise: of variance 1, or of the errors of the series if it has any.
        emission: H, shape (D, d), the identity by default; or a callable g of a state of shape (d,) and a scalar time
            that returns shape (D,), written with jax.numpy.
        offset: c, a scalar or shape (D,); none by default.
        dim: the dimension d of the state. It is needed only if neither the drift nor a shape above determines it; then
            it is 1 by default.
        state_names: names of the d states, for tables, pictures and xarray.
        output_names: names of the D outputs.

    Attributes:
        drift: the drift, with its numbers as float64 arrays.
        noise: the noise L dβ; `noise.Q` is the spectral density if it is constant.
        initial: the initial state, with mean (d,) and covariance (d, d), or a mark that it is stationary.
        observation: emission and likelihood.
        initial_form: how the initial covariance was given: "scalar", "diagonal" or "full". Learning keeps that form.
        equations: the equations that `from_equations` read, with the values of their parameters; None otherwise.
        covariates: how parameters depend on covariates of the series, as `with_covariates` set it; None otherwise.
        inputs: in the model of a posterior, the inputs of its series on the nodes; None otherwise.

    Raises:
        ValueError: if shapes disagree, a covariance is not positive definite, or the drift does not return shape (d,).
    """

    drift: Callable
    noise: Any  # a Diffusion, or a StateDiffusion; every algorithm works on `latent`, where it is a Diffusion
    initial: GaussianState | Stationary
    observation: Observation
    initial_form: str = eqx.field(static=True)
    state_names: tuple[str, ...] | None = eqx.field(static=True)
    output_names: tuple[str, ...] | None = eqx.field(static=True)
    equations: Any
    covariates: Covariates | None
    inputs: Any

    @float64
    def __init__(
        self,
        drift: Callable,
        diffusion: Any = 1.0,
        initial: GaussianState | Literal["stationary"] | None = None,
        likelihood: Likelihood | Sequence[Likelihood] | None = None,
        emission: Any = None,
        *,
        offset: Any = None,
        dim: int | None = None,
        state_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        equations: Any = None,
    ):
        if not callable(drift):
            raise ValueError(f"drift must be a callable f(x, t), got {drift!r}")
        Q, H = as_diffusion(diffusion), as_emission(emission)
        state = GaussianState() if initial is None else initial
        d = common_dimension(drift, Q, state, H, dim)
        self.drift = traceable(drift)
        self.noise = Q if isinstance(Q, StateDiffusion) else Diffusion.of(Q, d)
        self.initial_form = FORMS[np.ndim(state.cov)] if isinstance(state, GaussianState) else "scalar"
        self.initial = _initial_state(state, d, self.drift, self.noise)
        self.observation = make_observation(likelihood, H if hasattr(H, "shape") else traceable(H), offset, d)
        self.state_names = as_names("state_names", state_names, d)
        self.output_names = as_names("output_names", output_names, self.observation.data_dim)
        self.equations, self.covariates, self.inputs = equations, None, None
        _check_stationary(self)
        check_drift_shape(self.drift, d)

    @classmethod
    @float64
    def from_equations(cls, source: Any, **values: Any) -> "Model":
        """Make a model from equations in text.

        Args:
            source: a mapping with the tables `states`, `outputs`, `inputs`, `parameters` and `definitions`; or the path
                of a TOML file with the same tables; see docs/equations.md.
            **values: values of parameters, in the place of their `start`.

        Returns:
            The model. Its parameters have the names of the equations, and `gv.learn` learns all that are not fixed,
            with the ranges and priors stated, unless others are named.

        Raises:
            ValueError: if the description is not valid; the message has the line and a caret under the place.
        """
        from girsanov.model.equations import Equations, read_source, read_statement, starts

        text = read_source(source)
        numbers = starts(read_statement(text))
        for name, value in values.items():
            if name not in numbers:
                raise ValueError(f"the equations have no parameter {name!r}; they have {', '.join(numbers)}")
            numbers[name] = value
        return _of_equations(Equations(text, {name: parameter(value, name) for name, value in numbers.items()}))

    @float64
    def restated(self, values: Any) -> "Model":
        """Return a model of equations with other values of some parameters, which may be traced.

        Args:
            values: the values by name; the others stay as they are.

        Returns:
            The model, with all of its parts made anew from the equations.
        """
        if self.equations is None:
            raise ValueError("only a model from gv.Model.from_equations has equations to state anew")
        new = _of_equations(eqx.tree_at(lambda e: e.values, self.equations, {**self.equations.values, **values}))
        if isinstance(self.noise, Diffusion):  # which entries are zero is no matter of traced values
            new = eqx.tree_at(lambda m: m.noise, new, new.noise.formed(self.noise.structure))
        if not self.observation.stated:  # the likelihood that the errors of a series gave
            new = eqx.tree_at(lambda m: m.observation.likelihood, new, self.observation.likelihood)
        new = eqx.tree_at(lambda m: m.covariates, new, self.covariates, is_leaf=lambda leaf: leaf is None)
        return new.driven_by(self.inputs)

    @float64
    def with_covariates(self, of_series: Callable, **values: Any) -> "Model":
        """Return a model with parameters that depend on the covariates of a series.

        Args:
            of_series: a function of_series(p, c) of the parameters p and the covariates c, both by name, written with
                jax.numpy. It returns a dict of the parameters that are different in a series with these covariates,
                in the shapes that they have in p.
            **values: parameters of this function. It finds `power=0.75` in p as "covariates.power", and `gv.learn`
                learns it under that name.

        Returns:
            The model. A series for it needs the covariates that the function asks for.
        """
        return with_covariates(self, traceable(of_series), {k: parameter(v, k) for k, v in values.items()})

    @float64
    def given(self, covariates: Any) -> "Model":
        """Return the model of a series with these covariates, which itself depends on none.

        Args:
            covariates: the values by name, such as {"weight": 70.0}.

        Returns:
            The model with the parameters that these values give.
        """
        return of_series(self, covariates)

    @property
    def diffusion(self) -> Any:
        """The spectral density Q of the noise, shape (d, d), or the noise if it depends on the state."""
        return self.noise if isinstance(self.noise, StateDiffusion) else self.noise.Q

    @property
    def latent(self) -> "Model":
        """The model of w, in whose coordinates the noise is constant, impulses do not move the state, and the drift is
        one of state and time alone; the model itself if its noise is constant and it has no inputs.
        """
        model = self if self.inputs is None else without_inputs(self)
        return model._latent(model.noise) if isinstance(model.noise, StateDiffusion) else model

    def driven_by(self, inputs: Any) -> "Model":
        """Return the model of a series with these inputs.

        Args:
            inputs: the inputs on the nodes of a grid, `series.inputs.on(times)`; None takes those away that it has.

        Returns:
            The model. `post.model` is such a model; the inputs of another series replace them.
        """
        if inputs is None and self.inputs is None:
            return self
        return eqx.tree_at(lambda m: m.inputs, self, inputs, is_leaf=lambda leaf: leaf is None)

    @property
    def is_transformed(self) -> bool:
        """Whether the state differs from the coordinates of the latent model."""
        return isinstance(self.noise, StateDiffusion) or self.has_impulses

    @property
    def has_impulses(self) -> bool:
        """Whether the inputs have impulses."""
        return self.inputs is not None and self.inputs.dosed is not None

    @float64
    def _latent(self, noise: StateDiffusion) -> "Model":
        d = self.dim
        parts = (
            LatentDrift(self.drift, noise),
            Diffusion(noise.spectral_density(d), "full", noise.noisy(d), len(noise.noisy(d))),
            GaussianState(*latent_initial(noise, self.initial.mean, self.initial.cov)),  # pyright: ignore
            latent_observation(self.observation, noise),
        )
        return eqx.tree_at(lambda m: (m.drift, m.noise, m.initial, m.observation), self, parts)

    def to_state(self, w: Any, t: Any = None) -> Any:
        """Return the state x from the coordinates w in which the noise is constant and impulses do not move the state.

        Args:
            w: points in these coordinates, (..., n, d). Where the noise does not depend on the state and there are no
                impulses they are states.
            t: their times, (n,); needed only where the inputs have impulses.

        Returns:
            The states, (..., n, d).
        """
        x = self.noise.to_state(w) if isinstance(self.noise, StateDiffusion) else w
        return x + shift(self, t) if self.has_impulses else x

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood p(y | z)."""
        return self.observation.likelihood

    @property
    def emission(self) -> Any:
        """The emission, which is the matrix H, shape (D, d), or the callable g."""
        return self.observation.emission

    @property
    def offset(self) -> Any:
        """The offset c of the emission, shape (D,), or None."""
        return self.observation.offset

    @property
    def dim(self) -> int:
        """The dimension d of the state."""
        return self.observation.dim

    @property
    def data_dim(self) -> int:
        """The number D of values in an observation."""
        return self.observation.data_dim

    @float64
    def initial_state(self) -> GaussianState:
        """Return the law of the initial state x(t₀), computed from the drift if it is stationary.

        Returns:
            A `GaussianState` with mean of shape (d,) and covariance of shape (d, d).
        """
        ours = own(self)
        if isinstance(ours.initial, Stationary):
            return GaussianState(*ours.drift.stationary(jnp.asarray(ours.noise.Q)))
        return ours.initial


def _of_equations(equations: Any) -> Model:
    from girsanov.model.equations import parts

    statement = equations.statement
    given = parts(statement, equations.values)
    return Model(
        initial=GaussianState(given.pop("mean"), given.pop("cov")),
        state_names=[s.name for s in statement.states],
        output_names=[o.name for o in statement.outputs],
        equations=equations,
        **given,
    )


def _initial_state(state: Any, d: int, drift: Any, noise: Any) -> GaussianState | Stationary:
    if isinstance(state, str):
        if state != "stationary":
            raise ValueError(f"initial must be a GaussianState or 'stationary', got {state!r}")
        if isinstance(noise, StateDiffusion):
            raise ValueError(
                "initial='stationary' is for constant noise; with noise that depends on the state give "
                "initial=gv.GaussianState(mean=..., cov=...)"
            )
        if takes_inputs(drift):
            raise ValueError(
                "initial='stationary' is for a drift without inputs: with inputs there is no stationary law, so give "
                "initial=gv.GaussianState(mean=..., cov=...)"
            )
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
    else:
        mean = jnp.broadcast_to(mean, (d,))
    if isinstance(noise, StateDiffusion):
        noise.check(d)
        if isinstance(mean, np.ndarray):
            check_inside(noise, "initial.mean", mean)
    return GaussianState(mean, as_matrix("initial.cov", state.cov, d))


def _check_stationary(model: Model) -> None:
    """Raise a ValueError if the initial state is stationary but the drift has no stationary law."""
    if not isinstance(model.initial, Stationary) or not isinstance(model.diffusion, np.ndarray):
        return
    try:
        cov = np.asarray(model.initial_state().cov)
    except jax.errors.TracerArrayConversionError:
        return  # a traced covariance cannot be checked; the optimiser keeps the constraints
    if not (np.isfinite(cov).all() and np.linalg.eigvalsh(cov)[0] > 0):
        raise ValueError(
            f"{model.drift!r} has no stationary law, because it is not stable in every direction; "
            "give initial=GaussianState(...)"
        )


def with_errors_known(model: Model, errors: Any) -> Model:
    """Return the model of data with these errors: where no likelihood was stated, they are all the noise."""
    observation = model.observation.with_errors_known(errors)
    if observation is model.observation:
        return model
    return eqx.tree_at(lambda m: m.observation, model, observation)


def check_inputs(model: Any, series: Any) -> Model:
    """Return the model of this series, or raise a ValueError unless the two fit together."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be a gv.Model, got {type(model).__name__}")
    if not isinstance(series, TimeSeries):
        raise ValueError(f"series must be a gv.TimeSeries(times, values), got {type(series).__name__}")
    if series.dim != model.data_dim:
        raise ValueError(
            f"the series has {series.dim} values at each time, but the model observes {model.data_dim}; "
            f"give emission= a matrix of shape ({series.dim}, {model.dim})"
        )
    check_driven(model, series)
    model = with_errors_known(model, series.errors)
    model.likelihood.check(series.values, series.observed)
    model.likelihood.check_errors(series.errors, series.observed)
    return model.given(series.covariates)
