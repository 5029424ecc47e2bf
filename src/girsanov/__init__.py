"""Bayesian inference and learning in latent diffusion processes."""

from girsanov import likelihoods
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
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.infer import infer
from girsanov.model import GaussianState, Model
from girsanov.posterior import Posterior
from girsanov.quadrature import Cubature, GaussHermite, MonteCarlo
from girsanov.series import TimeSeries
from girsanov.simulate import simulate
from girsanov.storage import load

__version__ = "0.1.0"

__all__ = [
    "CVIDP",
    "MLP",
    "Benes",
    "Cubature",
    "DoubleWell",
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
    "infer",
    "likelihoods",
    "load",
    "simulate",
]
