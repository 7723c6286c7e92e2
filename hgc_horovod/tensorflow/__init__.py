"""Hybrid gradient compression for TensorFlow on Horovod.

import horovod.tensorflow as hvd
import hgc_horovod.tensorflow as hgc
compression = hgc.Compression.hgc(model.trainable_variables, density=0.01, bits=4)
tape = hvd.DistributedGradientTape(tape, compression=compression)
"""

from ..core import methods
from . import attach
from .compression import Compression
from .compressor import Compressor

attach.register()

__all__ = ["Compression", "Compressor", "methods"]
