"""Step sizes that the paper states for its two methods (appendix, synthetic experiments)."""

RHO = {"ou": 1.0, "benes": 1.0, "double_well": 0.5, "sine": 1.0, "sqrt": 1.0, "van_der_pol": 0.5}
_OMEGA = {
    "ou": {0.01: 0.1, 0.005: 0.5, 0.001: 1.0},
    "benes": {0.01: 0.001, 0.005: 0.001, 0.001: 0.1},
    "double_well": 1e-3,
    "sine": 1e-5,
    "sqrt": 1e-5,
    "van_der_pol": 1e-3,
}


def omega(process: str, dt: float) -> float:
    """VDP's step; between the paper's own step sizes of the grid, that of the next finer one it states."""
    stated = _OMEGA[process]
    if isinstance(stated, float):
        return stated
    return stated[max((s for s in stated if s <= dt * (1 + 1e-9)), default=min(stated))]
