"""What a fit keeps of its making, so that more can be asked of it: profiles, and how well its parameters are told."""

import dataclasses
from typing import Any

from girsanov._core.precision import float64
from girsanov._core.progress import reporter
from girsanov.learning.identifiability import directions
from girsanov.learning.newton import Summit
from girsanov.learning.profile import profile
from girsanov.result.directions import Direction
from girsanov.result.profile import Profile


@dataclasses.dataclass(frozen=True)
class Session:
    """The problem, the settings and the summit of a fit.

    Attributes:
        learner: the `Learner` of the fit.
        summit: where learning ended, with minus the Hessian there.
        tolerance: of learning, in nats.
    """

    learner: Any
    summit: Summit
    tolerance: float

    @float64
    def profile(self, name: str, level: float, progress: bool) -> Profile:
        """Compute the profile of the bound along one entry."""
        with reporter(progress) as say:
            learner = dataclasses.replace(self.learner, say=say and (lambda text: say(f"profile of {name}: {text}")))
            return profile(learner, self.summit, name, level, self.tolerance)

    @float64
    def directions(self) -> tuple[Direction, ...]:
        """Return the principal directions of the curvature at the maximum."""
        return directions(self.learner.spec, self.summit.point.theta, self.summit.precision)
