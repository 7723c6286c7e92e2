"""What the compressor tells about itself, and what it leaves alone."""

from __future__ import annotations

import json
import logging
import random
from typing import Any
from unittest import mock

import horovod.torch as hvd
import numpy as np
import torch

import hgc_horovod.torch as hgc
from hgc_horovod.torch.parameters import Parameters
from tests.cases import variants

from .harness import OPTIONS, SHAPES, STEPS, Given, backward, reduced, wrap

CONTROL = 2  # numbers that Horovod reduces in place of a compressed gradient
AGREEMENT = 12  # bytes, once a step


def wire_bytes(n: int, k: int, bits: int) -> int:
    """A payload's size by the wire format: header, scales, and in whole words high bits and fields."""
    low = (n // k).bit_length() - 1
    scales = {1: 1, 16: 0, 32: 0}.get(bits, 2)
    high = k + -(-n >> low)
    return 16 + 4 * scales + 4 * -(-high // 32) + 4 * -(-k * (low + bits) // 32)


@variants(
    four_bits={"bits": 4},
    one_bit={"bits": 1},
    float32={"bits": 32},
    half={"bits": 4, "dtype": torch.float16, "itemsize": 2},
    brain={"bits": 4, "dtype": torch.bfloat16},
)
def case_bytes(bits: int, dtype: torch.dtype = torch.float32, itemsize: int = 4) -> None:
    """Bytes per tensor and in total. `itemsize` is what Horovod reduces the dtype in: bfloat16 as float32."""
    model = Given(dtype=dtype)
    optimizer, compressor = wrap(model, {"density": 0.02, "bits": bits})
    assert compressor.report().total.sent_bytes == 0 and compressor.report().total.ratio == 1
    for _ in reduced(optimizer, backward(model)):
        pass
    report = compressor.report()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    sent = {name: wire_bytes(n, int(n * 0.02 + 0.5), bits) + CONTROL * itemsize for name, n in sizes.items()}
    sent["bias"] = itemsize * sizes["bias"]
    rows = {row.name: row for row in report.tensors}
    assert rows.pop("(agreement)").sent_bytes == STEPS * AGREEMENT
    assert rows.keys() == sizes.keys()
    for name, row in rows.items():
        assert (row.steps, row.compressed_steps) == (STEPS, 0 if name == "bias" else STEPS), name
        assert (row.dense_bytes, row.sent_bytes) == (STEPS * 4 * sizes[name], STEPS * sent[name]), name
    compressed = sum(sizes.values()) - sizes["bias"], sum(sent.values()) - sent["bias"]
    assert report.total.steps == STEPS
    assert report.total.ratio == 4 * sum(sizes.values()) / (sum(sent.values()) + AGREEMENT)
    assert report.total.compressed_ratio == 4 * compressed[0] / compressed[1]
    assert report.total.encode_seconds > 0 and report.total.decode_seconds > 0
    assert report.to_dict()["ratio"] == report.total.ratio and json.dumps(report.to_dict())
    assert f"{report.total.ratio:.1f} over the whole model" in str(report)
    assert f"{report.total.compressed_ratio:.1f} on the compressed" in str(report)
    assert all(name in str(report) for name in SHAPES)
    assert report.kernels.startswith(("cpu (", "reference (")) and f"kernels: {report.kernels}" in str(report)
    assert f"bits={bits}" in repr(compressor) and "3 of 4 tensors" in repr(compressor)
    before = report.total.sent_bytes
    for _ in reduced(optimizer, backward(model), range(1)):
        pass
    assert report.total.sent_bytes == before < compressor.report().total.sent_bytes  # a report is a snapshot


def case_mixed_steps() -> None:
    """Warm-up and dense steps: the compressed ratio counts the compressed steps alone."""
    model = Given({"matrix": (48, 32)})
    optimizer, compressor = wrap(model, {**OPTIONS, "dense_steps": 2, "warmup_steps": 1, "warmup": [0.25]})
    for _ in reduced(optimizer, backward(model)):
        pass
    n = 48 * 32
    payloads = wire_bytes(n, n // 4, 4) + wire_bytes(n, int(n * 0.05 + 0.5), 4) + 2 * CONTROL * 4
    total = compressor.report().total
    assert total.sent_bytes == 2 * 4 * n + payloads + STEPS * AGREEMENT and total.dense_bytes == 4 * 4 * n
    assert total.compressed_ratio == 2 * 4 * n / payloads


def case_no_search() -> None:
    """Once two steps have shown the order of the gradients, no gradient is searched for."""
    model = Given({f"p{number}": (40, 30) for number in range(20)})
    optimizer, _ = wrap(model, OPTIONS)
    steps = reduced(optimizer, backward(model), range(7))
    next(steps), next(steps)
    with mock.patch.object(Parameters, "_search", autospec=True, side_effect=Parameters._search) as search:
        for _ in steps:
            pass
    assert search.call_count == 0


def generators() -> Any:
    """The whole state of the global generators, NumPy's position in its words included: a draw moves that."""
    _, words, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), words.tolist(), rest


@variants(deterministic={}, momentum={"momentum": 0.9, "masking": True, "clip": 1.0, "warmup_steps": 4})
def case_random_generators(**options: Any) -> None:
    """The user's global random generators are left alone."""
    model = Given()
    before = generators()
    optimizer, compressor = wrap(model, {**OPTIONS, **options}, attach={"seed": 3})
    for _ in reduced(optimizer, backward(model)):
        pass
    assert str(compressor.report()) and generators() == before
    assert hvd.size() > 1 and compressor.report().total.compressed_steps == STEPS


def case_moving_is_told() -> None:
    """The first rank logs once what it moved out of the optimizer."""
    model = Given()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.03, nesterov=True)
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("hgc_horovod")
    logger.addHandler(handler)
    hgc.Compression.hgc(model.named_parameters(), momentum_from=optimizer)
    logger.removeHandler(handler)
    assert len(records) == (hvd.rank() == 0)
    for record in records:
        assert "momentum 0.9" in record and "weight_decay 0.03" in record and "nesterov True" in record
