"""What every likelihood offers, and what those with independent entries share."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from girsanov._core.checks import check_positive_entries
from girsanov._core.types import Array
from girsanov.model.likelihoods.integrals import hermite, normal_nodes, pair_covariance, quadrature_sums
from girsanov.model.predictive import Entry, concave, in_parts, log_predictive, readings_at_the_mode

_NODES = 32  # quadrature nodes for E log p under a scalar Gaussian
_FINE = 2.0  # by how much `expected_finely` has more nodes


class Likelihood(eqx.Module):
    """Base class of observation models p(y | z).

    Expectations are under z ~ N(mean, V), and gradients are with respect to this mean and covariance. In all methods y
    has shape (D,), and `observed` is a bool mask of shape (D,) of the entries that are not missing.

    Attributes:
        constraints: constraints that learning keeps, by parameter: "positive" or "ordered"; the others are free. A
            matrix is kept positive definite.
    """

    constraints: ClassVar[dict[str, str]] = {}
    shared: ClassVar[tuple[str, ...]] = ()  # parameters whose axis is not that of the entries of y
    heavy_tailed: ClassVar[bool] = False  # whether log p(y | z) is not concave in z, so that outliers hardly pull at z
    takes_errors: ClassVar[bool] = False  # whether `with_errors` adds known errors of the observations to the noise
    about_z: ClassVar[bool] = False  # whether y is z plus noise, so that a picture can have both on one axis

    @abc.abstractmethod
    def expected(
        self, y: Float[Array, " D"], observed: Bool[Array, " D"], mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> tuple[Float[Array, ""], Float[Array, " D"], Float[Array, "D D"]]:
        """Return E log p(y | z) under z ~ N(mean, V) and its gradients.

        Args:
            y: the observation, shape (D,).
            observed: mask of the entries that are not missing, shape (D,).
            mean: mean of z, shape (D,).
            V: covariance of z, shape (D, D).

        Returns:
            The expectation, its gradient in the mean, shape (D,), and its symmetric gradient in V, shape (D, D).
        """

    def expected_finely(
        self, y: Float[Array, " D"], observed: Bool[Array, " D"], mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> tuple[Float[Array, ""], Float[Array, " D"], Float[Array, "D D"]]:
        """Return the same as `expected`, by quadrature with more nodes where that is by quadrature.

        Args:
            y: the observation, shape (D,).
            observed: mask of the entries that are not missing, shape (D,).
            mean: mean of z, shape (D,).
            V: covariance of z, shape (D, D).

        Returns:
            The expectation, its gradient in the mean, shape (D,), and its symmetric gradient in V, shape (D, D).
        """
        return self.expected(y, observed, mean, V)

    @abc.abstractmethod
    def log_predictive(
        self, y: Float[Array, " D"], observed: Bool[Array, " D"], mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> Float[Array, ""]:
        """Return the log predictive density log E p(y | z) under z ~ N(mean, V).

        Args:
            y: the observation, shape (D,).
            observed: mask of the entries that are not missing, shape (D,).
            mean: mean of z, shape (D,).
            V: covariance of z, shape (D, D).

        Returns:
            The log density, a scalar.
        """

    def log_predictives(
        self,
        y: Float[Array, "n D"],
        observed: Bool[Array, "n D"],
        mean: Float[Array, "n D"],
        V: Float[Array, "n D D"],
    ) -> Float[Array, " n"]:
        """Return the log predictive density of each of n observations; see `log_predictive`.

        Args:
            y: the observations, shape (n, D).
            observed: mask of the entries that are not missing, shape (n, D).
            mean: means of z, shape (n, D).
            V: covariances of z, shape (n, D, D).

        Returns:
            The log densities, shape (n,).
        """
        return jax.vmap(self.log_predictive)(y, observed, mean, V)

    @abc.abstractmethod
    def predictive(
        self, mean: Float[Array, " D"], V: Float[Array, "D D"]
    ) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
        """Return mean and covariance of y if z ~ N(mean, V).

        Args:
            mean: mean of z, shape (D,).
            V: covariance of z, shape (D, D).

        Returns:
            The mean, shape (D,), and the covariance, shape (D, D), of y.
        """

    def given(self, z: Float[Array, " D"]) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
        """Return mean and covariance of y given z.

        Args:
            z: the emission, shape (D,).

        Returns:
            The mean, shape (D,), and the covariance, shape (D, D), of y.
        """
        return self.predictive(z, jnp.zeros((z.shape[0], z.shape[0])))

    @abc.abstractmethod
    def log_prob(self, y: Float[Array, " D"], observed: Bool[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
        """Return log p(y | z).

        Args:
            y: the observation, shape (D,).
            observed: mask of the entries that are not missing, shape (D,).
            z: the emission, shape (D,).

        Returns:
            The log density of the observed entries, a scalar.
        """

    @abc.abstractmethod
    def sample(self, key: Array, z: Float[Array, " D"]) -> Float[Array, " D"]:
        """Draw an observation from p(y | z).

        Args:
            key: JAX random key.
            z: the emission, shape (D,).

        Returns:
            The observation y, shape (D,).
        """

    @abc.abstractmethod
    def start(self, y: Float[Array, " D"]) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        """Return a rough Gaussian approximation of p(y | z) in z, from which iterations start.

        Args:
            y: the observation, shape (D,).

        Returns:
            The mean and the precision of each entry of z, both of shape (D,).
        """

    def with_errors(self, errors: Float[Array, " D"]) -> "Likelihood":
        """Return the likelihood of an observation with known errors.

        Args:
            errors: standard deviations of the entries, shape (D,), which add to the noise of the likelihood.

        Returns:
            The likelihood of that observation; this one unchanged if it takes no errors.
        """
        return self

    def check_errors(self, errors: np.ndarray | None, observed: np.ndarray) -> None:
        """Raise a ValueError if the series has errors that this likelihood cannot take, or lacks those that it needs.

        Args:
            errors: standard deviations of the observations, shape (n, D), or None.
            observed: mask of the entries that are not missing, shape (n, D).
        """
        if errors is None or self.takes_errors:
            return
        bad = np.argwhere(observed & (errors > 0.0))
        if len(bad):
            i, j = bad[0]
            raise ValueError(
                f"errors[{i}, {j}] is {float(errors[i, j])!r}, but the likelihood {type(self).__name__} has no "
                "Gaussian noise to which errors could be added; give zeros there, or a Gaussian or Censored likelihood"
            )

    def check(self, y: np.ndarray, observed: np.ndarray) -> None:
        """Raise a ValueError that names the value and its place if y is outside the domain of the likelihood.

        Args:
            y: the observations, shape (n, D).
            observed: mask of the entries that are not missing, shape (n, D).
        """


class Elementwise(Likelihood):
    """Base class of likelihoods p(y | z) = Π p(y_i | z_i), with expectations by quadrature.

    A subclass defines `log_density`, `conditional`, `sample` and `start`. If log p(y_i | z_i) is not concave in z_i,
    it must also override `readings` and `pieces`.
    """

    @abc.abstractmethod
    def log_density(self, y: Float[Array, "*#n D"], z: Float[Array, "*#n D"]) -> Float[Array, "*n D"]:
        """Return log p(y_i | z_i) of every entry.

        Args:
            y: observations; the last axis is that of the D entries.
            z: emissions, of a shape that broadcasts with that of y.

        Returns:
            The log densities, in the broadcast shape.
        """

    @abc.abstractmethod
    def conditional(self, z: Float[Array, "*n D"]) -> tuple[Float[Array, "*n D"], Float[Array, "*n D"]]:
        """Return mean and variance of every y_i given z_i.

        Args:
            z: emissions; the last axis is that of the D entries.

        Returns:
            The means and the variances, both of the shape of z.
        """

    def expected(self, y, observed, mean, V):
        return self.by_quadrature(y, observed, mean, V, 1.0)

    def expected_finely(self, y, observed, mean, V):
        if type(self).expected is not Elementwise.expected:  # a closed form has replaced the quadrature
            return self.expected(y, observed, mean, V)
        return self.by_quadrature(y, observed, mean, V, _FINE)

    def by_quadrature(self, y, observed, mean, V, factor: float):
        """Return E log p(y | z) and its gradients by quadrature; see `expected`.

        Args:
            y: the observation, shape (D,).
            observed: mask of the entries that are not missing, shape (D,).
            mean: mean of z, shape (D,).
            V: covariance of z, shape (D, D).
            factor: number of nodes, as a multiple of the usual one.

        Returns:
            The expectation, its gradient in the mean, shape (D,), and its symmetric gradient in V, shape (D, D).
        """
        xi, w = (a[:, None] for a in hermite(round(factor * _NODES)))
        sd = jnp.sqrt(jnp.diagonal(V))
        values = jnp.where(observed, self.log_density(y, mean + sd * xi), 0.0)
        value, g_mean, g_var = quadrature_sums(values, xi, w, sd)
        return value.sum(), g_mean, jnp.diag(g_var)

    def log_predictive(self, y, observed, mean, V):
        reading, precision = self.readings(y, observed, mean, V)
        order = jnp.argsort(jnp.where(observed, -precision * jnp.diagonal(V), jnp.inf))
        y, observed, mean, V = y[order], observed[order], mean[order], V[order][:, order]
        entries = [self.entry(i).pieces(y_i) for i, y_i in zip(order, y, strict=True)]
        return log_predictive(entries, (reading[order], precision[order]), observed, mean, V)

    def log_predictives(self, y, observed, mean, V):
        return in_parts(self.log_predictive, y, observed, mean, V)

    def entry(self, i: Any) -> "Elementwise":
        """Return the likelihood of entry i alone, with its value of every parameter that has one for each entry."""
        return jax.tree.map(lambda a: a[i] if jnp.ndim(a) else a, self)

    def readings(self, y, observed, mean, V) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
        """Return a Gaussian approximation of p(y | z) in z that is accurate near the mode of p(y | z) N(z; mean, V).

        This implementation is for densities that are log-concave in z. If a density is not, return `self.start(y)`.

        Args:
            y: the observation, shape (D,).
            observed: mask of the entries that are not missing, shape (D,).
            mean: mean of z, shape (D,).
            V: covariance of z, shape (D, D).

        Returns:
            The mean and the precision of each entry of z, both of shape (D,).
        """

        def density(z):
            return self.log_density(y, z)

        return readings_at_the_mode(density, self.start(y), observed, mean, V)

    def pieces(self, y: Float[Array, ""]) -> Entry:
        """Write the density of one entry as a sum of Gaussian pieces in z; see the module `predictive`.

        This implementation is for densities that are log-concave in z.

        Args:
            y: one entry of an observation, a scalar.

        Returns:
            A function from beliefs about z to pieces.
        """
        return concave(lambda z: self.log_density(y[None], z[..., None])[..., 0], self.start(y[None])[0][0])

    def predictive(self, mean, V):
        xi, w = normal_nodes()
        mu, var = self.conditional(mean + jnp.sqrt(jnp.diagonal(V)) * xi[:, None])
        y_mean = w @ mu
        variances = w @ var + w @ (mu - y_mean) ** 2
        D = mean.shape[0]

        def covariance(i, j):  # of E[y_i | z_i] and E[y_j | z_j], from the joint law of z_i and z_j
            def expected(k):
                return lambda z: self.conditional(jnp.broadcast_to(z[:, None], (z.shape[0], D)))[0][:, k]

            both = jnp.stack([i, j])
            return pair_covariance(expected(i), expected(j), mean[both], V[both][:, both], y_mean[both])

        index = jnp.arange(D)
        cov = jax.vmap(lambda i: jax.vmap(lambda j: covariance(i, j))(index))(index)
        return y_mean, jnp.where(jnp.eye(D, dtype=bool), jnp.diag(variances), cov)

    def given(self, z):
        mean, variance = self.conditional(z)
        return mean, jnp.diag(variance)

    def log_prob(self, y, observed, z):
        return jnp.where(observed, self.log_density(y, z), 0.0).sum()


def check_shapes(likelihood: Likelihood, D: int, name: str = "likelihood") -> None:
    """Raise a ValueError unless every parameter that has one value for each entry of y has D of them."""
    for key, value in vars(likelihood).items():
        if key not in likelihood.shared and np.ndim(value) and np.shape(value)[0] != D:
            entries = "1 entry" if D == 1 else f"{D} entries, one for each row of emission"
            raise ValueError(f"{name}.{key} has shape {np.shape(value)}, but an observation has {entries}")


def as_text(value: Any) -> str:
    """Return what an error message calls a value that is no likelihood; a class is called without its arguments."""
    if isinstance(value, type) and issubclass(value, Likelihood):
        return f"the class {value.__name__}: call it, {value.__name__}(...)"
    return repr(value)


def check_parameter(name: str, value: Any) -> None:
    if isinstance(value, np.ndarray):  # a traced value cannot be checked; the optimiser keeps it positive
        check_positive_entries(name, value)


def check_values(name: str, wanted: str, y: np.ndarray, observed: np.ndarray, good: np.ndarray) -> None:
    bad = np.argwhere(observed & ~good)
    if len(bad):
        i, j = bad[0]
        raise ValueError(
            f"{name} observations must be {wanted}; values[{i}, {j}] is {float(y[i, j])!r} (row {i}, output {j}). Make "
            "it NaN if it is missing, or choose another likelihood"
        )
