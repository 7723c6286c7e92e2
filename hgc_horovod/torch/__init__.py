"""Hybrid gradient compression for PyTorch on Horovod.

import horovod.torch as hvd
import hgc_horovod.torch as hgc
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(),
    compression=hgc.Compression.hgc(model.named_parameters(), density=0.01, bits=4, momentum_from=optimizer,
                                    warmup_steps=1000))
"""

from ..agreement import CompressionError
from ..core import methods
from . import attach, elastic, hooks
from .compression import Compression
from .compressor import Compressor
from .policy import embeddings, output_layer

attach.register()
elastic.register()
hooks.register()

__all__ = ["Compression", "CompressionError", "Compressor", "embeddings", "methods", "output_layer"]
