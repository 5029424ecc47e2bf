"""Bayesian inference and learning in latent diffusion processes."""

from typing import TYPE_CHECKING, Any

# The first of these makes the command react to Ctrl-C, so they come first: the imports after them take seconds.
from girsanov._core import interrupt  # noqa: F401
from girsanov._core.collection import no_collection

with no_collection():
    # JAX takes up to three times as long to import from deep within other imports: Python 3.11 and later allocate and
    # free a piece of the stack at every call that crosses its end, and JAX reads the metadata of every package.
    import jax  # noqa: F401

    # isort: split
    from girsanov import diffusions, likelihoods
    from girsanov.data.inputs import Inputs
    from girsanov.data.panel import Panel
    from girsanov.data.series import TimeSeries
    from girsanov.inference.cvi_dp import CVIDP
    from girsanov.inference.functional import Solution, bound, prepare, solve
    from girsanov.inference.status import Status
    from girsanov.inference.vdp import VDP
    from girsanov.model.drifts import (
        MLP,
        Benes,
        ConstantVelocity,
        DoubleWell,
        Duffing,
        FitzHughNagumo,
        HarmonicOscillator,
        IntegratedOU,
        Langevin,
        Linear,
        Logistic,
        Lorenz63,
        Lorenz96,
        LotkaVolterra,
        Matern,
        OrnsteinUhlenbeck,
        Polynomial,
        Sine,
        SquareRoot,
        Sum,
        VanDerPol,
    )
    from girsanov.model.model import GaussianState, Model
    from girsanov.model.quadrature import Cubature, GaussHermite, MonteCarlo
    from girsanov.model.ready import matern, start_emission
    from girsanov.model.simulate import simulate
    from girsanov.result.filtered import Filtered, filter
    from girsanov.result.fit import Fit
    from girsanov.result.infer import infer
    from girsanov.result.loading import load
    from girsanov.result.panel_fit import PanelFit
    from girsanov.result.panel_posterior import PanelPosterior
    from girsanov.result.posterior import Posterior

if TYPE_CHECKING:
    from girsanov import baselines
    from girsanov.learning.learn import learn
    from girsanov.learning.sample_parameters import sample_parameters
    from girsanov.result.comparison import compare

__version__ = "0.1.0"

# Parts whose libraries take long to import are imported when they are first used.
_LATER = {
    "compare": "girsanov.result.comparison",
    "learn": "girsanov.learning.learn",
    "sample_parameters": "girsanov.learning.sample_parameters",
}
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
    "ConstantVelocity",
    "Cubature",
    "DoubleWell",
    "Duffing",
    "Filtered",
    "Fit",
    "FitzHughNagumo",
    "GaussHermite",
    "GaussianState",
    "HarmonicOscillator",
    "Inputs",
    "IntegratedOU",
    "Langevin",
    "Linear",
    "Logistic",
    "Lorenz63",
    "Lorenz96",
    "LotkaVolterra",
    "Matern",
    "Model",
    "MonteCarlo",
    "OrnsteinUhlenbeck",
    "Panel",
    "PanelFit",
    "PanelPosterior",
    "Polynomial",
    "Posterior",
    "Sine",
    "Solution",
    "SquareRoot",
    "Status",
    "Sum",
    "TimeSeries",
    "VanDerPol",
    "baselines",
    "bound",
    "compare",
    "diffusions",
    "filter",
    "infer",
    "learn",
    "likelihoods",
    "load",
    "matern",
    "prepare",
    "sample_parameters",
    "simulate",
    "solve",
    "start_emission",
]
