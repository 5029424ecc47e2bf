"""A model as lines of LaTeX: those of its equations, or else those of its drift, noise, observations and start."""

from typing import Any

import numpy as np

from girsanov.model.diffusions import StateDiffusion
from girsanov.model.model import GaussianState, Model

_OSCILLATOR = r"dx = v\,dt, \quad dv = "
# f(x) of every drift of the library that has a formula; those of positions and velocities state both lines.
_DRIFTS = {
    "OrnsteinUhlenbeck": r"f(x) = -\mathrm{decay}\,(x - \mathrm{mean})",
    "Linear": r"f(x) = A\,x + b",
    "Benes": r"f(x) = \mathrm{scale}\,\tanh x",
    "DoubleWell": r"f(x) = \mathrm{scale}\;x\,(\mathrm{well} - x^2)",
    "Sine": r"f(x) = \mathrm{scale}\,\sin(x - \mathrm{phase})",
    "SquareRoot": r"f(x) = \sqrt{\mathrm{scale}\,|x|}",
    "Logistic": r"f(x) = \mathrm{rate}\;x\left(1 - \frac{x}{\mathrm{capacity}}\right)",
    "Polynomial": r"f(x) = \sum_k \mathrm{coefficients}_k\,x^k",
    "VanDerPol": r"f(x) = \mathrm{rate}\left(\mathrm{damping}\left(x_1 - \frac{x_1^3}{3} - x_2\right),\; "
    r"\frac{x_1}{\mathrm{damping}}\right)",
    "LotkaVolterra": r"f(x) = (\mathrm{growth}\,x_1 - \mathrm{predation}\,x_1 x_2,\; \mathrm{conversion}\,x_1 x_2 - "
    r"\mathrm{death}\,x_2)",
    "FitzHughNagumo": r"f(x) = \left(x_1 - \frac{x_1^3}{3} - x_2 + \mathrm{current},\; "
    r"\frac{x_1 + a - b\,x_2}{\mathrm{tau}}\right)",
    "Lorenz63": r"f(x) = (\sigma\,(x_2 - x_1),\; x_1 (\rho - x_3) - x_2,\; x_1 x_2 - \beta\,x_3)",
    "Lorenz96": r"f_i(x) = (x_{i+1} - x_{i-2})\,x_{i-1} - x_i + \mathrm{forcing}",
    "Langevin": rf"{_OSCILLATOR}(\mathrm{{force}}(x, t) - \mathrm{{friction}}\,v)\,dt",
    "ConstantVelocity": rf"{_OSCILLATOR}L\,d\beta",
    "IntegratedOU": rf"{_OSCILLATOR}-\mathrm{{decay}}\,v\,dt",
    "HarmonicOscillator": rf"{_OSCILLATOR}(-\mathrm{{frequency}}^2 x - \mathrm{{damping}}\,v)\,dt",
    "Duffing": rf"{_OSCILLATOR}(-\mathrm{{damping}}\,v - \mathrm{{linear}}\,x - \mathrm{{cubic}}\,x^3 + "
    r"\mathrm{amplitude}\cos(\mathrm{frequency}\,t))\,dt",
}
_LAWS = {
    "Gaussian": r"\mathcal{N}(z, R)",
    "StudentT": r"z + \mathrm{scale}\; t_{\mathrm{df}}",
    "Censored": r"\mathcal{N}(z, R)\text{ between limits}",
    "Poisson": r"\mathrm{Poisson}(\mathrm{exposure}\; e^{z})",
    "NegativeBinomial": r"\mathrm{NegBin}(e^{z}, \mathrm{dispersion})",
    "Binomial": r"\mathrm{Binomial}(\mathrm{trials}, 1/(1 + e^{-z}))",
    "Bernoulli": r"\mathrm{Bernoulli}(1/(1 + e^{-z}))",
    "Ordinal": r"\mathrm{Ordinal}(z; \mathrm{cutpoints})",
    "Gamma": r"\mathrm{Gamma}(\text{mean }e^{z}, \mathrm{shape})",
    "LogNormal": r"\mathrm{LogNormal}(z, R)",
    "StochasticVolatility": r"\mathcal{N}(0, e^{z})",
}


def model_latex(model: Model) -> list[str]:
    """Return the model as lines of LaTeX.

    Args:
        model: the model.

    Returns:
        The lines: of a model of equations one for each state and output, of others dx, f, y and the start.
    """
    if model.equations is not None:
        from girsanov.model.equations import latex

        return latex(model.equations.statement)
    noise = r"L(x)\,d\beta" if isinstance(model.noise, StateDiffusion) else r"L\,d\beta, \quad L L^{\top} = Q"
    lines = [rf"dx = f(x, t)\,dt + {noise}"]
    known = _DRIFTS.get(type(model.drift).__name__)
    if type(model.drift).__name__ == "OrnsteinUhlenbeck" and model.drift.mean is None:  # pyright: ignore
        known = r"f(x) = -\mathrm{decay}\,x"
    if known is not None:
        lines.append(known)
    parts = getattr(model.likelihood, "parts", None)
    laws = [(None, model.likelihood)] if parts is None else list(enumerate(parts, 1))
    z = _emission(model)
    for i, part in laws:
        law = _LAWS.get(type(part).__name__, r"p(y \mid z)")
        lines.append(rf"y{'' if i is None else f'_{{{i}}}'} \sim {law}{z if i in (None, 1) else ''}")
    lines.append(r"x(t_0) \sim " + (r"\mathcal{N}(m_0, S_0)" if _given_start(model) else r"\text{stationary law}"))
    return lines


def _emission(model: Model) -> str:
    if not model.observation.is_linear:
        return r", \quad z = g(x, t)"
    if model.observation.is_direct:
        return r", \quad z = x"
    return r", \quad z = H x" + ("" if model.offset is None else " + c")


def _given_start(model: Model) -> bool:
    return isinstance(model.initial, GaussianState)


def values_of(model: Model) -> dict[str, Any]:
    """Return the numbers of a model by the names that users know, in order: drift, noise, observation, start."""
    if model.equations is not None:
        return {name: np.asarray(value) for name, value in model.equations.values.items()}
    found: dict[str, Any] = {}
    for room, part in (("drift", model.drift), ("likelihood", model.likelihood)):
        _collect(room, part, found)
    if isinstance(model.noise, StateDiffusion):
        _collect("diffusion", model.noise, found)
    else:
        found["diffusion Q"] = np.asarray(model.noise.Q)
    if model.observation.is_linear and not model.observation.is_direct:
        found["emission H"] = np.asarray(model.observation.turned(np.eye(model.dim))).T
    if model.offset is not None:
        found["offset c"] = np.asarray(model.offset)
    if isinstance(model.initial, GaussianState):
        found |= {"initial mean": np.asarray(model.initial.mean), "initial covariance": np.asarray(model.initial.cov)}
    return found


def _collect(name: str, part: Any, found: dict[str, Any]) -> None:
    parts = getattr(part, "parts", None)
    if isinstance(parts, tuple):
        for i, one in enumerate(parts):
            _collect(f"{name}[{i}]", one, found)
        return
    for key, value in getattr(part, "__dict__", {}).items():
        if isinstance(value, float | int | np.ndarray) and not isinstance(value, bool):
            found[f"{name}.{key}"] = np.asarray(value)
