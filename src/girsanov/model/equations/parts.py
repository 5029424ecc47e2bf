"""From a statement and the values of its parameters to the parts of a model: drift, noise, start and observations."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from girsanov._core.precision import parameter
from girsanov.model.diffusions import Each, Power, Proportional, Scale, SquareRoot
from girsanov.model.drifts import Drift
from girsanov.model.equations.algebra import Affine, affine, log, log_odds, noise_of
from girsanov.model.equations.expression import EquationError, Expression, evaluate, number
from girsanov.model.equations.priors import Prior
from girsanov.model.equations.statement import Output, State, Statement, read_statement
from girsanov.model.likelihoods import (
    Bernoulli,
    Binomial,
    Censored,
    Gamma,
    Gaussian,
    LogNormal,
    NegativeBinomial,
    Poisson,
    StochasticVolatility,
    StudentT,
)

LIKELIHOODS: dict[str, Callable] = {
    "gaussian": lambda sd: Gaussian(sd**2),
    "student_t": StudentT,
    "censored": lambda sd, **limits: Censored(sd**2, **limits),
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "binomial": lambda trials: Binomial(int(trials)),
    "bernoulli": Bernoulli,
    "gamma": Gamma,
    "lognormal": lambda sd: LogNormal(sd**2),
    "stochastic_volatility": StochasticVolatility,
}


# From what an output measures, in the units of the data, to the z of its likelihood; elsewhere they are the same.
_LINKS: dict[str, Callable[[Expression], Expression]] = {
    "lognormal": log,
    "poisson": log,
    "negative_binomial": log,
    "gamma": log,
    "stochastic_volatility": log,
    "bernoulli": log_odds,
    "binomial": log_odds,
}


class Equations(eqx.Module):
    """The equations of a model and the values of their parameters.

    Attributes:
        source: the description, as text.
        values: the values of the parameters, by name.
    """

    source: str = eqx.field(static=True)
    values: dict[str, Any]

    @property
    def statement(self) -> Statement:
        """What the description says."""
        return read_statement(self.source)

    @property
    def free(self) -> tuple[str, ...]:
        """The names of the parameters that are learnt unless others are named."""
        return self.statement.free

    def kind(self, name: str) -> Any:
        """Return the constraint of a parameter."""
        return next(p.kind for p in self.statement.parameters if p.name == name)

    @property
    def priors(self) -> dict[str, Any]:
        """The priors of the free parameters, as numpyro distributions by name."""
        given: dict[str, Prior | None] = {p.name: p.prior for p in self.statement.parameters if not p.fixed}
        return {name: prior.distribution() for name, prior in given.items() if prior is not None}


class Function(eqx.Module):
    """Expressions as a function of states and time, f(x, t), and of the inputs where there are any."""

    values: dict[str, Any]
    expressions: tuple[Expression, ...] = eqx.field(static=True)
    states: tuple[str, ...] = eqx.field(static=True)
    inputs: tuple[str, ...] = eqx.field(static=True, default=())

    def __call__(self, x, t, u=()):
        names = {**self.values, **dict(zip(self.states, x, strict=True)), "t": t}
        names |= dict(zip(self.inputs, u, strict=True))
        return jnp.stack([jnp.asarray(evaluate(e, names), dtype=jnp.result_type(x)) for e in self.expressions])


class EquationDrift(Drift):
    """The drift that the equations of all states state."""

    function: Function

    @property
    def dim(self) -> int:
        return len(self.function.states)

    @property
    def takes_inputs(self) -> bool:
        """Whether the equations have inputs."""
        return bool(self.function.inputs)

    @property
    def inputs_dim(self) -> int | None:
        """The number of inputs, or None if there are none."""
        return len(self.function.inputs) or None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in the order in which they are given."""
        return self.function.inputs

    def __call__(self, x, t, u=()):
        return self.function(x, t, u)


class NoiseFunction(eqx.Module):
    """The noise of one state as a function of it alone."""

    values: dict[str, Any]
    expression: Expression = eqx.field(static=True)
    state: str = eqx.field(static=True)

    def __call__(self, x):
        return evaluate(self.expression, {**self.values, self.state: x})


def parts(statement: Statement, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Model`, with mean and covariance of the initial state under "mean" and "cov".

    Args:
        statement: what the equations say.
        values: the values of the parameters, by name; they may be traced.
    """
    states = tuple(s.name for s in statement.states)
    constant = functools.partial(_number, values)
    acting = tuple(i.name for i in statement.inputs)
    drift = EquationDrift(_function([s.drift for s in statement.states], states, values, acting))
    emission, offset = _emission(statement.outputs, states, values)
    return {
        "drift": drift,
        "diffusion": _noise(statement.states, values),
        "mean": _stacked([constant(s.start) for s in statement.states]),
        "cov": _stacked([constant(s.start_sd) ** 2 for s in statement.states]),
        "likelihood": _likelihood(statement.outputs, values),
        "emission": emission,
        "offset": offset,
    }


def _number(values: Mapping[str, Any], e: Expression) -> Any:
    """Return the value of an expression of parameters, as a NumPy number unless it is traced."""
    value = evaluate(e, values)
    return value if isinstance(value, Tracer) else np.float64(value)


def _stacked(numbers: list[Any]) -> Any:
    return jnp.stack(numbers) if any(isinstance(v, Tracer) for v in numbers) else parameter(np.array(numbers))


def _function(
    expressions: list[Expression], states: tuple[str, ...], values: Mapping[str, Any], inputs: tuple[str, ...] = ()
) -> Function:
    used = set().union(*(e.names() for e in expressions))
    return Function({n: v for n, v in values.items() if n in used}, tuple(expressions), states, inputs)


def _noise(states: tuple[State, ...], values: Mapping[str, Any]) -> Any:
    """Return the noise: spectral densities if it is constant, else one kind for each state."""
    names = {s.name for s in states} | {"t"}
    kinds = []
    for s in states:
        others = s.noise.names() & (names - {s.name})
        if others:
            raise EquationError(
                f"states.{s.name}.noise depends on {', '.join(sorted(others))}: the noise of a state may depend on "
                "that state and on parameters only. Where it depends on another state, choose other coordinates"
            )
        kinds.append(noise_of(s.noise, s.name))
    if all(s.name not in s.noise.names() for s in states):
        return _stacked([_number(values, s.noise) ** 2 for s in states])
    made = [_one_noise(s, kind, values) for s, kind in zip(states, kinds, strict=True)]
    return made[0] if len(made) == 1 else Each(made)


def _one_noise(state: State, kind: Any, values: Mapping[str, Any]) -> Any:
    if state.name not in state.noise.names():
        return _number(values, state.noise) ** 2
    if kind.exponent is None:
        if state.range is None:
            raise EquationError(
                f"states.{state.name}.noise is none of a, a * x, a * sqrt(x) and a * x^p: give the range of the "
                "state in which it is used, e.g. range = [0.1, 10]"
            )
        used = {n: v for n, v in values.items() if n in state.noise.names()}
        return Scale(NoiseFunction(used, state.noise, state.name), *state.range)
    scale, exponent = _number(values, kind.scale), _number(values, kind.exponent)
    if kind.exponent.kind == "number" and exponent in (0.5, 1.0):
        return Proportional(scale) if exponent == 1.0 else SquareRoot(scale)
    return Power(scale, exponent)


def _emission(outputs: tuple[Output, ...], states: tuple[str, ...], values: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the emission as a matrix with an offset, or as a function where an output is not affine in the states."""
    measured = [_LINKS.get(str(o.distribution), lambda e: e)(o.measures) for o in outputs]
    found = [affine(e, states) for e in measured]
    fixed = [a for a in found if a is not None and not _moves(a, {*states, "t"})]
    if len(fixed) < len(outputs):
        return _function(measured, states, values), None
    zero = number(0.0)
    rows = [_stacked([_number(values, a.coefficients.get(s, zero)) for s in states]) for a in fixed]
    constants = [_number(values, a.constant) for a in fixed]
    H = np.stack(rows) if all(isinstance(row, np.ndarray) for row in rows) else jnp.stack(rows)
    shifted = any(isinstance(c, Tracer) or c != 0.0 for c in constants)
    return H, _stacked(constants) if shifted else None


def _moves(a: Affine, moving: set[str]) -> bool:
    """Return whether a coefficient or the constant depends on a state or on time."""
    return any(e.names() & moving for e in (a.constant, *a.coefficients.values()))


def _likelihood(outputs: tuple[Output, ...], values: Mapping[str, Any]) -> Any:
    if all(o.distribution is None for o in outputs):
        return None
    missing = [o.name for o in outputs if o.distribution is None]
    if missing:
        raise EquationError(f"outputs.{missing[0]} has no distribution, and others have: give it one, e.g. 'gaussian'")
    settings = [
        {k: _number(values, v) if isinstance(v, Expression) else v for k, v in o.settings.items()} for o in outputs
    ]
    if all(o.distribution == "gaussian" for o in outputs):
        return Gaussian(_stacked([s["sd"] ** 2 for s in settings]) if len(outputs) > 1 else settings[0]["sd"] ** 2)
    made = [LIKELIHOODS[str(o.distribution)](**s) for o, s in zip(outputs, settings, strict=True)]
    return made[0] if len(made) == 1 else made
