"""Evaluation of methods: splits of a series, scores over folds, and sweeps of many tasks that can be interrupted."""

from girsanov.evaluation.folds import (
    Score,
    Split,
    block_folds,
    chunk_folds,
    cross_validate,
    random_folds,
    score,
    settings_grid,
)
from girsanov.evaluation.sweep import load_results, sweep
from girsanov.evaluation.tasks import Result, Task

__all__ = [
    "Result",
    "Score",
    "Split",
    "Task",
    "block_folds",
    "chunk_folds",
    "cross_validate",
    "load_results",
    "random_folds",
    "score",
    "settings_grid",
    "sweep",
]
