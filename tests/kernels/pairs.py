"""What the tests of the kernels share: all native variants, and what a step leaves behind, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np

from hgc_horovod import Codec, NonFiniteError
from hgc_horovod.core import floats
from hgc_horovod.core.method import Method
from hgc_horovod.kernels import Kernels, Sent, library
from hgc_horovod.kernels.native import NativeKernels
from hgc_horovod.kernels.reference import ReferenceKernels

PATHS = tuple(library.load().hgc_paths().decode().split(","))
THREADS = (1, 2, 3)
REFERENCE = ReferenceKernels()
DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": floats.BFLOAT16,
    "float64": np.dtype(np.float64),
    "ml_dtypes": np.dtype(ml_dtypes.bfloat16),
}


def variants(threads: Iterable[int] = THREADS) -> Iterator[NativeKernels]:
    """Native kernels on every path and number of threads; a grain of one puts threads to small tensors."""
    for path in PATHS:
        for count in threads:
            yield NativeKernels(count, path, grain=1)


class Step(NamedTuple):
    """The arguments of one encode."""

    gradient: np.ndarray
    weight: np.ndarray | None = None
    weight_decay: float = 0.0
    factor: float = 1.0


class Outcome(NamedTuple):
    """What one encode gives and leaves behind. `payload` is None where it raised NonFiniteError."""

    payload: bytes | None
    multiplier: bytes
    masked: bytes
    residual: bytes
    momentum: bytes | None


class Recorder:
    """Kernels that remember what they returned last: a codec gives the payload only."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.description = kernels, kernels.description
        self.sent: Sent | None = None
        self.decode_sum, self.pack_codes = kernels.decode_sum, kernels.pack_codes
        self.add_codes = kernels.add_codes

    def encode(self, *arguments) -> Sent | None:
        self.sent = self.kernels.encode(*arguments)
        return self.sent


def encoded(kernels: Kernels, method: Method, steps: Iterable[Step], world_size: int = 1) -> list[Outcome]:
    """The outcomes of consecutive encodes of one codec."""
    steps, recorder = list(steps), Recorder(kernels)
    codec = Codec(method, steps[0].gradient.size, world_size=world_size, kernels=recorder)
    outcomes = []
    for step in steps:
        given = step.gradient.copy()
        try:
            codec.encode(step.gradient, step.weight, step.weight_decay, factor=step.factor)
        except NonFiniteError:
            assert recorder.sent is None
        assert given.tobytes() == step.gradient.tobytes()  # an encode reads its gradient only
        outcomes.append(outcome(codec, recorder.sent))
    return outcomes


def outcome(codec: Codec, sent: Sent | None) -> Outcome:
    momentum = None if codec.momentum is None else codec.momentum.tobytes()
    if sent is None:
        return Outcome(None, b"", b"", codec.residual.tobytes(), momentum)
    assert sent.masked_momentum.dtype == np.float32
    return Outcome(
        sent.payload.tobytes(),
        np.float32(sent.multiplier).tobytes(),
        sent.masked_momentum.tobytes(),
        codec.residual.tobytes(),
        momentum,
    )


def assert_identical(
    method: Method, steps: Iterable[Step], world_size: int = 1, threads: Iterable[int] = THREADS
) -> list[Outcome]:
    """Every variant gives the reference's outcomes, which are returned."""
    steps = list(steps)
    expected = encoded(REFERENCE, method, steps, world_size)
    for kernels in variants(threads):
        for number, (got, want) in enumerate(
            zip(encoded(kernels, method, steps, world_size), expected, strict=True)
        ):
            for name, mine, theirs in zip(Outcome._fields, got, want, strict=True):
                assert mine == theirs, difference(
                    f"{kernels.path} {kernels.threads}", number, name, mine, theirs
                )
    return expected


def difference(kernels: NativeKernels, step: int, name: str, got: bytes | None, want: bytes | None) -> str:
    """Where the bytes part, in a line: pytest would print all of them."""
    where = f"{kernels.path} {kernels.threads}, step {step}: {name} differs"
    if got is None or want is None or len(got) != len(want):
        return f"{where}: {got and len(got)} bytes instead of {want and len(want)}"
    at = np.flatnonzero(np.frombuffer(got, np.uint8) != np.frombuffer(want, np.uint8))
    return f"{where}: {at.size} bytes, the first at {at[0]}"


def as_dtype(values: np.ndarray, name: str) -> np.ndarray:
    """float32 values in another dtype of floats."""
    dtype = DTYPES[name]
    if floats.is_bfloat16(dtype):
        out = np.empty(values.size, dtype)
        floats.narrow(values, out)
        return out
    return values.astype(dtype)


def sampled(n: int) -> np.ndarray:
    """Where the native kernels look in the first step, to guess a threshold (csrc/threshold.h)."""
    group = 8
    places = np.arange(min(max(n // 512, 512), 8192) // group, dtype=np.uint64) * 0x9E3779B9 % 2**32
    return (
        ((places * (n - group) >> 32)[:, None] + np.arange(group, dtype=np.uint64)).ravel().astype(np.int64)
    )
