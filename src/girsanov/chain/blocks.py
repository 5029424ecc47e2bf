"""Small dense matrices, one for every time or lane, with the lanes in the trailing axes.

A block is an array of shape (d, e, *lanes). On a CPU this layout turns every product of small matrices into a few
long vector operations; the usual layout (lanes, d, e) would call a matrix routine once a lane instead. The functions
work for no lanes at all, so a scan over single matrices uses them too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from girsanov._core.types import Array

# Up to this size the inverse is written out entry by entry (fused to one loop over the lanes); above it, each
# elimination step is one rank-one update of the whole block, so that the program does not grow with d³.
_UNROLLED = 3


def transpose(a: Float[Array, "d e *#lanes"]) -> Float[Array, "e d *#lanes"]:
    return jnp.swapaxes(a, 0, 1)


def matmul(a: Float[Array, "d e *#lanes"], b: Float[Array, "e f *#lanes"]) -> Float[Array, "d f *#lanes"]:
    return sum(a[:, k, None] * b[k] for k in range(a.shape[1]))  # pyright: ignore[reportReturnType]


def matvec(a: Float[Array, "d e *#lanes"], v: Float[Array, "e *#lanes"]) -> Float[Array, "d *#lanes"]:
    return sum(a[:, k] * v[k] for k in range(a.shape[1]))  # pyright: ignore[reportReturnType]


def outer(u: Float[Array, "d *#lanes"], v: Float[Array, "e *#lanes"]) -> Float[Array, "d e *#lanes"]:
    return u[:, None] * v[None]


def symmetrise(a: Float[Array, "d d *#lanes"]) -> Float[Array, "d d *#lanes"]:
    return 0.5 * (a + transpose(a))


def trace(a: Float[Array, "d d *#lanes"]) -> Float[Array, "*#lanes"]:
    return sum(a[i, i] for i in range(a.shape[0]))  # pyright: ignore[reportReturnType]


def eye_like(a: Float[Array, "d d *#lanes"]) -> Float[Array, "d d *#lanes"]:
    """The identity in every lane of `a`."""
    eye = jnp.eye(a.shape[0], dtype=a.dtype)
    return jnp.broadcast_to(eye.reshape(eye.shape + (1,) * (a.ndim - 2)), a.shape)


def inverse(a: Float[Array, "d d *#lanes"]) -> tuple[Float[Array, "d d *#lanes"], Float[Array, "d *#lanes"]]:
    """Inverse of symmetric positive-definite blocks, and the pivots of the elimination.

    The pivots are the squared diagonal of the Cholesky factor: a block is positive definite exactly if all of them
    are positive, and their product is its determinant. Nothing is added to a block that is not.
    """
    return _inverse_unrolled(a) if a.shape[0] <= _UNROLLED else _inverse(a)


@jax.custom_jvp
def _inverse(a: Float[Array, "d d *#lanes"]) -> tuple[Float[Array, "d d *#lanes"], Float[Array, "d *#lanes"]]:
    # a = L D Lᵀ and a⁻¹ = L⁻ᵀ D⁻¹ L⁻¹. Gauss–Jordan on the whole block would be shorter; but where some directions are
    # known a million times better than others, it loses the variance of just those.
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
    """d(a⁻¹) = −a⁻¹ da a⁻¹: shorter than the derivative of the elimination."""
    (a,), (da,) = primals, tangents
    P, pivots = _inverse(a)
    # log p_0 + … + log p_k is the log determinant of a's leading block, whose derivative is the trace below.
    sums = [trace(matmul(_inverse(a[:k, :k])[0], da[:k, :k])) for k in range(1, a.shape[0])]
    sums.append(trace(matmul(P, da)))
    logs = jnp.stack([s - before for s, before in zip(sums, [0.0, *sums[:-1]], strict=True)])
    return (P, pivots), (-matmul(P, matmul(da, P)), pivots * logs)


def _inverse_unrolled(a: Float[Array, "d d *#lanes"]) -> tuple[Float[Array, "d d *#lanes"], Float[Array, "d *#lanes"]]:
    """a = L D Lᵀ with unit lower-triangular L; a⁻¹ = L⁻ᵀ D⁻¹ L⁻¹, all entries written out."""
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
    """Lower-triangular factor of positive-definite blocks (NaN in a lane that is not)."""
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
    """Inverse of lower-triangular blocks by forward substitution, one row after the other."""
    d = a.shape[0]
    eye = eye_like(a)
    rows: list = []
    for i in range(d):
        known = sum((a[i, k] * rows[k] for k in range(i)), jnp.zeros_like(eye[i]))
        rows.append((eye[i] - known) / a[i, i])
    return jnp.stack(rows)
