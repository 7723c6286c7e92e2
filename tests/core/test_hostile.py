"""Bytes from anywhere: each string is refused with PayloadError, or is what an encoder writes."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hgc_horovod import Codec, PayloadError
from hgc_horovod.core import wire

from . import slow, slow_dense
from .samples import BITS, as_bytes, gaussian, hybrid, patterns, payload_parts, same_bits, small_parts

BILLIONS = 2**31 - 1
SMALL = {
    **{f"{bits} bits": slow.encode(gaussian(13, bits).tolist(), 4, bits) for bits in BITS},
    **{f"all, {bits} bits": slow.encode(gaussian(5, bits).tolist(), 5, bits) for bits in (1, 3, 16, 32)},
    **{f"unused slots, {bits} bits": slow.encode([0.0, 0.5, 0.0, -1.0, 0.0], 4, bits) for bits in (1, 4, 16)},
    **{f"zeros, {bits} bits": slow.encode([0.0] * 9, 3, bits) for bits in (1, 4, 32)},
    **{f"no entry, {bits} bits": slow.encode([], 0, bits) for bits in (1, 4, 16)},
}
HYBRID = tuple(SMALL)
SOME, FEW = gaussian(13, 4).tolist(), gaussian(5, 5).tolist()
FACTORS = (*(slow.float_bits(v) for v in gaussian(10, 6).tolist()),)
SMALL |= {
    name: slow.build(parts)
    for name, parts in {
        "uniform": small_parts(4, 3, SOME, 4, 3),
        "uniform, all": small_parts(4, 4, FEW, 5, 2),
        "uniform, all in one bucket": small_parts(4, 8, FEW, 5),
        "uniform, unused slots": small_parts(4, 2, [0.0, 0.5, 0.0, -1.0, 0.0, 0.0], 5, 2),
        "uniform, no entry": small_parts(4, 2, [], 0, 512),
        "uniform, notes": small_parts(4, 5, FEW, 5, 512, (1.5, -0.0)),
        "sign": small_parts(5, 1, SOME, 4, 3),
        "sign, all": small_parts(5, 1, FEW, 5),
        "two-means": small_parts(6, 1, SOME, 4),
        "two-means, all": small_parts(6, 1, FEW, 5),
        "two-means, zeros": small_parts(6, 1, [0.0] * 9, 3),
        "tree": small_parts(7, 8, SOME, 4, 3),
        "tree, all": small_parts(7, 8, FEW, 5),
        "powers of two": small_parts(8, 9, SOME, 4),
        "powers of two, all": small_parts(8, 9, FEW, 5),
        "factors": slow.Parts(18, 9, 32, 6, 2, (2,), tuple(range(10)), FACTORS, (1,)),
        "factors, no entry": slow.Parts(18, 9, 32, 0, 0, (1,), (), ()),
        "notes": slow.parse(SMALL["4 bits"])._replace(notes=(1, 2)),
    }.items()
}
# A payload holds no check sum: a bit of these bytes makes another good payload of a case. Geometric levels
# could be a dynamic tree's, and where there are two buckets, their size could be a note.
MISTAKABLE = {"8 bits": {6}} | {
    case: {5} for case in ("uniform", "uniform, all", "uniform, unused slots", "sign", "tree")
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
    codes, scales, notes = np.array(parts.codes, np.uint64), patterns(parts.scales), patterns(parts.notes)
    assert wire.pack(header, indices, codes, scales, notes).tobytes() == data
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
    assert accepted.isdisjoint({0, 1, 2, 3})  # magic and version
    assert accepted & {5, 6} == MISTAKABLE.get(case, set())  # both kinds
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
    assert accepted == list(range(slow.METHODS)) if offset == 4 else len(accepted) <= 7


@settings(max_examples=300)
@given(st.binary(max_size=100))
@example(b"")
@example(b"HGC\x01")
def test_random_bytes(data):
    assert not is_accepted(data)
    is_accepted(b"HGC\x01" + data)  # which compares with the independent decoder


FLOATS = st.floats(width=32) | st.floats(0, 2, width=32) | st.just(0.0)


@st.composite
def plausible(draw):
    """A header that makes sense, notes and scales that may, and any body of the right length."""
    n = draw(st.integers(0, 40))
    k = draw(st.integers(min(n, 1), n))
    kind = draw(st.sampled_from(range(10)))
    bits = draw(st.sampled_from(list(slow.BITS[kind])))
    word = draw(st.sampled_from([0, 3, 17, 2**31 - 1]))
    if kind == slow_dense.FACTORS:
        k, word = min(k, 3), draw(st.sampled_from([r for r in range(1, n + 1) if n % r == 0] or [1]))
    notes = draw(st.lists(FLOATS, max_size=2))
    count = slow.scale_count(kind, k, word)
    scales = [slow.float_bits(v) for v in draw(st.lists(FLOATS, min_size=count, max_size=count))]
    if kind in (*slow_dense.BUCKETED, slow_dense.FACTORS):
        scales[0] = word
    told = tuple(slow.float_bits(note) for note in notes)
    parts = slow.Parts(1, kind, bits, n, k, tuple(scales), (), (), told)
    fields = slow.field_count(parts) if slow.index_kind(parts) != 1 else 0
    empty = slow.build(parts._replace(positions=tuple(range(fields)), codes=(0,) * fields))
    behind = 16 + 4 * len(notes) + 4 * count
    body = draw(st.binary(min_size=len(empty) - behind, max_size=len(empty) - behind))
    mask = draw(st.sampled_from([255, 17, 1]))  # fewer bits set come closer to what is valid
    return empty[:behind] + bytes(b & mask for b in body)


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


# Index kind with the number of notes, value kind and bits.
CLAIMS = [
    *((0, 0, 32), (0, 1, 16), (1, 2, 1), (1, 3, 4), (1, 0, 32), (0xF0, 0, 32), (0xF1, 3, 4)),
    *(
        (0, 4, 4),
        (1, 4, 4),
        (0, 5, 1),
        (1, 6, 1),
        (0, 7, 8),
        (0, 8, 9),
        (2, 9, 32),
        (0xF2, 9, 32),
        (0xF0, 4, 2),
    ),
]


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
    for index, value_kind, bits in CLAIMS:
        for word in (0, 1, 512, BILLIONS, 2**32 - 1):
            behind = struct.pack("<I", word).ljust(body, b"\0")[:body]
            data = b"HGC" + struct.pack("<BBBBBII", 1, 1, index, value_kind, bits, n, k) + behind
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


@pytest.mark.parametrize("kind", [4, 5, 6, 7, 8])
def test_memory_follows_the_bytes_in_the_other_kinds(kind):
    for n in (2**20, BILLIONS):
        parts = small_parts(kind, list(slow.BITS[kind])[-1], [1.0], 1)
        data = slow.build(parts._replace(n=n, positions=(n - 1,)))
        assert len(data) <= 36
        assert peak_of(data, accepted=True) < 100_000


@pytest.mark.parametrize("rows", [2**10, 2**15])
def test_memory_follows_the_factors_and_not_their_product(rows):
    data = slow.build(slow.Parts(18, 9, 32, rows**2, 1, (rows,), tuple(range(2 * rows)), (0,) * 2 * rows))
    assert len(data) == 20 + 8 * rows
    assert peak_of(data, accepted=True) < 50 * len(data)
