"""Bayesian inference and learning in latent diffusion processes."""

from typing import TYPE_CHECKING, Any

# The command's Ctrl-C comes first: the imports after it take seconds.
from girsanov import _interrupt, likelihoods  # noqa: F401
from girsanov.drifts import (
    MLP,
    Benes,
    DoubleWell,
    Linear,
    OrnsteinUhlenbeck,
    Sine,
    SquareRoot,
    VanDerPol,
)
from girsanov.fit import Fit
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.infer import infer
from girsanov.inference.vdp import VDP
from girsanov.model import GaussianState, Model
from girsanov.posterior import Posterior
from girsanov.quadrature import Cubature, GaussHermite, MonteCarlo
from girsanov.series import TimeSeries
from girsanov.simulate import simulate
from girsanov.storage import load

if TYPE_CHECKING:
    from girsanov import baselines
    from girsanov.learning.learn import learn

__version__ = "0.1.0"

# Parts whose libraries take long to import are loaded when they are first asked for.
_LATER = {"learn": "girsanov.learning.learn"}
_PARTS = ("baselines",)


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PARTS:
        return importlib.import_module(f"girsanov.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'girsanov' has no attribute {name!r}")


__all__ = [
    "CVIDP",
    "MLP",
    "VDP",
    "Benes",
    "Cubature",
    "DoubleWell",
    "Fit",
    "GaussHermite",
    "GaussianState",
    "Linear",
    "Model",
    "MonteCarlo",
    "OrnsteinUhlenbeck",
    "Posterior",
    "Sine",
    "SquareRoot",
    "TimeSeries",
    "VanDerPol",
    "baselines",
    "infer",
    "learn",
    "likelihoods",
    "load",
    "simulate",
]
