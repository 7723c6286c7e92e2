"""What the tests of the core share: bit widths, tensors, methods and comparisons."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hgc_horovod import Codec, methods
from hgc_horovod.core.method import Method

from . import slow

BITS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
TINY = 2.0**-149  # the smallest denormal of float32
LARGEST = float(np.finfo(np.float32).max)
FLAGS = (False, True)
MOMENTA = [{}, *({"momentum": 0.9, "nesterov": n, "masking": m} for n, m in product(FLAGS, FLAGS))]
EPS = 2.0**-24  # half a unit in the last place of float32, relative


def tensors(min_size: int = 0, max_size: int = 40, limit: float = LARGEST) -> st.SearchStrategy[np.ndarray]:
    """Finite float32 arrays with zeros, denormals, ties and the whole range of magnitudes up to `limit`."""
    limit = struct.unpack("<f", struct.pack("<f", limit))[0]
    floats = st.floats(-limit, limit, width=32, allow_subnormal=True)
    ties = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, TINY, -TINY])
    return arrays.arrays(np.float32, st.integers(min_size, max_size), elements=ties | floats)


def name(arguments: dict) -> str:
    """The flags that are set, as a test's name."""
    return " ".join(key for key, value in arguments.items() if value) or "plain"


def gaussian(n: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def hybrid(density: float = 0.1, bits: int = 4, **arguments: object) -> Method:
    """The hybrid method for small tensors."""
    return methods.hgc(density, bits, min_elements=1, min_ndim=1, **arguments)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in dtype, shape and every bit, so that -0 differs from 0."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def snapshot(codec: Codec) -> tuple[int, bytes, bytes | None]:
    """Every bit of a codec's state."""
    return codec.step, codec.residual.tobytes(), None if codec.momentum is None else codec.momentum.tobytes()


def as_bytes(payload: bytes) -> np.ndarray:
    return np.frombuffer(payload, np.uint8)


@st.composite
def payload_parts(draw: st.DrawFn, max_n: int = 60) -> slow.Parts:
    """A payload's parts as an encoder of any bits writes them, with all or some of the slots in use."""
    n = draw(st.integers(0, 12) | st.integers(0, max_n))
    k = draw(st.integers(min(n, 1), n) | st.just(n))
    bits = draw(st.sampled_from(BITS))
    value_kind = {32: 0, 16: 1, 1: 2}.get(bits, 3)
    if k == n and value_kind < 2:
        positions, kept = range(n), draw(tensors(n, n)).tolist()
    else:
        positions = sorted(draw(st.sets(st.integers(0, max(n - 1, 0)), max_size=k)))
        kept = [v or 1.0 for v in draw(tensors(len(positions), len(positions))).tolist()]
    codes, scales = slow.quantize(kept, bits)
    return slow.Parts(
        draw(st.sampled_from([0, 1])),
        value_kind,
        bits,
        n,
        k,
        tuple(slow.float_bits(s) for s in scales),
        tuple(positions),
        tuple(codes),
    )
