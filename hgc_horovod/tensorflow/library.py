"""TensorFlow's operations on the native kernels (`csrc/tensorflow/`)."""

from __future__ import annotations

import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import tensorflow as tf


@functools.cache
def load() -> Any:
    """The module of operations. ImportError where they were not built, or for another TensorFlow."""
    path = Path(__file__).with_name(f"_ops{EXTENSION_SUFFIXES[0]}")
    try:
        return tf.load_op_library(str(path))
    except (OSError, tf.errors.NotFoundError) as error:
        raise ImportError(
            "hgc_horovod's TensorFlow operations were not built, or for another TensorFlow; with a C++17 "
            f"compiler and TensorFlow in place, install it again: pip install --no-build-isolation "
            f"--force-reinstall --no-deps hgc-horovod ({error})"
        ) from error
