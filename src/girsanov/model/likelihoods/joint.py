"""Observations whose outputs have likelihoods of different kinds."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from girsanov.model.likelihoods.base import Elementwise, Likelihood, as_text, check_shapes
from girsanov.model.likelihoods.gaussian import Gaussian
from girsanov.model.likelihoods.integrals import pair_covariance
from girsanov.model.likelihoods.positive import LogNormal
from girsanov.model.predictive import in_parts, log_predictive


class Joint(Likelihood):
    """Independent outputs, each with a likelihood of its own: p(y | z) = Π p_i(y_i | z_i).

    A model makes it from a list, such as `likelihood=[Gaussian(0.1), Poisson()]`; parameters are then named
    "likelihood[0].variance" and so on.

    Args:
        parts: one likelihood for each output.
    """

    parts: tuple[Any, ...] = eqx.field(converter=tuple)

    def __check_init__(self):
        if not self.parts:
            raise ValueError("the list of likelihoods is empty; give one for each output")
        for i, part in enumerate(self.parts):
            if not isinstance(part, Gaussian | LogNormal | Elementwise):
                raise ValueError(
                    f"likelihood[{i}] must come from girsanov.likelihoods and have independent entries, got "
                    f"{as_text(part)}"
                )
            check_shapes(part, 1, f"likelihood[{i}]")

    def _each(self, *arrays):
        """Return (part, its entry of every array) for every output."""
        return [(part, *(a[i : i + 1] for a in arrays)) for i, part in enumerate(self.parts)]

    def expected(self, y, observed, mean, V):
        return self._summed("expected", y, observed, mean, V)

    def expected_finely(self, y, observed, mean, V):
        return self._summed("expected_finely", y, observed, mean, V)

    def _summed(self, method: str, y, observed, mean, V):
        """Return the sum of the expectations that this method of every part returns, with all gradients."""
        each = self._each(y, observed, mean, jnp.diagonal(V))
        parts = [getattr(part, method)(y_i, seen, m, v[:, None]) for part, y_i, seen, m, v in each]
        value, g_mean, g_V = zip(*parts, strict=True)
        return sum(value[1:], value[0]), jnp.concatenate(g_mean), jnp.diag(jnp.concatenate([g[0] for g in g_V]))

    def log_predictive(self, y, observed, mean, V):
        rough = [
            part.readings(y_i, seen, m, v[:, None])
            for part, y_i, seen, m, v in self._each(y, observed, mean, jnp.diagonal(V))
        ]
        reading, precision = (jnp.concatenate(a) for a in zip(*rough, strict=True))
        # Gaussian outputs are exact, so they come first and the points of the others follow from them.
        order = np.argsort([not isinstance(part, Gaussian | LogNormal) for part in self.parts], kind="stable")
        entries = [_scalar(self.parts[i]).pieces(y[i]) for i in order]
        return log_predictive(
            entries, (reading[order], precision[order]), observed[order], mean[order], V[order][:, order]
        )

    def log_predictives(self, y, observed, mean, V):
        return in_parts(self.log_predictive, y, observed, mean, V)

    def predictive(self, mean, V):
        alone = [part.predictive(m, v[:, None]) for part, m, v in self._each(mean, jnp.diagonal(V))]
        y_mean = jnp.concatenate([m for m, _ in alone])
        D = len(self.parts)
        rows = [[alone[i][1][0, 0] for _ in range(D)] for i in range(D)]
        for i in range(D):
            for j in range(i):
                both = np.array([i, j])
                first, second = (lambda z, p=self.parts[k]: p.conditional(z[:, None])[0][:, 0] for k in both)
                cov = pair_covariance(first, second, mean[both], V[both][:, both], y_mean[both])
                rows[i][j] = rows[j][i] = cov
        return y_mean, jnp.stack([jnp.stack(row) for row in rows])

    def given(self, z):
        means, variances = zip(*(part.conditional(z_i) for part, z_i in self._each(z)), strict=True)
        return jnp.concatenate(means), jnp.diag(jnp.concatenate(variances))

    def log_prob(self, y, observed, z):
        return sum(part.log_prob(y_i, seen, z_i) for part, y_i, seen, z_i in self._each(y, observed, z))

    def sample(self, key, z):
        keys = jax.random.split(key, len(self.parts))
        return jnp.concatenate([part.sample(k, z_i) for k, (part, z_i) in zip(keys, self._each(z), strict=True)])

    def start(self, y):
        means, precisions = zip(*(part.start(y_i) for part, y_i in self._each(y)), strict=True)
        return jnp.concatenate(means), jnp.concatenate(precisions)

    def with_errors(self, errors):
        return Joint([part.with_errors(sd) for part, sd in self._each(errors)])

    def check_errors(self, errors, observed):
        for i, part in enumerate(self.parts):
            part.check_errors(errors, _only(observed, i))

    def check(self, y, observed):
        for i, part in enumerate(self.parts):
            part.check(y, _only(observed, i))


def _scalar(part: Any) -> Any:
    """Return a likelihood of one output whose parameters are scalars, as its `pieces` takes them."""
    return part.entry(0) if isinstance(part, Elementwise) else part


def _only(observed: np.ndarray, output: int) -> np.ndarray:
    """Return the mask with all other outputs missing, so that a message names the right column."""
    return observed & (np.arange(observed.shape[1]) == output)


def as_likelihood(value: Any) -> Any:
    """Return a likelihood: a list becomes a `Joint`, and None the default, Gaussian noise of variance 1."""
    if value is None:
        return Gaussian(variance=1.0)
    return Joint(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
