"""Run on every rank: `python tests/tensorflow/ranks DIRECTORY [PART OF A NAME]`. Executes all cases, or those
of such a name; see tests/cases.py."""

from __future__ import annotations

import sys

import horovod.tensorflow as hvd
import tensorflow as tf

from tests.cases import execute
from tests.tensorflow.ranks.cases import CASES


def main(directory: str, part: str = "") -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    cases = {name: case for name, case in CASES.items() if part in name}
    execute(cases, directory, hvd.rank(), lambda name: hvd.allreduce(tf.zeros(1), name=name))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
