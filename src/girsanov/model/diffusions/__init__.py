"""The noise of the SDE: constant (`constant`), or of a size that depends on the state.

`state` has what noises that depend on the state have in common, `kinds` those whose coordinates of constant noise are
known in closed form, and `numeric` the one that is given by a function.
"""

from girsanov.model.diffusions.constant import FORMS, Diffusion, NoiseForm, as_matrix
from girsanov.model.diffusions.kinds import Bounded, Constant, Each, Power, Proportional, SquareRoot
from girsanov.model.diffusions.numeric import Scale
from girsanov.model.diffusions.state import StateDiffusion, check_inside

DIFFUSIONS = (Bounded, Constant, Each, Power, Proportional, Scale, SquareRoot)

__all__ = [
    "DIFFUSIONS",
    "FORMS",
    "Bounded",
    "Constant",
    "Diffusion",
    "Each",
    "NoiseForm",
    "Power",
    "Proportional",
    "Scale",
    "SquareRoot",
    "StateDiffusion",
    "as_matrix",
    "check_inside",
]
