"""Positions around the powers of two at which too narrow numbers would wrap, in one large tensor."""

from __future__ import annotations

import numpy as np
import pytest

from hgc_horovod import Codec
from hgc_horovod.core import wire
from hgc_horovod.kernels.native import NativeKernels
from tests.core.samples import gaussian, hybrid, same_bits

from .pairs import PATHS, REFERENCE

N = 2**24 + 100_003
PEAKS = [0, 2**16, 2**16 + 1, 2**24 - 1, 2**24, 2**24 + 1, N - 1]  # float32 has no 2^24 + 1, 16 bits no 2^16


@pytest.fixture(scope="module")
def gradient() -> np.ndarray:
    """Noise below all peaks, which have different magnitudes and alternate in sign."""
    values = gaussian(N)
    values[PEAKS] = [(-1) ** at * (100.0 + at) for at in range(len(PEAKS))]
    return values


@pytest.mark.parametrize(("k", "bits"), [(len(PEAKS), 32), (20_000, 4)])
def test_positions_of_a_large_tensor(gradient: np.ndarray, k: int, bits: int) -> None:
    """Alone they come back exactly; among many they are there, and every path gives the same bytes."""
    method = hybrid(k / N, bits)
    expected = Codec(method, N, kernels=REFERENCE).encode(gradient)
    _, indices, _ = wire.unpack(expected)
    assert indices.size == k and np.isin(PEAKS, indices).all()
    for path in PATHS:
        codec = Codec(method, N, kernels=NativeKernels(2, path))
        assert same_bits(codec.encode(gradient), expected), path
        sums = codec.decode_sum([expected])
        assert np.array_equal(np.flatnonzero(sums), indices), path
        assert np.array_equal(np.sign(sums[PEAKS]), np.sign(gradient[PEAKS])), path
        if bits == 32:
            assert same_bits(sums[PEAKS], gradient[PEAKS]) and not codec.residual[PEAKS].any(), path
        sums += codec.residual
        np.testing.assert_allclose(sums, gradient, rtol=1e-6, atol=1e-6, err_msg=path)
