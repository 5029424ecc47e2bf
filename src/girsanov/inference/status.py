"""The statuses of a run of inference, and their messages."""

import enum


class Status(enum.IntEnum):
    """How a run ended; its name in lower case is the `status` of a posterior."""

    RUNNING = 0
    CONVERGED = 1
    MAX_ITERATIONS = 2
    STALLED = 3
    NOT_A_DENSITY = 4
    BAD_START = 5
    DIVERGED = 6
    ILL_CONDITIONED = 7
    QUADRATURE = 8
    BOUNDARY = 9

    @property
    def message(self) -> str:
        """A sentence on what the status means and what to do about it."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.RUNNING: "still running",
    Status.CONVERGED: "converged",
    Status.MAX_ITERATIONS: "the run stopped at max_iterations before it met its tolerance; raise max_iterations",
    Status.STALLED: (
        "no step raises the bound further, but the run has not met its tolerance: the quadrature, or in VDP the "
        "solver on this grid, is not accurate enough for it. The last good result is returned; compare it with one "
        "from more quadrature points, and with VDP use a smaller dt or solver='adjoint'"
    ),
    Status.NOT_A_DENSITY: (
        "the next step would have left q without a probability density (its precision matrix is not positive "
        "definite); the last good result is returned. Use a smaller rho, or safeguard=True"
    ),
    Status.DIVERGED: (
        "the fixed-point iteration diverged; the best result of the run is returned. Use a smaller omega, a smaller "
        "dt, solver='adjoint' or safeguard=True"
    ),
    Status.ILL_CONDITIONED: (
        "the scales of the model lie too far apart for double precision; the best result of the run is returned, but "
        "its digits are not reliable"
    ),
    Status.QUADRATURE: (
        "the run met its tolerance, but its quadrature rule does not resolve the drift, or the emission where that is "
        "not linear. The difference from a more accurate rule is too large"
    ),
    Status.BOUNDARY: (
        "the posterior comes close to an end of the states that the noise allows, where "
        "a Gaussian process cannot follow it: the result is not reliable there"
    ),
    Status.BAD_START: (
        "the starting point is not a probability density, or its bound is not finite; check that the drift is finite "
        "and the covariances are positive"
    ),
}
