"""The noise of the SDE: its spectral density Q, and the matrices that are computed from Q."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from girsanov._core.checks import check_covariance, check_positive_entries
from girsanov._core.precision import frozen
from girsanov._core.types import Array
from girsanov.chain import blocks

FORMS = {0: "scalar", 1: "diagonal", 2: "full"}  # how a covariance was given, by its number of axes
_ROUNDING = 1e-14  # eigenvalues of a correlation matrix below this are zero


class NoiseForm(NamedTuple):
    """What a `Diffusion` knows of its Q without the values: see its attributes."""

    form: str
    noisy: tuple[int, ...]
    rank: int


class Diffusion(eqx.Module):
    """The noise L dβ with LLᵀ = Q, the same at all times and in all states.

    Only this class factors or inverts Q. If Q is a NumPy array, the matrices computed from it are NumPy arrays too.
    Q may be singular: then some coordinates, or combinations of them, have no noise of their own.

    Attributes:
        Q: the spectral density, shape (d, d).
        form: how Q was given: "scalar", "diagonal" or "full". Learning keeps that form.
        noisy: the coordinates that have noise of their own.
        rank: the number of independent noises; d unless Q is singular.
    """

    Q: Float[Array, "d d"]
    form: str = eqx.field(static=True)
    noisy: tuple[int, ...] = eqx.field(static=True)
    rank: int = eqx.field(static=True)

    @classmethod
    def of(cls, value: Any, d: int) -> "Diffusion":
        """Make the noise from Q as a scalar, as its diagonal (d,) or as the matrix (d, d)."""
        if not isinstance(value, np.ndarray):
            return cls(as_matrix("diffusion", value, d), FORMS[value.ndim], tuple(range(d)), d)
        if value.ndim == 0:
            check_positive_entries("diffusion", value)
        Q = value if value.ndim == 2 else np.diag(np.broadcast_to(value, (d,)))
        noisy = _noisy(Q)
        block = Q[np.ix_(noisy, noisy)]
        rank = _rank(block)
        if rank == len(noisy):
            _check_block(value, block)
        return cls(frozen(Q.copy()), FORMS[value.ndim], tuple(int(i) for i in noisy), rank)

    @property
    def structure(self) -> NoiseForm:
        """Form, coordinates with noise, and rank."""
        return NoiseForm(self.form, self.noisy, self.rank)

    def formed(self, like: NoiseForm) -> "Diffusion":
        """Return this noise with noise in the same directions as another one, or raise a ValueError if it has others.

        Where a traced Q has zeros cannot be seen from its values: it counts as regular when it is given, and as what
        `like` says from then on.
        """
        if (self.noisy, self.rank) == (like.noisy, like.rank):
            return self
        if self._on_host or self.is_singular:
            raise ValueError(
                f"the model has {_described(self.structure)}, but the problem was prepared for a model with "
                f"{_described(like)}: call gv.prepare with a model whose diffusion has its zeros in the same places"
            )
        return Diffusion(self.Q, *like)

    @property
    def is_singular(self) -> bool:
        """Whether some direction of the state has no noise of its own."""
        return self.rank < self.Q.shape[0]

    @property
    def _on_host(self) -> bool:
        return isinstance(self.Q, np.ndarray)

    @property
    def _block(self) -> Any:
        """The part of Q that belongs to coordinates with noise."""
        i = np.asarray(self.noisy)
        return self.Q[np.ix_(i, i)] if self.is_singular else self.Q

    def _spread(self, block: Any) -> Any:
        """Return the matrix (d, d) with this block at the coordinates with noise and zeros elsewhere."""
        if not self.is_singular:
            return block
        d, at = self.Q.shape[0], np.ix_(np.asarray(self.noisy), np.asarray(self.noisy))
        if self._on_host:
            whole = np.zeros((d, d))
            whole[at] = block
            return whole
        return jnp.zeros((d, d)).at[at].set(block)

    @property
    def root(self) -> Float[Array, "d d"]:
        """A matrix L with LLᵀ = Q; lower triangular, unless noises of several coordinates depend on each other."""
        linalg = (np if self._on_host else jnp).linalg
        if self.rank == len(self.noisy):
            return self._spread(linalg.cholesky(self._block))
        size, axes = linalg.eigh(self._block)
        zero = np.arange(len(self.noisy)) < len(self.noisy) - self.rank
        return self._spread(axes * (np if self._on_host else jnp).sqrt(np.where(zero, 0.0, size)))

    @property
    def inverse_root(self) -> Float[Array, "d d"]:
        """The inverse of `root`, with which ‖v‖²_{Q⁻¹} = ‖L⁻¹v‖². Q must not be singular."""
        return (np if self._on_host else jnp).linalg.inv(self.root)

    @property
    def precision(self) -> Float[Array, "d d"]:
        """The inverse Q⁻¹; if Q is singular, its pseudo-inverse Q⁺."""
        if self.rank < len(self.noisy):
            return self._spread((np if self._on_host else jnp).linalg.pinv(self._block, _PSEUDO, hermitian=True))
        if self._on_host:
            return self._spread(np.linalg.inv(self._block))
        return self._spread(blocks.inverse(jnp.asarray(self._block))[0])

    @property
    def silent(self) -> Float[np.ndarray, "k d"]:
        """The directions without noise, as orthonormal rows; they are coordinates where Q has zero rows."""
        d = self.Q.shape[0]
        _, axes = np.linalg.eigh(np.asarray(self._block))
        rows = np.eye(d)[[i for i in range(d) if i not in self.noisy]]
        within = np.zeros((len(self.noisy) - self.rank, d))
        within[:, list(self.noisy)] = axes[:, : len(within)].T
        return np.concatenate([rows, within])

    @property
    def silent_projector(self) -> Float[Array, "d d"]:
        """The orthogonal projection I − QQ⁺ on the directions without noise."""
        return np.eye(self.Q.shape[0]) - self.Q @ self.precision

    @property
    def log_det(self) -> Float[Array, ""]:
        """The log determinant log |Q|; minus infinity if Q is singular."""
        if self._on_host:
            return np.asarray(np.linalg.slogdet(self.Q)[1])
        return jnp.log(blocks.inverse(jnp.asarray(self.Q))[1]).sum()

    def step_roots(self, gaps: Float[Array, " M"]) -> Float[Array, "M d d"]:
        """Return √Δ L for every gap Δ, a root of the covariance ΔQ of an Euler–Maruyama step."""
        return gaps[:, None, None] ** 0.5 * self.root

    def inverse_step_roots(self, gaps: Float[Array, " M"]) -> Float[Array, "M d d"]:
        """Return the inverses L⁻¹/√Δ of `step_roots`. Q must not be singular."""
        return gaps[:, None, None] ** -0.5 * self.inverse_root

    def step_sds(self, gaps: Float[Array, " M"]) -> Float[Array, "M d"]:
        """Return the standard deviation √(Δ Q_ii) of the noise of every step, for each coordinate."""
        return (gaps[:, None] * self.Q.diagonal()) ** 0.5


_PSEUDO = 1e-12  # relative size of the eigenvalues that a pseudo-inverse leaves out


def _noisy(Q: np.ndarray) -> np.ndarray:
    """Return the indices of the coordinates with noise, after checking the rows of the others."""
    if Q.ndim != 2 or Q.shape[0] != Q.shape[1]:
        raise ValueError(f"diffusion must be a square matrix, its diagonal or a scalar, got shape {Q.shape}")
    silent = (Q.diagonal() == 0.0) & np.isfinite(Q).all(1)
    wrong = silent[:, None] & (Q != 0.0)
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        raise ValueError(
            f"diffusion[{i}, {j}] is {Q[i, j]} although diffusion[{i}, {i}] is 0: a covariance has zeros in the "
            "whole row of a coordinate without noise"
        )
    if silent.all():
        raise ValueError("diffusion is zero in every coordinate: without noise the model is not a diffusion process")
    return np.flatnonzero(~silent)


def _described(noise: NoiseForm) -> str:
    return f"noise of rank {noise.rank} in the coordinates {list(noise.noisy)}"


def _rank(block: np.ndarray) -> int:
    """Return the rank of a covariance without zero rows; a matrix that is not a covariance counts as regular."""
    sd = np.sqrt(np.abs(block.diagonal()))
    if not (np.isfinite(block).all() and (block.diagonal() > 0.0).all() and np.allclose(block, block.T)):
        return len(block)
    size = np.linalg.eigvalsh(block / np.outer(sd, sd))
    return len(block) if size[0] < -_ROUNDING * len(block) else int((size > _ROUNDING * len(block)).sum())


def _check_block(value: np.ndarray, block: np.ndarray) -> None:
    """Raise a ValueError unless the noisy part of a diffusion, given as `value`, is a covariance."""
    if value.ndim < 2:
        check_positive_entries("diffusion", np.where(value == 0.0, 1.0, value))
    check_covariance("diffusion", value if value.ndim == 2 and len(value) == len(block) else block)


def as_matrix(name: str, value: Any, d: int) -> Any:
    """Expand a scalar, (d,) or (d, d) value to a symmetric positive-definite matrix.

    A NumPy value is checked, and an error calls it `name`; a traced value cannot be checked.
    """
    if not isinstance(value, np.ndarray):
        return value * jnp.eye(d) if value.ndim == 0 else jnp.diag(value) if value.ndim == 1 else value
    if value.ndim < 2:
        check_positive_entries(name, value)
        value = np.diag(np.broadcast_to(value, (d,))).copy()
    check_covariance(name, value)
    return frozen(value)
