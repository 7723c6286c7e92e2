"""Builds the package and its native kernels; all metadata stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

# A plain C library, loaded through ctypes: no Python in it. Without a compiler the package works on NumPy.
# -ffp-contract=off: a fused multiply-add would round differently from the reference.
kernels = Extension(
    "hgc_horovod.kernels._hgc",
    sources=sorted(str(path) for path in Path("csrc").glob("*.cpp")),
    depends=sorted(str(path) for pattern in ("*.h", "*.inl") for path in Path("csrc").glob(pattern)),
    extra_compile_args=[
        "-std=c++17",
        "-O3",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fvisibility=hidden",
        "-Wno-maybe-uninitialized",
    ],
    extra_link_args=["-pthread"],
    language="c++",
    optional=True,
)

setup(ext_modules=[kernels])
