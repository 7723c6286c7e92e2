"""Every native variant decodes as the reference does: the same sums, and the same refusals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import Codec
from hgc_horovod.kernels import Kernels
from tests.core import slow
from tests.core.samples import BITS, LARGEST, TINY, as_bytes, gaussian, hybrid, payload_parts, same_bits
from tests.core.test_golden import FIXTURES, read

from .pairs import DTYPES, REFERENCE, variants

OUTS = ("float32", "float16", "bfloat16")
Result = tuple[str, bytes]


def payloads_of(
    n: int, count: int, density: float = 0.1, bits: int = 4, scale: float = 1.0
) -> list[np.ndarray]:
    return [
        Codec(hybrid(density, bits), n, kernels=REFERENCE).encode(gaussian(n, seed, scale))
        for seed in range(count)
    ]


def all_ones(n: int, dtype: str = "float32") -> np.ndarray:
    """An output full of NaNs."""
    return np.full(n * DTYPES[dtype].itemsize, 255, np.uint8).view(DTYPES[dtype])


def decoded(
    kernels: Kernels, n: int, payloads: Sequence[np.ndarray], dtype: str = "float32", factor: float = 1.0
) -> Result:
    """What was raised, and the output, which was full of NaNs before."""
    codec, out, raised = Codec(hybrid(), n, "fc.weight", kernels=kernels), all_ones(n, dtype), ""
    try:
        assert codec.decode_sum(payloads, out, factor) is out
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
        assert out.tobytes() == all_ones(n, dtype).tobytes()
    return raised, out.tobytes()


def assert_decoded_alike(
    n: int, payloads: Sequence[np.ndarray], dtype: str = "float32", factor: float = 1.0, threads=(1, 3)
) -> Result:
    expected = decoded(REFERENCE, n, payloads, dtype, factor)
    for kernels in variants(threads):
        assert decoded(kernels, n, payloads, dtype, factor) == expected, (kernels.path, kernels.threads)
    return expected


@pytest.mark.parametrize("dtype", OUTS)
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 0.0, -2.0, -0.0, 1e-40, 1e30])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_sums(count, factor, dtype):
    for n, density, bits in (
        (0, 1, 4),
        (1, 1, 1),
        (65, 1, 3),
        (4097, 0.3, 16),
        (8193, 0.05, 4),
        (20000, 1, 32),
    ):
        raised, _ = assert_decoded_alike(n, payloads_of(n, count, density, bits), dtype, factor, (1, 2, 3))
        assert not raised


@pytest.mark.parametrize("bits", BITS)
def test_every_width_at_every_border(bits):
    for n, density in product((63, 4095, 4096, 8192, 12289), (0.002, 0.2, 1.0)):
        assert assert_decoded_alike(n, payloads_of(n, 2, density, bits), threads=(1, 2, 3))[0] == ""


def test_a_sum_that_leaves_the_caches():
    n = 2**21 + 3
    payloads = payloads_of(n, 2, 0.001)
    for offset in (0, 4, 32):
        results = []
        for kernels in (REFERENCE, *variants(threads=(2,))):
            out = np.frombuffer(bytearray(b"\xff" * (4 * n + offset)), np.float32, offset=offset)
            Codec(hybrid(), n, kernels=kernels).decode_sum(payloads, out)
            results.append(out)
        assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_payloads_one_behind_the_other(factor):
    n, results = 5000, []
    payloads = [*payloads_of(n, 2, 0.1, 4), *payloads_of(n, 2, 1.0, 32), *payloads_of(n, 1, 0.01, 1)]
    for kernels in (REFERENCE, *variants()):
        codec = Codec(hybrid(), n, kernels=kernels)
        results.append(codec.decode_gathered(np.concatenate(payloads), 5, factor=factor))
        assert same_bits(codec.decode_sum(payloads, factor=factor), results[0])
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 3, 2**31 - 1, 2**32 + 2])
@pytest.mark.parametrize("given_count", [0, 2])
def test_another_number_of_payloads_than_expected(given_count, count):
    gathered = np.concatenate([*payloads_of(50, given_count), np.zeros(0, np.uint8)])
    raised = set()
    for kernels in (REFERENCE, *variants(threads=(1,))):
        out = all_ones(50)
        try:
            Codec(hybrid(), 50, kernels=kernels).decode_gathered(gathered, count, out)
            raised.add("")
        except Exception as error:
            assert out.tobytes() == all_ones(50).tobytes()
            raised.add(f"{type(error).__name__}: {error}")
    assert len(raised) == 1
    assert (raised == {""}) == (count == given_count)


@pytest.mark.parametrize("dtype", OUTS)
@pytest.mark.parametrize("layout", ["reversed", "every third", "odd address", "aligned to the type only"])
def test_outputs_of_any_layout(layout, dtype):
    n, size = 3001, DTYPES[dtype].itemsize
    payloads, results = payloads_of(n, 2), []
    for kernels in (REFERENCE, *variants()):
        memory = np.full(4 * n * size, 255, np.uint8)
        whole = memory.view(DTYPES[dtype])
        out = {
            "reversed": lambda whole=whole: whole[n - 1 :: -1],
            "every third": lambda whole=whole: whole[: 3 * n : 3],
            "odd address": lambda memory=memory: memory[1 : 1 + n * size].view(DTYPES[dtype]),
            "aligned to the type only": lambda whole=whole: whole[1 : 1 + n],
        }[layout]()
        assert Codec(hybrid(), n, kernels=kernels).decode_sum(payloads, out) is out
        results.append(memory)  # with all that must not have been touched
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", OUTS)
def test_an_output_that_must_not_be_written(dtype):
    for kernels in (REFERENCE, *variants(threads=(1,))):
        out = all_ones(50, dtype)
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            Codec(hybrid(), 50, kernels=kernels).decode_sum(payloads_of(50, 1), out)
        assert out.tobytes() == all_ones(50, dtype).tobytes()


@pytest.mark.parametrize("dtype", OUTS)
def test_sums_that_overflow(dtype):
    n = 100
    payloads = [Codec(hybrid(1.0, 32), n).encode(gaussian(n, 0, 1e38)) for _ in range(5)]
    values = np.abs(np.frombuffer(assert_decoded_alike(n, payloads, "float32")[1], np.float32))
    assert np.isinf(values).any() and np.isfinite(values).any()
    for factor in (1.0, 2.0, 1e-30, 1e38):
        assert_decoded_alike(n, payloads, dtype, factor)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", OUTS)
def test_an_infinity_less_an_infinity(dtype):
    payloads = [Codec(hybrid(1.0, 32), 20).encode(np.full(20, s * 2e38, np.float32)) for s in (1, -1)]
    assert_decoded_alike(20, payloads, dtype, 4.0)


def test_every_tie_and_neighbour_when_rounded_to_half_precision():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    largest = np.array([65504, 65519.996, 65520, 65536, 1e38, LARGEST, TINY], np.float32)
    values = np.concatenate(
        [halves, ties, np.nextafter(ties, 0), np.nextafter(ties, np.float32(1e9)), largest]
    )
    assert_rounded(np.concatenate([values, -values]).astype(np.float32), "float16")


def test_every_tie_and_neighbour_when_rounded_to_bfloat16():
    words = np.arange(0, 0x7F80, dtype=np.uint32) << 16
    words = np.concatenate([words + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    values = words.astype(np.uint32).view(np.float32)
    assert_rounded(np.concatenate([values, -values]), "bfloat16")


def assert_rounded(values: np.ndarray, dtype: str) -> None:
    payload = Codec(hybrid(1.0, 32), values.size, kernels=REFERENCE).encode(values)
    assert assert_decoded_alike(values.size, [payload], dtype)[0] == ""


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_committed_bytes(path):
    _, n, steps = read(path)
    payloads = [as_bytes(payload) for _, payload, _ in steps]
    for payload, (_, _, values) in zip(payloads, steps, strict=True):
        assert assert_decoded_alike(n, [payload]) == ("", values.tobytes())
    assert assert_decoded_alike(n, payloads, "bfloat16", 1 / 3)[0] == ""


@given(payload_parts(), st.sampled_from([1.0, 0.1, -3.0]))
def test_small_payloads(parts, factor):
    payload = as_bytes(slow.build(parts))
    for dtype in OUTS:
        assert assert_decoded_alike(parts.n, [payload, payload], dtype, factor, (1,))[0] == ""
