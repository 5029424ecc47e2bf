"""`compare`: models of one series ranked by their evidence, with predictive scores beside it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov._core.checks import check_whole
from girsanov._core.progress import reporter
from girsanov.model.simulate import check_draws
from girsanov.result.leave_out import cut_indices, leave_future_out, leave_one_out

_TRUSTED = ("trust the bound", "trust the corrected estimate")


class Row(NamedTuple):
    """One model. What it is behind is the difference to the best one, with the standard error of that difference.

    Attributes:
        evidence: log evidence in nats, or its bound.
        evidence_error: its error; NaN for a bound.
        evidence_kind: "bound"; "corrected" by the weights of `diagnose`; "exact" or "particles" by learning.
        loo: sum of log p(yᵢ | y₋ᵢ) over all observations.
        lfo: sum of log p(yᵢ | y₁, …, yᵢ₋₁) over the observations at the cuts.
    """

    evidence: float
    evidence_error: float
    evidence_kind: str
    evidence_behind: float
    evidence_behind_error: float
    loo: float
    loo_behind: float
    loo_behind_error: float
    lfo: float
    lfo_behind: float
    lfo_behind_error: float


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Models of one series, as `gv.compare` returns them.

    Attributes:
        rows: a `Row` for each model by its name, the highest evidence first.
        loo_values: log p(yᵢ | y₋ᵢ) of every observation, by model.
        lfo_values: log p(yᵢ | y₁, …, yᵢ₋₁) of the observations at the cuts, by model.
        lfo_times: the times of these.
        notes: what has to be known of single numbers, such as why an evidence is a bound only.
    """

    rows: dict[str, Row]
    loo_values: dict[str, np.ndarray]
    lfo_values: dict[str, np.ndarray]
    lfo_times: np.ndarray
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the numbers of every model by their names, as `pandas.DataFrame.from_dict(..., orient="index")` reads.

        Returns:
            A dictionary of dictionaries, in the order of the ranking.
        """
        return {name: row._asdict() for name, row in self.rows.items()}

    def __repr__(self) -> str:
        wide = max(5, *(len(name) for name in self.rows))
        n, k = (len(next(iter(v.values()))) for v in (self.loo_values, self.lfo_values))
        lines = [
            f"{'model':<{wide}}{'log evidence':>22}{'behind':>16}{f'LOO ({n})':>12}{'behind':>16}{f'LFO ({k})':>12}"
            f"{'behind':>16}"
        ]
        for name, r in self.rows.items():
            evidence = f"{r.evidence:.2f}" + (f" ± {r.evidence_error:.2f}" if r.evidence_kind != "bound" else " bound")
            cells = f"{name:<{wide}}{evidence:>22}{_behind(r.evidence_behind, r.evidence_behind_error):>16}"
            cells += f"{r.loo:>12.2f}{_behind(r.loo_behind, r.loo_behind_error):>16}"
            lines.append(cells + f"{r.lfo:>12.2f}{_behind(r.lfo_behind, r.lfo_behind_error):>16}")
        return "\n".join([*lines, *self.notes])


def _behind(value: float, error: float) -> str:
    if value == 0.0:
        return "–"
    return f"{value:.2f} ± {error:.2f}" if np.isfinite(error) else f"{value:.2f}"


class _Scored(NamedTuple):
    """What is computed for one model."""

    evidence: float
    error: float
    kind: str
    loo: np.ndarray
    lfo: np.ndarray
    notes: list[str]


def compare(fits: Mapping[Any, Any], *, key: Any = None, cuts: int = 10, progress: bool = True) -> Comparison:
    """Compare models that were fitted to the same series, by evidence and by how well they predict.

    The evidence is that of a fit with the objective "exact" or "particles"; else the estimate of `diagnose` where its
    verdict is to trust one; else the bound. Leave-one-out scores are predictions of each observation from all others,
    leave-future-out scores of some observations from all earlier ones. Both take the parameters of the fit, which has
    seen all observations, and Gaussian laws of the state.

    Args:
        fits: results of `gv.learn` or `gv.infer`, by name. Names become texts.
        key: a JAX random key for `diagnose`. Without one the evidence is the bound, unless learning found it.
        cuts: the largest number of leave-future-out scores, each of which is one inference; default 10.
        progress: whether to show the progress if it takes longer than two seconds; default True.

    Returns:
        The comparison, the model with the highest evidence first.

    Raises:
        ValueError: if there is no fit, if one is something else, or if the series differ.
        KeyboardInterrupt: on Ctrl-C. Its attribute `kept` is the comparison of the models that were done, if any.
    """
    fits, posts = _checked(fits)
    check_whole(cuts=cuts)
    if key is not None:
        check_draws(key)
    done: dict[str, _Scored] = {}
    with reporter(progress) as say:
        try:
            for i, (name, post) in enumerate(posts.items()):
                if say is not None:
                    say(f"comparing, model {i + 1} of {len(posts)}")
                done[name] = _scored(fits[name], post, None if key is None else jax.random.fold_in(key, i), cuts)
        except KeyboardInterrupt as interrupt:
            if done:
                interrupt.kept = _ranked(done, posts, cuts)  # pyright: ignore[reportAttributeAccessIssue]
                interrupt.add_note(
                    "compare was interrupted; the exception's attribute `kept` has the models done by then"
                )
            raise
    return _ranked(done, posts, cuts)


def _checked(fits: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fits and their posteriors by name, or raise a ValueError unless they are of one series."""
    if not isinstance(fits, Mapping) or not fits:
        raise ValueError(f"give a dictionary of fits by name, e.g. {{'linear': one, 'wells': other}}, got {fits!r}")
    named: dict[str, Any] = {}
    for name, fit in fits.items():
        if str(name) in named:
            raise ValueError(f"two fits are called {str(name)!r}: names are compared as texts; rename one of them")
        named[str(name)] = fit
    posts = {name: getattr(fit, "posterior", fit) for name, fit in named.items()}
    for name, post in posts.items():
        if not all(hasattr(post, part) for part in ("series", "moments", "target")):
            raise ValueError(f"{name!r} must be a result of gv.learn or gv.infer, got {type(named[name]).__name__}")
    (first, one), *others = posts.items()
    for name, post in others:
        for part in ("times", "values", "errors"):
            a, b = getattr(one.series, part), getattr(post.series, part)
            same = a is b or (a is not None and b is not None and np.array_equal(a, b, equal_nan=True))
            if not same:
                raise ValueError(
                    f"{first!r} and {name!r} are fits of different series: their {part} differ. Evidence and scores "
                    "can be compared for the same observations only; fit both to one series"
                )
    return named, posts


def _scored(fit: Any, post: Any, key: Any, cuts: int) -> _Scored:
    value, error, kind, notes = _evidence(fit, post, key)
    ahead = leave_future_out(post, cuts)
    if not ahead.converged.all():
        notes.append(f"{(~ahead.converged).sum()} of {len(ahead.index)} inferences for LFO have not converged")
    loo = leave_one_out(post)
    if not np.isfinite(loo).all():
        notes.append(f"LOO of {(~np.isfinite(loo)).sum()} observations is not known: without them q is no density")
    return _Scored(value, error, kind, loo, ahead.scores, notes)


def _evidence(fit: Any, post: Any, key: Any) -> tuple[float, float, str, list[str]]:
    """Return the log evidence, its error, how it was found, and notes."""
    found = getattr(fit, "evidence", None)
    if found is not None:
        return found.value, found.error, found.objective, []
    nothing = float("nan")
    if key is None:
        return post.elbo, nothing, "bound", []
    try:
        judged = post.diagnose(key=key)
    except ValueError as error:
        return post.elbo, nothing, "bound", [f"the evidence is the bound: {error}"]
    if judged.verdict in _TRUSTED:
        return judged.log_evidence, judged.standard_error, "corrected", []
    return post.elbo, nothing, "bound", [f"the evidence is the bound, since diagnose says {judged.verdict!r}"]


def _ranked(done: dict[str, _Scored], posts: dict[str, Any], cuts: int) -> Comparison:
    """Return the comparison of the models that are done."""
    order = sorted(done, key=lambda name: -done[name].evidence)
    top = done[order[0]]
    best = {part: max(done.values(), key=lambda s: getattr(s, part).sum()) for part in ("loo", "lfo")}

    def behind(scored: _Scored, part: str) -> tuple[float, float]:
        apart = getattr(best[part], part) - getattr(scored, part)
        return float(apart.sum()), float(np.sqrt(len(apart)) * apart.std(ddof=1)) if len(apart) > 1 else float("nan")

    rows = {}
    for name in order:
        s = done[name]
        rows[name] = Row(
            s.evidence, s.error, s.kind, top.evidence - s.evidence, float(np.hypot(top.error, s.error)),
            float(s.loo.sum()), *behind(s, "loo"), float(s.lfo.sum()), *behind(s, "lfo"),
        )  # fmt: skip
    series = next(iter(posts.values())).series
    return Comparison(
        rows,
        {name: done[name].loo for name in order},
        {name: done[name].lfo for name in order},
        np.array(series.times)[cut_indices(series, cuts)],
        tuple(f"{name}: {note}" for name in order for note in done[name].notes),
    )
