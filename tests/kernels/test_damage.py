"""Damaged payloads: every native variant accepts what the reference accepts, and refuses in its words."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import slow
from tests.core.samples import BITS, as_bytes, payload_parts
from tests.core.test_golden import FIXTURES, read
from tests.core.test_hostile import CLAIMS, MISTAKABLE, SMALL, plausible

from .test_decode import assert_decoded_alike, payloads_of

CLAIMED = slice(8, 12)  # where a payload says how many entries it has


def is_accepted(n: int, data: bytes, threads=(1,), before: bytes = b"") -> bool:
    """Whether all decoders take these bytes, behind another payload or alone."""
    payloads = [as_bytes(part) for part in ((before, data) if before else (data,))]
    return assert_decoded_alike(n, payloads, threads=threads)[0] == ""


def entries(data: bytes) -> int:
    return struct.unpack("<I", data[CLAIMED])[0]


@pytest.mark.parametrize("case", SMALL)
def test_truncations_and_appended_bytes(case):
    data = SMALL[case]
    n = entries(data)
    assert is_accepted(n, data)
    assert not any(is_accepted(n, data[:length]) for length in range(len(data)))
    assert not any(is_accepted(n, data + bytes(more)) for more in range(1, 20))
    assert not any(is_accepted(n, data[:length], before=data) for length in range(1, len(data)))
    assert not is_accepted(n + 1, data)


@pytest.mark.parametrize("case", SMALL)
def test_every_single_bit_that_flips(case):
    data = SMALL[case]
    accepted = set()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        if is_accepted(entries(data), bytes(flipped)):
            accepted.add(bit // 8)
        if bit // 8 in range(8, 16) and entries(flipped) < 2**20:
            is_accepted(entries(flipped), bytes(flipped))
    assert 4 in accepted and accepted.isdisjoint({0, 1, 2, 3, *range(8, 12)})
    assert accepted & {5, 6} == MISTAKABLE.get(case, set())


@pytest.mark.parametrize("path", FIXTURES[::4], ids=lambda path: path.stem)
def test_committed_bytes_that_are_cut(path):
    _, n, steps = read(path)
    data = steps[0][1]
    assert not any(is_accepted(n, data[:length]) for length in range(0, len(data), 3))


@pytest.mark.parametrize("bits", BITS)
def test_damage_in_large_payloads_on_several_threads(bits):
    """Cursors of all ranges are found while the payload is checked; damage may stand at their borders."""
    n, rng = 13000, np.random.default_rng(bits)
    payload = payloads_of(n, 1, 0.03, bits)[0].tobytes()
    refused = 0
    for _ in range(60):
        damaged = bytearray(payload)
        for _ in range(rng.integers(1, 3)):
            at = rng.integers(16, len(payload))
            damaged[at] ^= 1 << rng.integers(8)
        refused += not is_accepted(n, bytes(damaged), threads=(1, 2, 3))
    assert 0 < refused <= 60


@pytest.mark.parametrize("border", [32769, 36864, 53248, 65535, 73728])
def test_two_positions_in_the_wrong_order_across_a_border(border):
    """They share their high part, so that only the low bits tell; among the borders are those of threads."""
    n, k, low, bits = 100_000, 3, 15, 4
    codes, scales = slow.quantize([1.0] * k, bits)
    patterns = tuple(slow.float_bits(s) for s in scales)
    good = slow.build(slow.Parts(1, 3, bits, n, k, patterns, (0, border - 1, border), tuple(codes)))
    assert is_accepted(n, good, (1, 2, 3))
    width, fields = low + bits, len(good) - 8
    stream = int.from_bytes(good[fields:], "little")
    first, second = (stream >> i * width & (1 << width) - 1 for i in (1, 2))
    assert second == first + 1
    twice = stream ^ (first ^ second) << 2 * width
    swapped = twice ^ (first ^ second) << width
    for bad in (twice, swapped):
        assert not is_accepted(n, good[:fields] + bad.to_bytes(8, "little"), (1, 2, 3))


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "scales",
    [
        (0.0, 1.0),
        (2.0, 1.0),
        (-1.0, 1.0),
        (1.0, np.inf),
        (np.nan, np.nan),
        (1.0, np.nan),
        (-0.0, 0.0),
        (1e-45, 1e-45),
        (1.0, 3e38),
    ],
)
def test_scales_that_no_encoder_writes_and_some_that_one_might(scales, bits):
    data = bytearray(SMALL[f"{bits} bits"])
    count = 1 if bits == 1 else 2
    data[16 : 16 + 4 * count] = struct.pack(f"<{count}f", *scales[:count])
    is_accepted(13, bytes(data))
    empty = bytearray(SMALL["zeros, 4 bits" if count == 2 else "zeros, 1 bits"])
    empty[16 : 16 + 4 * count] = struct.pack(f"<{count}f", *scales[:count])
    assert is_accepted(9, bytes(empty)) == (bytes(empty) in SMALL.values())


@pytest.mark.parametrize("n", [2**31 - 1, 2**31, 2**32 - 1])
def test_headers_that_claim_billions(n):
    for k in (1, 10**6, n):
        for index, value_kind, bits in CLAIMS:
            data = b"HGC" + struct.pack("<BBBBBII", 1, 1, index, value_kind, bits, n, k) + bytes(64)
            assert not is_accepted(13, data)


@settings(max_examples=150)
@given(st.binary(max_size=100))
def test_random_bytes(data):
    assert not is_accepted(13, data)
    is_accepted(13, b"HGC\x01" + data)


@settings(max_examples=200)
@given(plausible())
def test_random_bodies_behind_a_good_header(data):
    is_accepted(entries(data), data)


@settings(max_examples=200)
@given(payload_parts(max_n=30), st.data())
def test_random_mutations(parts, data):
    payload = bytearray(slow.build(parts))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    is_accepted(parts.n, bytes(payload))


@settings(max_examples=60)
@given(payload_parts(max_n=20), payload_parts(max_n=20))
def test_one_bad_payload_among_good_ones(a, b):
    first, second = slow.build(a), slow.build(b)
    is_accepted(a.n, first[:16] + second[16:], before=first)
    assert is_accepted(a.n, second, before=first) == (a.n == b.n)


def test_payloads_that_are_no_arrays_of_bytes():
    good = as_bytes(SMALL["4 bits"])
    for bad in (good.astype(np.int8), good.reshape(1, -1), good.tobytes(), None):
        assert assert_decoded_alike(13, [good, bad])[0].startswith("PayloadError")
    assert assert_decoded_alike(13, [np.repeat(good, 2)[::2]])[0] == ""
