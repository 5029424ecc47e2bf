"""`Evidence`, what a fit beyond the bound knows: the log evidence at its parameters, and the bias of the bound."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What `gv.learn(..., objective="exact")` or `objective="particles"` found beside the parameters.

    Attributes:
        objective: "exact" or "particles".
        value: the log evidence log p(y) at the fitted parameters, in nats.
        error: its error in nats: of quadrature if exact, of Monte Carlo if by particles.
        variational: the parameters that maximise the bound instead, by entry.
        bias: what the bound's maximum is off by, the variational minus the fitted parameters in standard errors of the
            latter, by entry; empty where the log evidence does not curve downwards in every direction.
        monte_carlo: Monte Carlo errors of the fitted parameters, in the same standard errors; empty if exact.
    """

    objective: str
    value: float
    error: float
    variational: dict[str, float]
    bias: dict[str, float]
    monte_carlo: dict[str, float]

    def sentence(self) -> str:
        """Return the log evidence and the largest bias as text."""
        text = f"the log evidence is {self.value:.6g} ± {self.error:.1g} nats"
        if not self.bias:
            return text
        worst = max(self.bias, key=lambda name: abs(self.bias[name]))
        return f"{text}; the bound's {worst} is {self.bias[worst]:+.2g} standard errors off"

    def stored(self) -> dict[str, Any]:
        """Return the attributes as a dictionary, from which `Evidence(**stored)` makes the same again."""
        return dataclasses.asdict(self)
