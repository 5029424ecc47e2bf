"""How the state is observed: the emission z = H x + c or z = g(x, t) + c, and the likelihood p(y | z)."""

import abc
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.precision import frozen, parameter
from girsanov._core.types import Array
from girsanov.data.rows import Rows
from girsanov.model.likelihoods import Gaussian, Likelihood, as_likelihood
from girsanov.model.likelihoods.base import as_text, check_shapes
from girsanov.model.nonlinear import expectations, log_predictives, predictive
from girsanov.model.quadrature import Rule
from girsanov.model.shapes import output_of


class Observation(eqx.Module):
    """The observation model y ~ p(y | z), where the emission z depends on the state.

    Only this module applies the emission. The data depend on the state x only through linear coordinates u = U x + c:
    `project` maps states to u, `turned` is its linear part U, and `lift`, the adjoint Uᵀ, maps gradients in u to
    gradients in the state. Observations are the rows of arrays; missing entries do not influence any result.

    Attributes:
        likelihood: the likelihood p(y | z).
        emission: the matrix H, or the callable g.
        offset: c, or None for zero.
        dim: the dimension d of the state.
        data_dim: the number D of values in an observation.
        stated: whether the user stated a likelihood. If not, and the series has errors, these are all the noise.
    """

    likelihood: eqx.AbstractVar[Likelihood]
    emission: eqx.AbstractVar[Any]
    offset: eqx.AbstractVar[Any]
    dim: eqx.AbstractVar[int]
    data_dim: eqx.AbstractVar[int]
    stated: eqx.AbstractVar[bool]

    @property
    @abc.abstractmethod
    def is_direct(self) -> bool:
        """Whether z = x, so that every coordinate of the state is observed directly."""

    @property
    @abc.abstractmethod
    def is_linear(self) -> bool:
        """Whether the emission is linear in the state."""

    @abc.abstractmethod
    def emit(self, t: Float[Array, ""], x: Float[Array, " d"]) -> Float[Array, " D"]:
        """Return z for one state at one time."""

    @abc.abstractmethod
    def project(self, x: Float[Array, "*n d"]) -> Float[Array, "*n k"]:
        """Return u = U x + c for every row x."""

    @abc.abstractmethod
    def turned(self, v: Float[Array, "*n d"]) -> Float[Array, "*n k"]:
        """Return U v for every row v."""

    @abc.abstractmethod
    def lift(self, g: Float[Array, "*n k"]) -> Float[Array, "*n d"]:
        """Return Uᵀg for every row g."""

    @abc.abstractmethod
    def gradients(
        self, rows: Rows, u: Float[Array, "n k"], V: Float[Array, "n k k"], rule: Rule
    ) -> tuple[Float[Array, " n"], Float[Array, "n k"], Float[Array, "n k k"]]:
        """Return E log p(y | z) under u ~ N(ū, V) for every observation, and its gradients in ū and V."""

    @abc.abstractmethod
    def linearised(
        self, rows: Rows, at: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n D d"], Float[Array, "n D"], Float[Array, "n D"]]:
        """Return a rough linear Gaussian approximation of every observation, near the states `at`.

        It is a reading r of G x with independent noise: G, r and the precision of each entry, which is zero where the
        entry is missing.
        """

    @abc.abstractmethod
    def relative_sites(self, rows: Rows, at: Float[Array, "n d"]) -> tuple[Float[Array, "n k"], Float[Array, "n k k"]]:
        """Return potential and precision of rough Gaussian sites on u, relative to its value at the states `at`."""

    @abc.abstractmethod
    def predictive(
        self, t: Float[Array, " n"], m: Float[Array, "n d"], S: Float[Array, "n d d"]
    ) -> tuple[Array, Array]:
        """Return mean (n, D) and covariance (n, D, D) of y at times t if x ~ N(m, S)."""

    @abc.abstractmethod
    def log_predictives(self, rows: Rows, m: Float[Array, "n d"], S: Float[Array, "n d d"]) -> Float[Array, " n"]:
        """Return log E p(y | x) under x ~ N(m, S) for every observation."""

    def likelihood_of(self, row: Rows) -> Likelihood:
        """Return the likelihood of a single observation, which has the noise of its known errors too."""
        return self.likelihood if row.errors is None else self.likelihood.with_errors(row.errors)

    def log_prob(self, row: Rows, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log p(y | x) of a single observation."""
        return self.likelihood_of(row).log_prob(row.y, row.observed, self.emit(row.t, x))

    def sample(self, keys: Array, t: Float[Array, " n"], x: Float[Array, "n d"]) -> Float[Array, "n D"]:
        """Draw one observation of every state."""
        return jax.vmap(self.likelihood.sample)(keys, jax.vmap(self.emit)(t, x))

    def sites(
        self, rows: Rows, m: Float[Array, "n d"], S: Float[Array, "n d d"], rule: Rule
    ) -> tuple[Float[Array, " n"], Float[Array, "d n"], Float[Array, "d d n"]]:
        """Return E log p(y | x) under x ~ N(m, S) and its gradient in the expectation parameters of x.

        The gradient is given as the potential h and the precision J of a Gaussian site exp(hᵀx − ½xᵀJx). With the
        gradients g in ū and G in V they are h = Uᵀ(g − 2G U m) and J = −2UᵀG U.
        """
        half = jnp.swapaxes(self.turned(S), 1, 2)
        value, g, G = self.gradients(rows, self.project(m), self.turned(half), rule)
        potential = self.lift(g - 2.0 * jnp.einsum("njk,nk->nj", G, self.turned(m))).T
        return value, potential, -2.0 * jnp.moveaxis(self.lift(jnp.swapaxes(self.lift(G), 1, 2)), 0, -1)

    def starting_sites(self, rows: Rows, at: Float[Array, "n d"]) -> tuple[Float[Array, "d n"], Float[Array, "d d n"]]:
        """Return potential and precision of rough Gaussian sites on the state, from which iterations start."""
        G, reading, precision = self.linearised(rows, at)
        return jnp.einsum("njd,nj->dn", G, precision * reading), jnp.einsum("njd,nj,nje->den", G, precision, G)

    def with_errors_known(self, errors: Any) -> "Observation":
        """Return the observation model of data with these errors: if no noise was stated, the errors are all of it."""
        if errors is None or self.stated:
            return self
        return eqx.tree_at(lambda o: o.likelihood, self, Gaussian())

    def _readings(self, rows: Rows) -> tuple[Float[Array, "n D"], Float[Array, "n D"]]:
        """Return a rough Gaussian approximation of p(y | z) in z: mean and precision, both zero for missing entries."""
        z, precision = jax.vmap(lambda row: self.likelihood_of(row).start(row.y))(rows)
        return jnp.where(rows.observed, z, 0.0), jnp.where(rows.observed, precision, 0.0)


class LinearObservation(Observation):
    """The emission z = H x + c, with u = z."""

    likelihood: Likelihood
    emission: Float[Array, "D d"]
    offset: Float[Array, " D"] | None
    dim: int = eqx.field(static=True)
    data_dim: int = eqx.field(static=True)
    stated: bool = eqx.field(static=True)

    @property
    def is_direct(self):
        shifted = self.offset is not None and np.any(self.offset)
        return not shifted and np.array_equal(np.asarray(self.emission), np.eye(self.dim))

    @property
    def is_linear(self):
        return True

    def emit(self, t, x):
        return self.project(x)

    def project(self, x):
        return self.turned(x) if self.offset is None else self.turned(x) + self.offset

    def turned(self, v):
        return v @ self.emission.T

    def lift(self, g):
        return g @ self.emission

    def gradients(self, rows, u, V, rule):
        def one(row, u, V):
            likelihood = self.likelihood_of(row)
            expected = likelihood.expected_finely if rule.fine else likelihood.expected
            return expected(row.y, row.observed, u, V)

        return jax.vmap(one)(rows, u, V)

    def linearised(self, rows, at):
        z, precision = self._readings(rows)
        reading = z if self.offset is None else jnp.where(rows.observed, z - self.offset, 0.0)
        return jnp.broadcast_to(jnp.asarray(self.emission), (len(at), *self.emission.shape)), reading, precision

    def relative_sites(self, rows, at):
        z, precision = self._readings(rows)
        return precision * (z - self.project(at)), jax.vmap(jnp.diag)(precision)

    def _moments(self, m: Float[Array, "n d"], S: Float[Array, "n d d"]) -> tuple[Array, Array]:
        """Return mean and covariance of z from those of the state."""
        H = self.emission
        return self.project(m), H @ S @ H.T

    def predictive(self, t, m, S):
        return jax.vmap(self.likelihood.predictive)(*self._moments(m, S))

    def log_predictives(self, rows, m, S):
        z, V = self._moments(m, S)
        if rows.errors is None:
            return self.likelihood.log_predictives(rows.y, rows.observed, z, V)

        def one(at):
            row, z, V = jax.tree.map(lambda a: a[None], at)
            return self.likelihood_of(row[0]).log_predictives(row.y, row.observed, z, V)[0]

        return jax.lax.map(one, (rows, z, V))


class NonlinearObservation(Observation):
    """The emission z = g(x, t) + c, with u = x; expectations are computed by quadrature over the state."""

    likelihood: Likelihood
    emission: Callable
    offset: Float[Array, " D"] | None
    dim: int = eqx.field(static=True)
    data_dim: int = eqx.field(static=True)
    stated: bool = eqx.field(static=True)

    @property
    def is_direct(self):
        return False

    @property
    def is_linear(self):
        return False

    def emit(self, t, x):
        z = self.emission(x, t)
        return z if self.offset is None else z + self.offset

    def project(self, x):
        return x

    def turned(self, v):
        return v

    def lift(self, g):
        return g

    def gradients(self, rows, u, V, rule):
        return expectations(self.log_prob, _with_valid_values(rows), u, V, rule)

    def linearised(self, rows, at):
        z, precision = self._readings(rows)
        value = jax.vmap(self.emit)(rows.t, at)
        G = jax.vmap(jax.jacfwd(self.emit, argnums=1))(rows.t, at)
        reading = z - value + jnp.einsum("njd,nd->nj", G, at)
        return G, jnp.where(rows.observed, reading, 0.0), precision

    def relative_sites(self, rows, at):
        G, reading, precision = self.linearised(rows, at)
        e = reading - jnp.einsum("njd,nd->nj", G, at)
        return jnp.einsum("njd,nj->nd", G, precision * e), jnp.einsum("njd,nj,nje->nde", G, precision, G)

    def predictive(self, t, m, S):
        return predictive(self.emit, self.likelihood.given, t, m, S)

    def log_predictives(self, rows, m, S):
        return log_predictives(self.log_prob, _with_valid_values(rows), m, S)


def _with_valid_values(rows: Rows) -> Rows:
    """Replace missing values by others that the likelihood allows, so that its derivatives there are finite.

    They are the first observed value of the same output, or one if there is none.
    """
    seen = jnp.asarray(rows.observed)
    first = jnp.where(seen.any(0), rows.y[jnp.argmax(seen, 0), jnp.arange(seen.shape[1])], 1.0)
    return eqx.tree_at(lambda r: r.y, rows, jnp.where(seen, rows.y, first))


def make_observation(likelihood: Any, emission: Any, offset: Any, d: int) -> Observation:
    """Check likelihood, emission and offset and join them; the defaults are Gaussian(1), the identity, and zero."""
    stated, likelihood = likelihood is not None, as_likelihood(likelihood)
    if not isinstance(likelihood, Likelihood):
        raise ValueError(
            f"likelihood must come from girsanov.likelihoods, got {as_text(likelihood)}; give one of those, or a list "
            "with one for each output"
        )
    emission = frozen(np.eye(d)) if emission is None else emission
    if isinstance(emission, np.ndarray) and not np.isfinite(emission).all():
        raise ValueError(f"emission must be finite, got {emission!r}")
    H = cast(Any, emission)
    linear = hasattr(H, "shape")
    D = H.shape[0] if linear else _output_dimension(H, d)
    parts = getattr(likelihood, "parts", None)
    if parts is not None and len(parts) != D:
        raise ValueError(
            f"the list of likelihoods has {len(parts)} entries, but an observation has {D} outputs; give one for each, "
            f"or an emission with {len(parts)} rows"
        )
    check_shapes(likelihood, D)
    kind = LinearObservation if linear else NonlinearObservation
    return kind(likelihood, H, _as_offset(offset, D), d, D, stated)


def as_emission(value: Any) -> Any:
    """Convert an emission to a read-only float64 matrix of shape (D, d); a callable and None stay as they are."""
    if value is None or (callable(value) and not hasattr(value, "shape")):
        return value
    H = parameter(value, "emission")
    if H.ndim != 2:
        raise ValueError(
            f"emission must be a matrix of shape (D, d) or a callable g(x, t), got shape {H.shape}; write "
            "[[1.0, 0.0]] for one output that is the first of two coordinates"
        )
    return H


def _as_offset(value: Any, D: int) -> Any:
    """Convert an offset to a read-only float64 vector of shape (D,); None stays None."""
    if value is None:
        return None
    if callable(value) and not hasattr(value, "shape"):
        raise ValueError(
            f"offset must be a scalar or of shape ({D},), one for each output, got a function; an emission that is a "
            "function emission(x, t) can add what depends on time"
        )
    c = parameter(value, "offset")
    if c.ndim > 1 or (c.ndim == 1 and c.shape != (D,)):
        raise ValueError(f"offset must be a scalar or of shape ({D},), one for each output, got shape {c.shape}")
    if not isinstance(c, np.ndarray):
        return jnp.broadcast_to(c, (D,))
    if not np.isfinite(c).all():
        raise ValueError(f"offset must be finite, got {c!r}")
    return frozen(np.broadcast_to(c, (D,)).copy())


def _output_dimension(emission: Callable, d: int) -> int:
    """Return the number of outputs of a callable emission, or raise a ValueError if it does not return a vector."""
    out = output_of(emission, "emission", d)
    shape = getattr(out, "shape", None)
    if shape is None or len(shape) != 1 or shape[0] == 0:
        raise ValueError(
            f"the emission must return an array of shape (D,) for a state of shape ({d},), got "
            f"{shape if shape is not None else type(out).__name__}; use jnp.stack or jnp.atleast_1d"
        )
    return shape[0]
