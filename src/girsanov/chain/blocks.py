"""Operations on many small dense matrices at once, with the index of the matrix in the trailing axes.

A block is an array of shape (d, e, *lanes) and holds one d × e matrix for each lane, such as one for each time. On a
CPU this layout turns a product of small matrices into a few long vector operations; the usual layout (lanes, d, e)
would call a matrix routine once per lane. The functions also work without lanes, for a scan over single matrices.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array

# Up to this size the inverse is written out entry by entry, which XLA fuses into one loop over the lanes. Above it,
# each elimination step is a rank-one update of the whole block, so that the size of the program does not grow with d³.
_UNROLLED = 3


def transpose(a: Float[Array, "d e *#lanes"]) -> Float[Array, "e d *#lanes"]:
    """Return aᵀ in every lane."""
    return jnp.swapaxes(a, 0, 1)


def matmul(a: Float[Array, "d e *#lanes"], b: Float[Array, "e f *#lanes"]) -> Float[Array, "d f *#lanes"]:
    """Return the product a b in every lane."""
    return sum(a[:, k, None] * b[k] for k in range(a.shape[1]))  # pyright: ignore[reportReturnType]


def matvec(a: Float[Array, "d e *#lanes"], v: Float[Array, "e *#lanes"]) -> Float[Array, "d *#lanes"]:
    """Return the product a v in every lane."""
    return sum(a[:, k] * v[k] for k in range(a.shape[1]))  # pyright: ignore[reportReturnType]


def outer(u: Float[Array, "d *#lanes"], v: Float[Array, "e *#lanes"]) -> Float[Array, "d e *#lanes"]:
    """Return the outer product u vᵀ in every lane."""
    return u[:, None] * v[None]


def symmetrise(a: Float[Array, "d d *#lanes"]) -> Float[Array, "d d *#lanes"]:
    """Return the symmetric part ½(a + aᵀ) in every lane."""
    return 0.5 * (a + transpose(a))


def trace(a: Float[Array, "d d *#lanes"]) -> Float[Array, "*#lanes"]:
    """Return the trace of every lane."""
    return sum(a[i, i] for i in range(a.shape[0]))  # pyright: ignore[reportReturnType]


def eye_like(a: Float[Array, "d d *#lanes"]) -> Float[Array, "d d *#lanes"]:
    """Return a block of the shape of `a` with the identity matrix in every lane."""
    eye = jnp.eye(a.shape[0], dtype=a.dtype)
    return jnp.broadcast_to(eye.reshape(eye.shape + (1,) * (a.ndim - 2)), a.shape)


def inverse(a: Float[Array, "d d *#lanes"]) -> tuple[Float[Array, "d d *#lanes"], Float[Array, "d *#lanes"]]:
    """Return the inverse of symmetric positive-definite matrices, and the pivots of the elimination.

    The pivots are the squared diagonal of the Cholesky factor. A matrix is positive definite exactly if all its pivots
    are positive, and their product is its determinant. No jitter is added to a matrix that is not positive definite.
    """
    return _inverse_unrolled(a) if a.shape[0] <= _UNROLLED else _inverse(a)


@jax.custom_jvp
def _inverse(a: Float[Array, "d d *#lanes"]) -> tuple[Float[Array, "d d *#lanes"], Float[Array, "d *#lanes"]]:
    # a = L D Lᵀ and a⁻¹ = L⁻ᵀ D⁻¹ L⁻¹. Gauss–Jordan elimination of the whole matrix would be shorter, but it loses the
    # variance of directions that are known a million times better than others.
    L_inv, pivots, total = eye_like(a), [], 0.0
    for k in range(a.shape[0]):
        p, row = a[0, 0], L_inv[k]
        below = a[1:, 0] / p
        pivots.append(p)
        total = total + outer(row, row / p)  # row k of L⁻¹ is known once the columns before it have been applied
        L_inv = L_inv.at[k + 1 :].add(-outer(below, row))
        a = a[1:, 1:] - outer(below, a[0, 1:])
    return total, jnp.stack(pivots)


@_inverse.defjvp
def _inverse_tangent(primals, tangents):
    """The derivative d(a⁻¹) = −a⁻¹ da a⁻¹, a shorter program than the derivative of the elimination."""
    (a,), (da,) = primals, tangents
    P, pivots = _inverse(a)
    # log p_0 + … + log p_k is the log determinant of a's leading block, whose derivative is the trace below.
    sums = [trace(matmul(_inverse(a[:k, :k])[0], da[:k, :k])) for k in range(1, a.shape[0])]
    sums.append(trace(matmul(P, da)))
    logs = jnp.stack([s - before for s, before in zip(sums, [0.0, *sums[:-1]], strict=True)])
    return (P, pivots), (-matmul(P, matmul(da, P)), pivots * logs)


def _inverse_unrolled(a: Float[Array, "d d *#lanes"]) -> tuple[Float[Array, "d d *#lanes"], Float[Array, "d *#lanes"]]:
    """Invert by a = L D Lᵀ with unit lower-triangular L, hence a⁻¹ = L⁻ᵀ D⁻¹ L⁻¹, with all entries written out."""
    d = a.shape[0]
    low: list[list] = [[None] * d for _ in range(d)]
    piv: list = []
    for j in range(d):
        piv.append(a[j, j] - sum((low[j][k] * low[j][k] * piv[k] for k in range(j)), 0.0))
        for i in range(j + 1, d):
            low[i][j] = (a[i, j] - sum((low[i][k] * low[j][k] * piv[k] for k in range(j)), 0.0)) / piv[j]
    inv_low: list[list] = [[None] * d for _ in range(d)]  # strictly lower part of L⁻¹
    for j in range(d):
        for i in range(j + 1, d):
            inv_low[i][j] = -low[i][j] - sum((low[i][k] * inv_low[k][j] for k in range(j + 1, i)), 0.0)

    def entry(i, j):  # i <= j: Σ_{k≥j} L⁻¹_{ki} L⁻¹_{kj} / D_k
        total = (1.0 if i == j else inv_low[j][i]) / piv[j]
        for k in range(j + 1, d):
            total = total + inv_low[k][i] * inv_low[k][j] / piv[k]
        return total

    upper = {(i, j): entry(i, j) for i in range(d) for j in range(i, d)}
    rows = [jnp.stack([upper[min(i, j), max(i, j)] for j in range(d)]) for i in range(d)]
    return jnp.stack(rows), jnp.stack(piv)


def cholesky(a: Float[Array, "d d *#lanes"]) -> Float[Array, "d d *#lanes"]:
    """Return the lower-triangular Cholesky factor; a lane that is not positive definite becomes NaN."""
    d = a.shape[0]
    if d > _UNROLLED:
        return jnp.moveaxis(jnp.linalg.cholesky(jnp.moveaxis(a, (0, 1), (-2, -1))), (-2, -1), (0, 1))
    zero = jnp.zeros_like(a[0, 0])
    low: list[list] = [[zero] * d for _ in range(d)]
    for j in range(d):
        low[j][j] = jnp.sqrt(a[j, j] - sum((low[j][k] ** 2 for k in range(j)), 0.0))
        for i in range(j + 1, d):
            low[i][j] = (a[i, j] - sum((low[i][k] * low[j][k] for k in range(j)), 0.0)) / low[j][j]
    return jnp.stack([jnp.stack(row) for row in low])


def inverse_lower(a: Float[Array, "d d *#lanes"]) -> Float[Array, "d d *#lanes"]:
    """Return the inverse of lower-triangular matrices, by forward substitution row by row."""
    d = a.shape[0]
    eye = eye_like(a)
    rows: list = []
    for i in range(d):
        known = sum((a[i, k] * rows[k] for k in range(i)), jnp.zeros_like(eye[i]))
        rows.append((eye[i] - known) / a[i, i])
    return jnp.stack(rows)
