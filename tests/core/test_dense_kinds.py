"""Value kinds 4 to 9 and random words, against the transcription of docs/quantizers.md in `slow_dense`."""

import struct
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgc_horovod import Codec, PayloadError
from hgc_horovod.core import random, wire
from hgc_horovod.core.bucketed import DynamicTree, PowerOfTwo, Sign, TwoMeans, Uniform
from hgc_horovod.core.context import Context, Peers
from hgc_horovod.core.random import Draw

from . import slow, slow_dense
from .samples import (
    LARGEST,
    TINY,
    as_bytes,
    gaussian,
    hybrid,
    patterns,
    payload_parts,
    same_bits,
    small_parts,
    tensors,
)
from .slow_numbers import key_of, philox, random_words

# Quantizer, and the arguments that it has in `slow_dense.quantize`.
QUANTIZERS = {
    **{
        f"uniform {bits} {norm} {bucket}": (
            Uniform(bits, norm, bucket),
            (4, bits, {"bucket": bucket, "norm": norm}),
        )
        for bits, norm, bucket in product((2, 3, 5, 8), ("l2", "max"), (0, 3))
    },
    "uniform clipped": (Uniform(2, "max", 4, 0.7), (4, 2, {"bucket": 4, "sigmas": 0.7})),
    "uniform clipped at nothing": (Uniform(3, "l2", 0, 1e-30), (4, 3, {"norm": "l2", "sigmas": 1e-30})),
    "uniform in a huge bucket": (Uniform(4, "max", 2**31 - 1), (4, 4, {"bucket": 2**31 - 1})),
    "sign": (Sign(), (5, 1, {"norm": "mean"})),
    "sign in buckets": (Sign(bucket=4), (5, 1, {"norm": "mean", "bucket": 4})),
    "sign alone": (Sign(scale="one", bucket=7), (5, 1, {"norm": "one", "bucket": 7})),
    "two-means": (TwoMeans(), (6, 1, {})),
    "tree": (DynamicTree(), (7, 8, {})),
    "tree in buckets": (DynamicTree(bucket=2), (7, 8, {"bucket": 2})),
    "powers of two": (PowerOfTwo(), (8, 9, {})),
}
HOSTILE = [
    [],
    [0.0] * 5,
    [-0.0, 0.0, -0.0],
    [TINY, -TINY, 0.0, 3 * TINY],
    [LARGEST, -LARGEST] * 20,
    [TINY, LARGEST, -1.0, -TINY],
    [2.0**e for e in range(-149, 128, 7)],
    [-1.9999999 * 2.0**e for e in range(-126, 128, 9)],
]


def assert_alike(name: str, values: np.ndarray, step: int) -> None:
    """Codes, scales and values as the page says."""
    quantizer, (kind, bits, arguments) = QUANTIZERS[name]
    draw = Draw(random.key_of(3, "w"), step, 2)
    codes, scales = quantizer.quantize(values, Context(draw, step, (1, values.size), {}, Peers()))
    words = random_words(values.size, 3, "w", step, 2)
    slow_codes, slow_scales = slow_dense.quantize(kind, bits, values.tolist(), words, **arguments)
    assert codes.tolist() == slow_codes and all(c < 2**bits for c in slow_codes)
    assert scales.dtype == np.float32 and scales.view(np.uint32).tolist() == slow_scales
    for factor in (1.0, 0.25, -1 / 3):
        wanted = slow_dense.values(kind, bits, slow_codes, slow_scales, slow.float32(factor))
        decoded = quantizer.dequantize(codes, scales, factor)
        assert decoded.dtype == np.float32 and np.array_equal(decoded, np.array(wanted, np.float32))
        assert np.isfinite(decoded).all()


@pytest.mark.parametrize("name", QUANTIZERS)
@given(values=tensors(), step=st.sampled_from([0, 1, 2**32 + 5]))
def test_codes_scales_and_values_by_an_independent_transcription(name, values, step):
    assert_alike(name, values, step)


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("case", range(len(HOSTILE)))
def test_hostile_values(name, case):
    for step in range(3):
        assert_alike(name, np.array(HOSTILE[case], np.float32), step)


def test_every_code_of_eight_bits_and_every_power():
    tree, scale = DynamicTree(), np.array([0, slow.float_bits(3.0)], np.uint32).view(np.float32)
    decoded = tree.dequantize(np.arange(256, dtype=np.uint64), scale)
    assert same_bits(
        decoded, np.array(slow_dense.values(7, 8, range(256), [0, slow.float_bits(3.0)]), np.float32)
    )
    assert (np.diff(decoded[::2]) > 0).all()
    powers = PowerOfTwo().dequantize(np.arange(510, dtype=np.uint16), np.zeros(0, np.float32))
    assert powers.tolist() == slow_dense.values(8, 9, range(510), [])
    for code in (510, 511):
        with pytest.raises(ValueError, match="finite"):
            PowerOfTwo().dequantize(np.array([code], np.uint16), np.zeros(0, np.float32))


# The generator's published answers.
PHILOX = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), PHILOX)
def test_the_generator_gives_its_published_answers(counter, key, output):
    assert philox(counter, key) == output
    arrays = tuple(np.array([word], np.uint64) for word in counter)
    assert random.philox(arrays, key)[:, 0].tolist() == list(output)


@settings(max_examples=25)
@given(
    st.integers(0, 20), st.integers(0, 2**70), st.text(max_size=9), st.integers(0, 2**40), st.integers(0, 7)
)
def test_random_words(count, seed, name, step, stream):
    assert random.key_of(seed, name) == key_of(seed, name)
    for rank in (0, 5, random.EVERYONE):
        words = Draw(random.key_of(seed, name), step, rank, stream).words(count)
        assert words.dtype == np.uint32
        assert words.tolist() == random_words(count, seed, name, step, rank, stream)


@given(payload_parts(max_n=30), st.sampled_from([1.0, 0.5, 1 / 3, -1 / 3]), st.integers(1, 3))
def test_sums_of_payloads(parts, factor, count):
    """In the order and with the roundings of the page."""
    factor, data = slow.float32(factor), slow.build(parts)
    if parts.value_kind == slow_dense.FACTORS:
        values = slow.values(parts)
        if any(abs(v) > 1e18 for v in values):
            return  # sums of products may overflow
        once = [
            slow_dense.outer(
                values[a * parts.scales[0] :][: parts.scales[0]] + row, parts.n, 1, parts.scales[0], factor
            )
            for a, row in enumerate(rows_of(parts, values))
        ]
        positions = range(parts.n)
    else:
        positions = parts.positions
        if parts.value_kind > 3:
            values = slow_dense.values(parts.value_kind, parts.bits, parts.codes, parts.scales, factor)
        else:
            values = [slow.float32(factor * v) for v in slow.values(parts)]
        once = [values]
        if any(abs(v) > 1e38 for v in values):
            return
    dense = [0.0] * parts.n
    for _, added in product(range(count), once):
        for position, value in zip(positions, added, strict=True):
            dense[position] = slow.float32(dense[position] + value)
    got = Codec(hybrid(), parts.n).decode_sum([as_bytes(data)] * count, factor=factor)
    assert np.array_equal(got, np.array(dense, np.float32))


def rows_of(parts: slow.Parts, values: list[float]) -> list[list[float]]:
    """The rows of a payload of factors, one of each outer product."""
    columns = parts.n // parts.scales[0]
    behind = parts.k * parts.scales[0]
    return [values[behind + a * columns :][:columns] for a in range(parts.k)]


SOME = gaussian(9, 1).tolist()
INF, NAN, MINUS_ZERO, MINUS_ONE = 0x7F800000, 0x7FC00001, 0x80000000, 0xBF800000


@pytest.mark.parametrize("kind", [4, 5, 6, 7])
@pytest.mark.parametrize("k", [4, 9])
@pytest.mark.parametrize("bad", [INF, NAN, MINUS_ZERO, MINUS_ONE])
def test_scales_that_no_encoder_writes_are_refused(kind, k, bad):
    parts = small_parts(kind, slow.BITS[kind][-1], SOME, k, 2)
    assert wire.unpack(as_bytes(slow.build(parts)))
    for place in range(0 if kind == 6 else 1, len(parts.scales)):
        scales = list(parts.scales)
        scales[place] = bad
        refused(parts._replace(scales=tuple(scales)), "scale")


@pytest.mark.parametrize("kind", [4, 5, 7])
def test_scales_of_unused_slots_are_zero(kind):
    parts = small_parts(kind, slow.BITS[kind][-1], [0.0, 1.0, 0.0, -2.0, 0.5, 0.0, 0.0], 6, 2)
    assert len(parts.positions) == 3 and parts.scales[3] == 0 != parts.scales[2]
    refused(parts._replace(scales=(*parts.scales[:3], 1)), "scale that no value has")
    refused(parts._replace(scales=(2, 0, 1, 0), positions=(), codes=()), "scale that no value has")


def test_means_of_nothing_are_zero():
    parts = small_parts(6, 1, [0.0] * 5, 2)
    for scales in ((1, 0), (0, 1)):
        refused(parts._replace(scales=scales), "scale that no value has")


@pytest.mark.parametrize("word", [2**31, 2**32 - 1])
def test_a_bucket_size_beyond_the_format_is_refused(word):
    for kind in slow_dense.BUCKETED:
        parts = small_parts(kind, slow.BITS[kind][-1], SOME, 9)
        refused(parts._replace(scales=(word, *parts.scales[1:])), "value kind")


@pytest.mark.parametrize("rows", [0, 4, 7, 2**31, 2**32 - 1])
def test_rows_that_do_not_divide_the_tensor_are_refused(rows):
    good = slow.Parts(18, 9, 32, 6, 1, (2,), tuple(range(5)), (0,) * 5)
    refused(good, "value kind", bytearray(slow.build(good)), {16: rows})
    nothing = slow.Parts(18, 9, 32, 0, 0, (1,), (), ())
    refused(nothing, "value kind", bytearray(slow.build(nothing)), {16: rows})


def test_factors_beyond_float32_are_refused_and_many_are_taken():
    rows, k = 2, 5  # more outer products than the matrix has rows or columns
    good = slow.Parts(18, 9, 32, 6, k, (rows,), tuple(range(5 * k)), (1,) * 5 * k)
    assert Codec(hybrid(), 6).decode_sum([as_bytes(slow.build(good))]).shape == (6,)
    for bad in (INF, NAN, INF | MINUS_ZERO):
        refused(good._replace(codes=(*good.codes[:-1], bad)), "finite")


@pytest.mark.parametrize("kind", [0, 3, 4, 9])
@pytest.mark.parametrize("bad", [INF, NAN, INF | MINUS_ZERO])
def test_notes_that_are_not_finite_are_refused(kind, bad):
    parts = slow.parse(slow.build(small_parts(4, 4, SOME, 9)))
    if kind in (0, 3):
        parts = slow.parse(slow.encode(SOME, 9, {0: 32, 3: 4}[kind]))
    elif kind == 9:
        parts = slow.Parts(18, 9, 32, 6, 1, (2,), tuple(range(5)), (0,) * 5)
    assert same_bits(wire.read_notes(as_bytes(slow.build(parts._replace(notes=(1, 2))))), patterns((1, 2)))
    refused(parts._replace(notes=(0, bad)), "note")


def test_notes_that_run_past_the_end_are_refused():
    for n, notes, kind in product((0, 1, 9), range(1, 16), (0x0020, 0x0404, 0x0501, 0x0709, 0x0809, 0x0920)):
        value_kind, bits = divmod(kind, 256)
        index = 2 if value_kind == 9 else 0
        head = b"HGC" + struct.pack("<BBBBBII", 1, 1, index | notes << 4, value_kind, bits, n, min(n, 1))
        for length in range(0, 4 * notes, 4):
            with pytest.raises(PayloadError):
                wire.split(as_bytes(head + bytes(length)))


@pytest.mark.parametrize("kind", [4, 7, 8])
@pytest.mark.parametrize("k", [4, 9])
def test_a_negative_zero_is_read_as_zero(kind, k):
    parts = small_parts(kind, slow.BITS[kind][-1], SOME, k)
    data = slow.build(parts._replace(codes=(1,) * k))
    assert same_bits(Codec(hybrid(), 9).decode_sum([as_bytes(data)]), np.zeros(9, np.float32))


def refused(
    parts: slow.Parts, why: str, data: bytearray | None = None, words: dict[int, int] | None = None
) -> None:
    """That these parts, or their bytes with other words at some places, are refused by both decoders."""
    data = bytearray(slow.build(parts)) if data is None else data
    for at, word in (words or {}).items():
        data[at : at + 4] = struct.pack("<I", word)
    with pytest.raises(ValueError):
        slow.parse(bytes(data))
    with pytest.raises(PayloadError, match=why):
        Codec(hybrid(), parts.n).decode_sum([as_bytes(bytes(data))])
