"""How a run ended."""

import enum


class Status(enum.IntEnum):
    RUNNING = 0
    CONVERGED = 1
    MAX_ITERATIONS = 2
    STALLED = 3
    NOT_A_DENSITY = 4
    BAD_START = 5
    DIVERGED = 6
    ILL_CONDITIONED = 7
    QUADRATURE = 8

    @property
    def message(self) -> str:
        return _MESSAGES[self]


_MESSAGES = {
    Status.RUNNING: "still running",
    Status.CONVERGED: "converged",
    Status.MAX_ITERATIONS: "stopped at max_iterations before the tolerance was met; raise max_iterations",
    Status.STALLED: (
        "no step raises the bound further although its equations are not yet solved: the quadrature, or in VDP the "
        "solver on this grid, does not resolve them to the tolerance asked for. The last good result is returned; "
        "check it against more quadrature points, and VDP against a smaller dt or solver='adjoint'"
    ),
    Status.NOT_A_DENSITY: (
        "the next step left the set of probability densities (its precision is not positive definite); the last good "
        "result is returned. Use a smaller rho, or safeguard=True"
    ),
    Status.DIVERGED: (
        "the fixed-point iteration diverged; the best result met is returned. Use a smaller omega, a smaller dt, "
        "solver='adjoint' or safeguard=True"
    ),
    Status.ILL_CONDITIONED: (
        "the scales of the model lie too far apart for double precision; the best result met is returned, and its "
        "digits cannot be relied on"
    ),
    Status.QUADRATURE: (
        "the run met its tolerance, but its rule of quadrature does not resolve the drift: use "
        "quadrature=gv.GaussHermite(5), or gv.MonteCarlo in many dimensions. A richer rule disagrees"
    ),
    Status.BAD_START: "the starting point is not a probability density or its bound is not finite",
}
