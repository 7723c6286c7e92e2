import re
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import Codec, PayloadError, inspect, methods
from hgc_horovod.core import wire
from hgc_horovod.core.quantize import for_bits

from . import slow, slow_dense
from .samples import BITS, as_bytes, hybrid, patterns, payload_parts, quantizer_of, same_bits
from .slow_numbers import key_of, philox, random_words

DOCS = Path(__file__).parents[2] / "docs"
PAGE, SECOND_PAGE = DOCS / "wire-format.md", DOCS / "quantizers.md"


def page_examples(page: Path = PAGE) -> list[bytes]:
    """The bytes of a page's hex blocks; what follows two spaces on a line is commentary."""
    blocks = re.findall(r"```hex\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines())) for block in blocks]


@pytest.mark.parametrize(
    ("number", "sent", "decoded"),
    [(0, {3: -1, 4: 16, 13: 5, 19: -3}, {3: -2, 4: 8, 13: 8, 19: -2}), (1, {4: 16}, {4: 16})],
)
def test_the_examples_of_the_page(number, sent, decoded):
    example, codec = page_examples()[number], Codec(hybrid(0.2, 2), 20)
    gradient, wanted = np.zeros(20, np.float32), np.zeros(20, np.float32)
    gradient[list(sent)], wanted[list(decoded)] = list(sent.values()), list(decoded.values())
    assert codec.encode(gradient).tobytes() == example == slow.encode(gradient.tolist(), 4, 2)
    assert same_bits(codec.decode_sum([as_bytes(example)]), wanted)
    assert slow.decode(example) == wanted.tolist()


def test_the_pages_have_no_other_examples():
    assert len(page_examples()) == 2 and len(page_examples(SECOND_PAGE)) == 1


def test_the_example_of_the_second_page():
    (example,), text = page_examples(SECOND_PAGE), SECOND_PAGE.read_text(encoding="utf-8")
    gradient = [3.0, -1.0, 0.0, -2.5, 0.0, 0.0, 0.0, 0.0, -0.25, 0.5]
    words = random_words(10, seed=7, name="fc.weight", step=0, rank=1)
    codes, scales = slow_dense.quantize(slow_dense.UNIFORM, 3, gradient, words, bucket=4)
    parts = slow.Parts(7, slow_dense.UNIFORM, 3, 10, 10, tuple(scales), tuple(range(10)), tuple(codes))
    method = methods.qsgd(3, norm="max", bucket=4, min_elements=1, min_ndim=1)
    codec = Codec(method, 10, "fc.weight", seed=7, rank=1)
    assert codec.encode(np.array(gradient, np.float32)).tobytes() == example == slow.build(parts)
    wanted = np.array([3, -1, 0, -2, 0, 0, 0, 0, -0.33333334, 0.5], np.float32)
    assert np.array_equal(codec.decode_sum([as_bytes(example)]), wanted)
    assert slow.decode(example) == wanted.tolist()
    told = " ".join(text.split())
    for numbers in (words, key_of(7, "fc.weight"), philox((0,) * 4, (0, 0))):
        assert ", ".join(f"{number:08x}" for number in numbers) in told


def test_the_page_names_the_methods():
    told = " ".join(PAGE.read_text(encoding="utf-8").split())
    names = [f"{number} {name}" for number, name in enumerate(wire.METHOD_NAMES)]
    assert f"its own, {', '.join(names[1:])}." in told and len(names) == slow.METHODS


@given(payload_parts())
def test_any_parts_both_ways(parts):
    data = slow.build(parts)
    header, indices, values = wire.unpack(as_bytes(data))
    method, notes = wire.METHOD_NAMES[parts.method], patterns(parts.notes)
    assert header == wire.layout(parts.n, parts.k, quantizer_of(parts), method, notes.size)
    assert indices.tolist() == list(parts.positions)
    assert same_bits(values, np.array(slow.values(parts), np.float32))
    assert same_bits(wire.read_notes(as_bytes(data)), notes)
    packed = wire.pack(header, indices, np.array(parts.codes, np.uint64), patterns(parts.scales), notes)
    assert packed.dtype == np.uint8 and packed.tobytes() == data
    assert slow.parse(data) == parts


@given(st.integers(1, 2**31 - 1), st.sampled_from(BITS), st.data())
def test_sections_are_whole_words_one_after_the_other(n, bits, data):
    k = data.draw(st.integers(1, n))
    quantizer = for_bits(bits)
    header = wire.layout(n, k, quantizer)
    kind = slow.index_kind(slow.Parts(0, quantizer.wire_id, bits, n, k, (), (), ()))
    assert header.index_kind == kind
    low, high = (slow.low_bits(n, k), slow.high_bits(n, k)) if kind else (0, 0)
    scales, high_at, fields, end = header.sections
    assert (scales, high_at - scales) == (16, 4 * quantizer.scale_count)
    assert (fields - high_at, end - fields) == (-(-high // 32) * 4, -(-k * (low + bits) // 32) * 4)
    assert wire.payload_bytes(n, k, quantizer) == end


@pytest.mark.parametrize("bits", BITS)
def test_the_header_stands_where_the_page_says(bits):
    for name, number in (("hgc", 1), ("custom", 0), ("anything else", 0)):
        header = wire.layout(100, 7, for_bits(bits), name)
        nothing = np.zeros(0, np.int64)
        payload = wire.pack(
            header, nothing, nothing.astype(np.uint64), np.zeros(header.quantizer.scale_count, np.float32)
        )
        kind = {32: 0, 16: 1, 1: 2}.get(bits, 3)
        assert payload[:16].tobytes() == b"HGC" + struct.pack("<BBBBBII", 1, number, 1, kind, bits, 100, 7)
        assert wire.read_header(payload).method == ("hgc" if number else "custom")


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("n", [10**6, 10**6 + 1, 1_234_567, 25_557_032, 10**8, 2**31 - 1])
@pytest.mark.parametrize(("density", "index_bits"), [(0.01, 8.9), (0.001, 12.3)])
def test_bits_per_kept_entry_with_everything_in(n, bits, density, index_bits):
    method = hybrid(density, bits)
    assert method.payload_bytes(n) * 8 <= (index_bits + bits) * method.slots(n)


@given(st.lists(payload_parts(max_n=20), max_size=4))
def test_payloads_one_behind_the_other_are_cut_apart(several):
    payloads = [slow.build(parts) for parts in several]
    pieces = wire.split(as_bytes(b"".join(payloads)))
    assert [piece.tobytes() for piece in pieces] == payloads


@given(payload_parts(max_n=20), st.integers(1, 15))
def test_a_buffer_that_ends_within_a_payload_is_not_cut(parts, behind):
    data = slow.build(parts)
    for buffer in (data + data[:behind], data[:-1], data + bytes(behind)):
        with pytest.raises(PayloadError):
            wire.split(as_bytes(buffer))


@given(payload_parts())
def test_a_summary_accounts_for_every_byte(parts):
    data = slow.build(parts)
    summary = inspect(as_bytes(data))
    assert inspect(as_bytes(data).tobytes()) == summary
    kept = parts.k if parts.value_kind == slow_dense.FACTORS else len(parts.positions)
    assert (summary.n, summary.k, summary.kept) == (parts.n, parts.k, kept)
    assert (summary.bits, summary.method) == (parts.bits, wire.METHOD_NAMES[parts.method])
    assert summary.total_bytes == len(data)
    assert summary.header_bytes + summary.index_bytes + summary.value_bytes == len(data)
    some = slow.index_kind(parts) == 1
    low, high = (slow.low_bits(parts.n, parts.k), slow.high_bits(parts.n, parts.k)) if some else (0, 0)
    assert summary.header_bytes == 16 + 4 * len(parts.notes)
    assert summary.index_bytes == (high + parts.k * low + 7) // 8


def test_strided_and_read_only_payloads_are_read():
    payload = as_bytes(slow.encode([0.0, 2.0, -1.0, 0.5], 2, 4))
    assert not payload.flags.writeable
    _, indices, values = wire.unpack(np.repeat(payload, 3)[::3])
    assert indices.tolist() == [1, 2] and values == pytest.approx([2, -1], rel=0.2)


def test_the_other_index_kind_is_refused_with_the_header():
    for k, bits in [(2, 32), (2, 4), (1, 32), (2, 16)]:
        payload = slow.encode([1.0, 2.0], k, bits)
        other = as_bytes(payload).copy()
        other[5] ^= 1
        with pytest.raises(PayloadError, match="index kind"):
            wire.read_header(other)


@pytest.mark.parametrize(("shape", "dtype"), [(32, "i1"), (32, "f4"), ((2, 16), "u1"), ((), "u1")])
def test_what_is_no_row_of_bytes_is_refused(shape, dtype):
    for read in (wire.unpack, wire.read_header, inspect):
        with pytest.raises(PayloadError):
            read(np.zeros(shape, dtype))
