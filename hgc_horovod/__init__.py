"""Hybrid gradient compression: sparsified, quantized, bit-packed gradients for Horovod.

This module needs NumPy alone. `hgc_horovod.torch` attaches to Horovod for PyTorch.
`hgc_horovod.mpi` reduces NumPy gradients over MPI. `methods` are the methods by name, `parts` what they are
composed of.
"""

from . import parts
from .codec import Codec, NonFiniteError
from .core import methods
from .core.method import Method
from .core.wire import PayloadError, inspect

__version__ = "0.1.0"
__all__ = ["Codec", "Method", "NonFiniteError", "PayloadError", "inspect", "methods", "parts"]
