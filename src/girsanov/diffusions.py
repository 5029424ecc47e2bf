"""Noises whose size depends on the state, under their public name."""

from girsanov.model.diffusions import Bounded, Each, Power, Proportional, Scale, SquareRoot, StateDiffusion

__all__ = ["Bounded", "Each", "Power", "Proportional", "Scale", "SquareRoot", "StateDiffusion"]
