"""The array type of annotations: JAX's arrays on the device, NumPy's on the host.

Shapes and dtypes are checked when tests run; a static checker knows neither, so to it an array is anything.
"""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    Array = Any
else:
    Array = jax.Array | np.ndarray
