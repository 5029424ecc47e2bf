"""The array type used in annotations: a JAX array or a NumPy array.

jaxtyping checks shapes and dtypes while the tests run. Static type checkers know neither; for them an array is `Any`.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    Array = Any
else:
    Array = jax.Array | np.ndarray
