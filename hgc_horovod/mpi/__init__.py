"""Hybrid gradient compression over MPI, for NumPy gradients and without Horovod.

from mpi4py import MPI
import hgc_horovod.mpi as hgc
with hgc.Reducer(MPI.COMM_WORLD, hgc.methods.hgc(density=0.01, bits=4), {"weight": (784, 10)}) as reducer:
    mean = reducer.allreduce("weight", gradient)
"""

from ..agreement import CompressionError
from ..core import methods
from .reducer import Reducer
from .requests import Request

__all__ = ["CompressionError", "Reducer", "Request", "methods"]
