"""Builds the package and its native kernels; all metadata stands in pyproject.toml."""

import os
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS, OPERATIONS = "hgc_horovod.kernels._hgc", "hgc_horovod.tensorflow._ops"
FLAGS = ["-std=c++17", "-fvisibility=hidden"]


def sources(directory: str) -> dict[str, list[str]]:
    paths = {
        pattern: sorted(map(str, Path(directory).glob(pattern))) for pattern in ("*.cpp", "*.h", "*.inl")
    }
    return {"sources": paths["*.cpp"], "depends": [*paths["*.h"], *paths["*.inl"], "csrc/hgc.h"]}


# A plain C library, loaded through ctypes: no Python in it. Without a compiler the package works on NumPy.
# -ffp-contract=off: a fused multiply-add would round differently from the reference.
kernels = Extension(
    KERNELS,
    **sources("csrc"),
    extra_compile_args=[*FLAGS, "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-maybe-uninitialized"],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,
)

# TensorFlow's operations, which call that library; where TensorFlow is not there when this is built, the
# package has none.
operations = Extension(OPERATIONS, **sources("csrc/tensorflow"), language="c++", optional=True)


class BuildExtensions(build_ext):
    def build_extension(self, extension: Extension) -> None:
        if extension is operations:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # or it tells of this machine's processor
            import tensorflow as tf

            # Warnings in TensorFlow's own headers are not ours.
            flags = [flag.replace("-I", "-isystem", 1) for flag in tf.sysconfig.get_compile_flags()]
            extension.extra_compile_args = [*flags, *FLAGS, "-O2", "-Wno-deprecated-declarations"]
            library = Path(self.get_ext_fullpath(KERNELS))
            extension.extra_link_args = [
                f"-L{library.parent}",
                f"-l:{library.name}",
                "-Wl,-rpath,$ORIGIN/../kernels",
                *tf.sysconfig.get_link_flags(),
            ]
        super().build_extension(extension)


extensions = [kernels, operations] if find_spec("tensorflow") else [kernels]
setup(ext_modules=extensions, cmdclass={"build_ext": BuildExtensions})
