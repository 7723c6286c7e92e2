"""The array types that the core passes around."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # a payload, or a part of one
Codes = NDArray[np.unsignedinteger[Any]]  # quantized values, or bit fields
Floats = NDArray[np.float32]  # gradients, residuals, reconstructed values
Indices = NDArray[np.int64]  # positions in the flattened tensor, ascending
Json = dict[str, Any]
