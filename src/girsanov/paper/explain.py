"""Explanations of table cells that differ from the paper's by more than one printed standard deviation."""

from typing import Any

import numpy as np

from girsanov.paper.tables import Cell

LIMIT = 1.0  # largest difference without an explanation, in printed standard deviations


def explain(
    row: str,
    cell: Cell,
    values: list[dict[str, Any]],
    exact: list[dict[str, Any]] | None = None,
    metric: str = "nlpd",
    limit: float = LIMIT,
) -> str:
    """Return a sentence on why a cell differs from the printed value; empty where the difference is small.

    Args:
        row: name of the row, without its step size.
        cell: the cell.
        values: results of its folds.
        exact: results of the exact smoother for the same folds, if any.
        metric: the score in the cell.
        limit: largest difference without an explanation, in printed standard deviations.
    """
    if cell.apart is None or abs(cell.apart) <= limit or not values:
        return ""
    if "early_share" in values[0]:
        return _early(cell, values, metric)
    if row in _SENTENCES:
        return _SENTENCES[row](cell, values, exact)
    return f"the difference is {abs(cell.apart):.1f} printed sd; the statuses of the folds are {_statuses(values)}."


def _statuses(values: list[dict[str, Any]], field: str = "status") -> str:
    names = [str(v[field]) for v in values]
    return ", ".join(f"{names.count(s)} × {s}" for s in sorted(set(names)))


def _particles(cell: Cell, values, exact, before: str = "") -> str:
    rhat = max(v["rhat"] for v in values)
    text = f"R̂ ≤ {rhat:.3f}, Monte Carlo error {np.mean([v[f'{before}error'] for v in values]):.3f}"
    if exact:
        return f"{text}; the exact smoother gives {np.mean([v[f'{before}nlpd'] for v in exact]):.3f}."
    return f"{text}; the paper says that its own particles, as many for every process, did not converge here."


def _vdp(cell: Cell, values, exact) -> str:
    text = f"our runs take safeguarded steps ({_statuses(values)})"
    if "plain_nlpd" not in values[0]:
        return text + "; the paper's runs stop before the maximum, when their decayed step makes the change small."
    plain = np.array([v["plain_nlpd"] for v in values], dtype=float)
    finite = plain[np.isfinite(plain)]
    shown = f"{finite.mean():.3f} ± {finite.std():.3f}" if len(finite) else "no finite score"
    return (
        f"{text}; the published iteration with the paper's ω gives {shown} ({_statuses(values, 'plain_status')}). The "
        "paper states neither its start nor its stopping rule; the printed value is from a run that stopped early."
    )


def _early(cell: Cell, values, metric: str) -> str:
    """Say which point between the start and the end of learning has a score nearest to the printed value."""
    means = np.mean([v[f"early_{metric}"] for v in values], axis=0)
    share = np.array(values[0]["early_share"])
    short = np.mean([v["early_elbo"][-1] - np.array(v["early_elbo"]) for v in values], axis=0)
    i = int(np.argmin(np.abs(means - (cell.paper or (np.nan,))[0])))
    return (
        f"our run learns to the maximum of the bound; the printed value is nearest to that of parameters "
        f"{100 * share[i]:.0f} % of the way from the start ({means[i]:.3f}), where the bound is {short[i]:.1f} nats a "
        "fold below its maximum: a run that ended early."
    )


def _gp(cell: Cell, values, exact) -> str:
    return (
        "our value is exact regression with the Ornstein–Uhlenbeck kernel; the paper does not state the kernel's "
        "parameters for data of other processes."
    )


def _network(cell: Cell, values, exact) -> str:
    return (
        f"our network has the highest bound on the training folds ({_statuses(values)}); the paper states neither how "
        "long its optimiser ran nor the seed of its network, and these folds do not determine the drift where they "
        "have no data."
    )


_SENTENCES = {
    "cvi_dp_nn": _network,
    "vdp_nn": _network,
    "particles": _particles,
    "gaussian": lambda cell, values, exact: _particles(cell, values, exact, "gaussian_"),
    "vdp": _vdp,
    "learnt vdp": lambda cell, values, exact: _vdp(cell, values, exact),
    "gp_regression": _gp,
}
