"""The bounds of all series of a panel at one value of the shared parameters."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from girsanov.inference.status import Status
from girsanov.learning.inner import Peaks


class Step(NamedTuple):
    """All series at one θ: what `newton` calls an E-step.

    Attributes:
        elbo: the sum of the bounds, in nats.
        status: `BAD_START` where the bound of some series is not finite, else `CONVERGED`.
        peaks: the parameters of single series.
        grad: the gradient of the sum in θ.
        sites, eta: not used, but `newton` passes them on.
    """

    elbo: float
    status: Status
    peaks: Peaks
    grad: Float[np.ndarray, " P"]
    sites: Any = None
    eta: Any = None
