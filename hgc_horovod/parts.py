"""The parts that methods are made of, in one place: `Method(parts.TopK(0.01), parts.Uniform(4), …)`.

`docs/methods.md` tells how to compose a method of them, and how to write and `register` a part of one's own.
"""

from .core.bucketed import Bucketed, DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from .core.budget import Budget
from .core.chance import BinMax, Proportional
from .core.context import Context, Peers
from .core.controllers import Controller, MeanToDeviation, RelativeSize
from .core.dense import DenseRule
from .core.feedback import Feedback
from .core.loss_learning import LossLearning
from .core.matrices import Factors, LowRank, RandomK, SpectralAtoms
from .core.method import register
from .core.norm_bits import NormBits
from .core.partition import EntropyPartition
from .core.quantize import BFloat16, Float32, Geometric, Quantizer, SignMean
from .core.schedule import Warmup
from .core.select import All, Selector, Taking, TopK
from .core.thresholds import AdaptedThreshold, FixedThreshold, SampledThreshold

__all__ = [
    "AdaptedThreshold",
    "All",
    "BFloat16",
    "BinMax",
    "Bucketed",
    "Budget",
    "Context",
    "Controller",
    "DenseRule",
    "DynamicTree",
    "EntropyPartition",
    "Factors",
    "Feedback",
    "FixedThreshold",
    "Float32",
    "Geometric",
    "LossLearning",
    "LowRank",
    "MeanToDeviation",
    "NormBits",
    "Peers",
    "PowerOfTwo",
    "Proportional",
    "Quantizer",
    "RandomK",
    "RelativeSize",
    "SampledThreshold",
    "Selector",
    "Sign",
    "SignMean",
    "SpectralAtoms",
    "Taking",
    "TopK",
    "TwoMeans",
    "Uniform",
    "Warmup",
    "register",
]
