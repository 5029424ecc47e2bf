"""How many threads to use: compiled code runs outside the interpreter's lock."""

import os


def threads(most: int) -> int:
    """Return the number of threads for `most` independent pieces of work.

    There are as many as OMP_NUM_THREADS says, which is one in a worker of a sweep, or as many as processors.
    """
    allowed = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, min(most, int(allowed) if allowed.isdigit() else os.cpu_count() or 1))
