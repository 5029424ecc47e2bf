"""Where along the time axis q and the model part: importance weights of q's paths, stretch by stretch.

The log weight of a path is a sum over the steps of the grid. With the messages ψ by which the present and all later
observations enter q, the part of the step from x to x₊ is
    log p(x₊ | x) p(y | x) − log q(x₊ | x) + log ψ₊(x₊) − log ψ(x).
The messages cancel in the sum, and in each part they cancel what q's transitions know of the future: what is left is
the difference between the model's factors of that step and q's own, and zero where q is exact.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from girsanov._core.special import LOG_2PI
from girsanov._core.types import Array
from girsanov._core.weights import log_mean
from girsanov.baselines.proposals import Guided, guide
from girsanov.chain.transitions import Transitions
from girsanov.model.path_model import PathModel

_STRETCHES = 40  # of equal length, or fewer on a short grid
_MOST = 0.5  # a window that holds this share of the loss of all stretches is where q and the model part
_NARROW = 0.25  # share of the horizon that it may cover to be called localised
_SMALL = 0.5  # of the paths are effective: with more, no window is named


@dataclasses.dataclass(frozen=True)
class Where:
    """Effective numbers of q's paths, each by the weights of one stretch of time alone.

    Attributes:
        edges: times at which the stretches begin and end, (I + 1,); they are nodes.
        ess: effective number of paths by the weights of each stretch, (I,).
        n: number of paths drawn.
        log_weights: parts of the log weights of the paths, (n, I); their sum over the stretches is the log weight.
        window: times between which q and the model part most, if that is localised; else None.
        window_ess: effective number of paths by the weights of this window alone, or None.
    """

    edges: np.ndarray
    ess: np.ndarray
    n: int
    log_weights: np.ndarray
    window: tuple[float, float] | None
    window_ess: float | None

    def __repr__(self) -> str:
        worst = int(np.argmin(self.ess))
        a, b = self.edges[worst : worst + 2]
        return f"Where({len(self.ess)} stretches, fewest effective {self.ess[worst]:.0f} of {self.n} in [{a:g}, {b:g}])"

    def sentence(self) -> str:
        """Return a sentence on the window, to be added to the reasons for a verdict; empty if there is none."""
        if self.window is None:
            return ""
        a, b = self.window
        return (
            f". On the paths of q, it parts from the model mostly between times {a:.6g} and {b:.6g}: their weights "
            f"there alone leave {self.window_ess:.0f} of {self.n} paths effective"
        )


def stretches(times: np.ndarray) -> np.ndarray:
    """Return the nodes at which the stretches begin and end, (I + 1,), at about equal distances in time."""
    wanted = np.linspace(times[0], times[-1], min(_STRETCHES, len(times) - 1) + 1)
    return np.unique(np.searchsorted(times, wanted - 1e-9 * (times[-1] - times[0])).clip(0, len(times) - 1))


def messages(path: PathModel, post: Any) -> Guided | None:
    """Return the messages of q, or None where rounding leaves none."""
    found = guide(path, post, np.float64(1.0))
    return found if np.isfinite(np.asarray(found.h)).all() and np.isfinite(np.asarray(found.J)).all() else None


def log_parts(
    path: PathModel,
    psi: Guided,
    x: Float[Array, "N d"],
    q: Transitions,
    residuals: Float[Array, "N d"],
    stretch: Int[Array, " M"],
    count: int,
) -> Float[Array, " I"]:
    """Return the parts of the log weight of a path, by stretch.

    `residuals` are the standardised residuals of the path under q's transitions, and `stretch` the index of the stretch
    of every step. The first state belongs to the first stretch.
    """
    root = jnp.moveaxis(jnp.asarray(q.root), -1, 0)
    log_q = -jnp.linalg.slogdet(root)[1] - 0.5 * ((residuals**2).sum(-1) + x.shape[-1] * LOG_2PI)
    log_p = jax.vmap(path.log_step)(jnp.arange(len(path.data.gaps)), x[:-1], x[1:])
    data = jax.vmap(path.model.observation.log_prob)(path.rows, x)
    log_psi = (x * psi.h).sum(-1) - 0.5 * jnp.einsum("mi,mij,mj->m", x, psi.J, x)
    parts = log_p - log_q[1:] + log_psi[1:] + data[:-1] - log_psi[:-1]
    parts = parts.at[0].add(path.log_initial(x[0]) - log_q[0] + log_psi[0])
    parts = parts.at[-1].add(data[-1] - log_psi[-1])
    return jax.ops.segment_sum(parts, stretch, count)


def where(times: np.ndarray, nodes: np.ndarray, log_weights: np.ndarray) -> Where:
    """Return the effective numbers of paths from the parts of their log weights, (n, I), between some nodes."""
    edges, n = times[nodes], len(log_weights)
    ess = np.array([_effective(logs) for logs in log_weights.T])
    loss = np.log(n / ess)
    window = None
    if _effective(log_weights.sum(1)) < _SMALL * n:
        window = _window(edges, loss)
    if window is None:
        return Where(edges, ess, n, log_weights, None, None)
    i, j = window
    return Where(edges, ess, n, log_weights, (float(edges[i]), float(edges[j])), _effective(log_weights[:, i:j].sum(1)))


def _effective(logs: np.ndarray) -> float:
    return log_mean(logs).effective


def _window(edges: np.ndarray, loss: np.ndarray) -> tuple[int, int] | None:
    """Return the shortest window of stretches [i, j) with half of the loss, or None if it is not narrow."""
    total = np.append(0.0, np.cumsum(loss))
    found = [(i, j) for i in range(len(loss)) for j in range(i + 1, len(loss) + 1)]
    found = [(i, j) for i, j in found if total[j] - total[i] >= _MOST * total[-1]]
    i, j = min(found, key=lambda w: (edges[w[1]] - edges[w[0]], -(total[w[1]] - total[w[0]])))
    return (i, j) if edges[j] - edges[i] <= _NARROW * (edges[-1] - edges[0]) else None
