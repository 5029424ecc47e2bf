"""What is kept of `sample_parameters` when it is stopped, so that the same call goes on from there.

The state of a chain has its random numbers with it, so that a run that was stopped ends with the draws of
one that was not.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from girsanov.learning.parameters import entries, leaves_by_path
from girsanov.learning.target import Reference, Target


@dataclasses.dataclass(repr=False)
class PartialDraws:
    """What `gv.sample_parameters` had done when it was stopped; `resume=` goes on from it.

    Attributes:
        call: what the call that goes on has to have in common with this one, by name.
        total: number of draws of all chains, warm-up included.
        reference: the mode and the solutions around it, once they were found.
        chains: start, state and records of the draws of each chain, by its number.
        failed: number of inferences that failed.
        rows: what was computed of each draw after all chains had ended, by its number.
    """

    call: dict[str, Any]
    total: int
    reference: Reference | None = None
    chains: dict[int, tuple] = dataclasses.field(default_factory=dict)
    failed: int = 0
    rows: dict[int, list] = dataclasses.field(default_factory=dict)

    @property
    def draws(self) -> int:
        """Number of draws of all chains so far, warm-up included."""
        return sum(len(records[0]) for _, _, records in list(self.chains.values()))

    def snapshot(self) -> "PartialDraws":
        """Return a copy that threads which are still at work do not change."""
        return dataclasses.replace(self, chains=dict(self.chains), rows=dict(self.rows))

    def __repr__(self) -> str:
        weighed = f", predictions from {len(self.rows)}" if self.rows else ""
        return f"PartialDraws({self.draws} of {self.total} draws, warm-up included{weighed})"


def call_of(target: Target, priors: Any, data: str, key: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what two calls must have in common for one to go on from the other."""
    model = {f"model: {path}": np.asarray(value).tolist() for path, value in leaves_by_path(target.model).items()}
    grid = target.problem.data.grid.times.tobytes()
    prior = {f"the prior of {path}": repr((type(p).__name__, jax.tree.leaves(p))) for path, p in priors.items()}
    kinds = {f"the constraint of {p.path}": repr(p.kind) for p in target.spec}
    how = {"method": repr(target.problem.method), "trainable": entries(target.spec)}
    return {
        "series": data, "the grid": grid, "key": np.asarray(jax.random.key_data(key)).tolist(), **how, **kinds,
        **settings, **prior, **model,
    }  # fmt: skip


def tell(interrupt: KeyboardInterrupt, kept: PartialDraws) -> None:
    """Put what was done into the attribute `kept` of Ctrl-C's exception, and say so."""
    if not kept.chains:
        interrupt.add_note("sample_parameters was interrupted before the first draw: there is nothing to keep")
        return
    interrupt.kept = kept  # pyright: ignore[reportAttributeAccessIssue]
    interrupt.add_note(
        f"sample_parameters was interrupted; the exception's attribute `kept` is {kept!r}, and the same call with "
        "resume= goes on from it"
    )


def check_resume(resume: Any, call: dict[str, Any]) -> None:
    """Raise a ValueError unless `resume` is what a call with these arguments left."""
    if not isinstance(resume, PartialDraws):
        raise ValueError(
            "resume must be the attribute `kept` of the KeyboardInterrupt that ended gv.sample_parameters, got "
            f"{type(resume).__name__}"
        )
    other = [name for name in call | resume.call if call.get(name) != resume.call.get(name)]
    if other:
        raise ValueError(
            f"resume= goes on with the call that was stopped, but {other[0]} is another one: give the same arguments, "
            "or leave resume= out"
        )
