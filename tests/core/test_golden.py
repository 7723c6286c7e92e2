"""Committed bytes: today's encoder writes them, and they decode to the committed values."""

import json
from pathlib import Path

import numpy as np
import pytest

from hgc_horovod import Codec, Method
from hgc_horovod.core import wire

from . import slow
from .make_golden import FOLDER, write
from .samples import as_bytes, same_bits

FIXTURES = sorted(FOLDER.glob("*.json"))
# Linear algebra is not the same to the last bit on every machine, so of these the decoder alone is pinned.
INEXACT = [FOLDER / "outer.json"]


def read(path: Path) -> tuple[Method, int, list[tuple[np.ndarray, bytes, np.ndarray]]]:
    content = json.loads(path.read_text())
    steps = [
        (
            np.array(step["gradient"], np.float32),
            bytes.fromhex(step["payload"]),
            np.array(step["decoded"], np.float32),
        )
        for step in content["steps"]
    ]
    return Method.from_json(json.dumps(content["method"])), content["entries"], steps


def codec_of(path: Path) -> Codec:
    method, n, _ = read(path)
    return Codec(method, n, **json.loads(path.read_text()).get("codec", {}))


@pytest.mark.parametrize("path", sorted({*FIXTURES} - {*INEXACT}), ids=lambda path: path.stem)
def test_the_encoder_gives_the_very_bytes(path):
    codec = codec_of(path)
    for gradient, payload, _ in read(path)[2]:
        assert codec.encode(gradient).tobytes() == payload
        codec.decode_sum([as_bytes(payload)])  # which controllers learn from


@pytest.mark.parametrize("path", INEXACT, ids=lambda path: path.stem)
def test_the_encoder_comes_close_where_linear_algebra_decides(path):
    codec = codec_of(path)
    for gradient, payload, decoded in read(path)[2]:
        own = codec.encode(gradient)
        assert own[:20].tobytes() == payload[:20] and own.size == len(payload)
        assert np.allclose(codec.decode_sum([own]), decoded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_bytes_decode_to_the_very_values(path):
    for _, payload, decoded in read(path)[2]:
        assert same_bits(codec_of(path).decode_sum([as_bytes(payload)]), decoded)
        assert np.array_equal(np.array(slow.decode(payload), np.float32), decoded)


def test_the_fixtures_cover_the_format():
    headers, kept, capped = [], [], 0
    for path in FIXTURES:
        _, n, steps = read(path)
        assert len(steps) == 3
        for _, payload, _ in steps:
            header, indices, _ = wire.unpack(as_bytes(payload))
            assert header.n == n
            headers.append(header)
            kept.append(indices.size)
            parts = slow.parse(payload)
            if parts.value_kind == 3 and kept[-1]:
                lo, hi = map(slow.bits_float, parts.scales)
                capped += hi == lo * 4.0**2 ** (parts.bits - 1)
    assert {h.quantizer.bits for h in headers} == {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32}
    assert {h.index_kind for h in headers} == {wire.ALL, wire.ELIAS_FANO, wire.OUTER}
    kinds = {(h.quantizer.wire_id, h.quantizer.bits, h.index_kind) for h in headers}
    assert {(kind, bits) for kind, bits, _ in kinds} == {
        (kind, b) for kind in slow.BITS for b in slow.BITS[kind]
    }
    assert all(
        {(kind, 1), (kind, 0)} <= {(k, index) for k, _, index in kinds} for kind in (0, 1, *range(4, 9))
    )
    assert {h.notes for h in headers} == {0, 1, 2}
    assert {0, 1, 2} <= {h.n for h in headers}
    assert any(h.k == h.n > 2 and h.index_kind == wire.ELIAS_FANO for h in headers)
    assert any(0 < m < h.k for h, m in zip(headers, kept, strict=True))
    assert max(h.low_bits for h in headers) >= 6 and capped
    assert sum(path.stat().st_size for path in FIXTURES) < 200_000


def test_a_fixture_is_never_written_again(tmp_path):
    names = write(tmp_path)
    assert {f"{name}.json" for name in names} <= {path.name for path in FIXTURES}
    (tmp_path / "bits-04.json").write_text("old")
    (tmp_path / "bits-05.json").unlink()
    assert write(tmp_path) == ["bits-05"]
    assert (tmp_path / "bits-04.json").read_text() == "old"
