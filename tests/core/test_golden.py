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


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_encoder_gives_the_very_bytes(path):
    method, n, steps = read(path)
    codec = Codec(method, n)
    for gradient, payload, _ in steps:
        assert codec.encode(gradient).tobytes() == payload


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_bytes_decode_to_the_very_values(path):
    method, n, steps = read(path)
    for _, payload, decoded in steps:
        assert same_bits(Codec(method, n).decode_sum([as_bytes(payload)]), decoded)
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
    assert {h.quantizer.bits for h in headers} == {1, 2, 3, 4, 5, 6, 7, 8, 16, 32}
    assert {h.index_kind for h in headers} == {wire.ALL, wire.ELIAS_FANO}
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
