"""The named methods, each a composition of the parts in `hgc_horovod.core`."""

from .adaptive import adaqs, budget, dqsgd, mqgrad, oland_raj
from .hybrid import dense, hgc
from .matrix import atomo, powersgd
from .quantized import ef_signsgd, eightbit, natural, onebit, qsgd, signsgd, terngrad
from .sparse import adacomp, aiot_partition, dgc, gradient_dropping, memsgd, strom, wangni

__all__ = [
    "adacomp",
    "adaqs",
    "aiot_partition",
    "atomo",
    "budget",
    "dense",
    "dgc",
    "dqsgd",
    "ef_signsgd",
    "eightbit",
    "gradient_dropping",
    "hgc",
    "memsgd",
    "mqgrad",
    "natural",
    "oland_raj",
    "onebit",
    "powersgd",
    "qsgd",
    "signsgd",
    "strom",
    "terngrad",
    "wangni",
]
