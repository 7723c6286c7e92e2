"""Bytes from anywhere: each string is refused with PayloadError, or is what an encoder writes."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hgc_horovod import Codec, PayloadError
from hgc_horovod.core import wire

from . import slow
from .samples import BITS, as_bytes, gaussian, hybrid, payload_parts, same_bits

BILLIONS = 2**31 - 1
SMALL = {
    **{f"{bits} bits": slow.encode(gaussian(13, bits).tolist(), 4, bits) for bits in BITS},
    **{f"all, {bits} bits": slow.encode(gaussian(5, bits).tolist(), 5, bits) for bits in (1, 3, 16, 32)},
    **{f"unused slots, {bits} bits": slow.encode([0.0, 0.5, 0.0, -1.0, 0.0], 4, bits) for bits in (1, 4, 16)},
    **{f"zeros, {bits} bits": slow.encode([0.0] * 9, 3, bits) for bits in (1, 4, 32)},
    **{f"no entry, {bits} bits": slow.encode([], 0, bits) for bits in (1, 4, 16)},
}


def is_accepted(data: bytes) -> bool:
    """Whether the decoder takes these bytes, which must be as the independent one says."""
    buffer = as_bytes(data)
    try:
        parts = slow.parse(data)
    except ValueError:
        with pytest.raises(PayloadError):
            wire.unpack(buffer)
        out = np.full(13, 7, np.float32)
        with pytest.raises(PayloadError):
            Codec(hybrid(), 13).decode_sum([as_bytes(SMALL["4 bits"]), buffer], out=out)
        assert (out == 7).all()
        return False
    header, indices, values = wire.unpack(buffer)
    assert indices.tolist() == list(parts.positions)
    assert same_bits(values, np.array(slow.values(parts), np.float32)) and np.isfinite(values).all()
    scales = np.array(parts.scales, np.uint32).view(np.float32)
    assert wire.pack(header, indices, np.array(parts.codes, np.uint64), scales).tobytes() == data
    return True


@pytest.mark.parametrize("case", SMALL)
def test_every_truncation_and_every_appended_byte_is_refused(case):
    data = SMALL[case]
    assert is_accepted(data)
    assert not any(is_accepted(data[:length]) for length in range(len(data)))
    assert not any(is_accepted(data + bytes(more)) for more in range(1, 9))


@pytest.mark.parametrize("case", SMALL)
def test_every_single_bit_that_flips(case):
    data = SMALL[case]
    accepted = set()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        if is_accepted(bytes(flipped)):
            accepted.add(bit // 8)
    assert accepted.isdisjoint({0, 1, 2, 3, 5, 6})  # magic, version and both kinds
    assert 4 in accepted  # the method is information only


@pytest.mark.parametrize("case", SMALL)
@pytest.mark.parametrize("offset", [4, 5, 6, 7])
def test_every_value_of_the_bytes_for_method_and_kinds(case, offset):
    data = bytearray(SMALL[case])
    accepted = []
    for value in range(256):
        data[offset] = value
        if is_accepted(bytes(data)):
            accepted.append(value)
    assert SMALL[case][offset] in accepted
    assert accepted == [0, 1] if offset == 4 else len(accepted) <= 7


@settings(max_examples=300)
@given(st.binary(max_size=100))
@example(b"")
@example(b"HGC\x01")
def test_random_bytes(data):
    assert not is_accepted(data)
    is_accepted(b"HGC\x01" + data)  # which compares with the independent decoder


@st.composite
def plausible(draw):
    """A header that makes sense, scales that may, and a body of the right length and any content."""
    n = draw(st.integers(0, 40))
    k = draw(st.integers(min(n, 1), n))
    bits = draw(st.sampled_from(BITS))
    parts = slow.Parts(1, {32: 0, 16: 1, 1: 2}.get(bits, 3), bits, n, k, (), (), ())
    scales = draw(st.lists(st.floats(width=32), min_size=2, max_size=2))
    empty = slow.build(
        parts._replace(scales=(0,) * max(0, parts.value_kind - 1))
        if n != k or bits < 16
        else parts._replace(positions=tuple(range(n)), codes=(0,) * n)
    )
    scale_bytes = struct.pack(f"<{max(0, parts.value_kind - 1)}f", *scales[: max(0, parts.value_kind - 1)])
    body = draw(st.binary(min_size=len(empty), max_size=len(empty)))
    mask = draw(st.sampled_from([255, 17, 1]))  # fewer bits set come closer to what is valid
    return (empty[:16] + scale_bytes + bytes(b & mask for b in body))[: len(empty)]


@settings(max_examples=300)
@given(plausible())
def test_random_bodies_behind_a_good_header(data):
    assert wire.read_header(as_bytes(data)).sections[-1] == len(data)
    is_accepted(data)  # which compares with the independent decoder


@settings(max_examples=300)
@given(payload_parts(max_n=30), st.data())
def test_random_mutations(parts, data):
    payload = bytearray(slow.build(parts))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    if is_accepted(bytes(payload)):
        assert bytes(payload[:4]) == b"HGC\x01"


@given(payload_parts(max_n=20), payload_parts(max_n=20))
def test_the_head_of_one_payload_on_the_body_of_another(a, b):
    first, second = slow.build(a), slow.build(b)
    if is_accepted(first[:16] + second[16:]):
        assert len(first) == len(second)


def peak_of(data: bytes, accepted: bool) -> int:
    """The most memory that reading these bytes takes."""
    tracemalloc.start()
    try:
        if accepted:
            wire.unpack(as_bytes(data))
        else:
            for read in (wire.unpack, wire.split):
                with pytest.raises(PayloadError):
                    read(as_bytes(data))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("body", [0, 4, 64, 1000])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (BILLIONS, BILLIONS),
        (2**32 - 1, 2**32 - 1),
        (BILLIONS, 10**6),
        (10**9, 10**9),
        (2**32 - 1, 1),
        (2**31, 1),
        (0, BILLIONS),
        (BILLIONS, 0),
    ],
)
def test_a_header_that_claims_billions_takes_no_memory(n, k, body):
    for kind, value_kind, bits in [(0, 0, 32), (0, 1, 16), (1, 2, 1), (1, 3, 4), (1, 0, 32)]:
        data = b"HGC" + struct.pack("<BBBBBII", 1, 1, kind, value_kind, bits, n, k) + bytes(body)
        assert peak_of(data, accepted=False) < 100_000


@pytest.mark.parametrize("bits", [1, 4, 16, 32])
def test_memory_follows_the_bytes_and_not_the_tensor(bits):
    codes, scales = slow.quantize([1.0], bits)
    patterns = tuple(slow.float_bits(s) for s in scales)
    for n in (2**20, BILLIONS):  # the smaller one first, so that a failure does not take all memory
        parts = slow.Parts(1, {32: 0, 16: 1, 1: 2}.get(bits, 3), bits, n, 1, patterns, (n - 1,), tuple(codes))
        data = slow.build(parts)
        assert len(data) <= 36
        assert peak_of(data, accepted=True) < 100_000
    for bit in range(8 * 8, 8 * len(data)):  # n may become anything below 2**32 here and fit the length
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        is_accepted(bytes(flipped))
