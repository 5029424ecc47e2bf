"""Drifts f(x, t) of the latent process.

A drift is called with a state of shape (d,) and a scalar time, and returns an array of shape (d,). The parameters of a
drift are arrays, so that JAX can trace them and `learn` can change them.
"""

from girsanov.model.drifts.base import Drift, Sum
from girsanov.model.drifts.linear import Linear, OrnsteinUhlenbeck
from girsanov.model.drifts.mechanics import (
    ConstantVelocity,
    Duffing,
    HarmonicOscillator,
    IntegratedOU,
    Langevin,
    Matern,
)
from girsanov.model.drifts.network import MLP
from girsanov.model.drifts.scalar import Benes, DoubleWell, Logistic, Polynomial, Sine, SquareRoot
from girsanov.model.drifts.systems import FitzHughNagumo, Lorenz63, Lorenz96, LotkaVolterra, VanDerPol

DRIFTS: tuple[type[Drift], ...] = (
    OrnsteinUhlenbeck,
    Benes,
    DoubleWell,
    Sine,
    SquareRoot,
    Logistic,
    Polynomial,
    VanDerPol,
    LotkaVolterra,
    FitzHughNagumo,
    Lorenz63,
    Lorenz96,
    Langevin,
    ConstantVelocity,
    IntegratedOU,
    HarmonicOscillator,
    Duffing,
    Matern,
    Linear,
    MLP,
    Sum,
)

__all__ = [
    "DRIFTS",
    "MLP",
    "Benes",
    "ConstantVelocity",
    "DoubleWell",
    "Drift",
    "Duffing",
    "FitzHughNagumo",
    "HarmonicOscillator",
    "IntegratedOU",
    "Langevin",
    "Linear",
    "Logistic",
    "Lorenz63",
    "Lorenz96",
    "LotkaVolterra",
    "Matern",
    "OrnsteinUhlenbeck",
    "Polynomial",
    "Sine",
    "SquareRoot",
    "Sum",
    "VanDerPol",
]
