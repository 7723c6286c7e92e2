"""What the tests of the core share: bit widths, tensors, methods and comparisons."""

from __future__ import annotations

import struct
from itertools import product

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hgc_horovod import Codec, methods
from hgc_horovod.core.bucketed import DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from hgc_horovod.core.matrices import Factors
from hgc_horovod.core.method import Method
from hgc_horovod.core.quantize import Quantizer, for_bits
from hgc_horovod.core.wire import METHOD_NAMES

from . import slow, slow_dense
from .slow_numbers import random_words

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


def quantizer_of(parts: slow.Parts) -> Quantizer:
    """The quantizer that a payload of these parts names."""
    kind, bits, word = parts.value_kind, parts.bits, (*parts.scales, 0)[0]
    if kind < 4:
        return for_bits(bits)
    makers = {
        4: lambda: Uniform(bits, bucket=word),
        5: lambda: Sign(bucket=word),
        6: TwoMeans,
        7: lambda: DynamicTree(bucket=word),
        8: PowerOfTwo,
        9: lambda: Factors(rows=word),
    }
    return makers[kind]()


def patterns(words: tuple[int, ...]) -> np.ndarray:
    """float32 of these bit patterns."""
    return np.array(words, np.uint32).view(np.float32)


def small_parts(
    kind: int,
    bits: int,
    values: list[float],
    k: int,
    size: int = 0,
    notes: tuple[float, ...] = (),
) -> slow.Parts:
    """The parts of a payload of a kind from 4 to 8, of the k largest values or of all; `size` of buckets."""
    positions = list(range(k)) if k == len(values) else slow.top_k(values, k)
    kept = [values[p] for p in positions]
    codes, scales = slow_dense.quantize(kind, bits, kept, random_words(len(kept)), size)
    scales += [0] * (slow.scale_count(kind, k, size) - len(scales))
    told = tuple(slow.float_bits(note) for note in notes)
    return slow.Parts(7, kind, bits, len(values), k, tuple(scales), tuple(positions), tuple(codes), told)


# The last three as the first of the scales, float32 as they are: no numbers, and an infinity.
BUCKET_SIZES = (0, 1, 2, 3, 5, 512, 2**31 - 1, 0x7F800001, 0x7F800000)


@st.composite
def payload_parts(draw: st.DrawFn, max_n: int = 60) -> slow.Parts:
    """A payload's parts as an encoder of any kind writes them, with all or some of the slots in use."""
    value_kind = draw(st.sampled_from(range(10)))
    bits = draw(st.sampled_from(list(slow.BITS[value_kind])))
    n = draw(st.integers(0, 12) | st.integers(0, max_n))
    k = draw(st.integers(min(n, 1), n) | st.just(n))
    if value_kind == slow_dense.FACTORS:
        rows = draw(st.sampled_from([r for r in range(1, n + 1) if n % r == 0] or [1]))
        k = min(k, 3)
        positions = range(k * (rows + n // rows))
        codes, scales = [slow.float_bits(v) for v in draw(tensors(len(positions), len(positions)))], [rows]
    else:
        everything = k == n and value_kind not in (2, 3)
        positions = (
            range(n) if everything else sorted(draw(st.sets(st.integers(0, max(n - 1, 0)), max_size=k)))
        )
        kept = draw(tensors(len(positions), len(positions))).tolist()
        if value_kind < 4:
            codes, floats = slow.quantize([v if everything else v or 1.0 for v in kept], bits)
            scales = [slow.float_bits(s) for s in floats]
        else:
            size, norm = draw(st.sampled_from(BUCKET_SIZES)), draw(st.sampled_from(["max", "l2", "mean"]))
            words = random_words(len(kept), step=draw(st.integers(0, 3)))
            codes, scales = slow_dense.quantize(value_kind, bits, kept, words, size, norm)
            unused = slow.scale_count(value_kind, k, size) - len(scales)
            scales += [0] * unused
    method = draw(st.sampled_from(range(len(METHOD_NAMES))))
    notes = draw(
        st.just([]) | st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=15)
    )
    told = tuple(slow.float_bits(note) for note in notes)
    return slow.Parts(method, value_kind, bits, n, k, tuple(scales), tuple(positions), tuple(codes), told)
