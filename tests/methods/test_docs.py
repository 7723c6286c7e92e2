"""docs/methods.md tells what is so, and its snippets run."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hgc_horovod as hgc
from hgc_horovod import Codec, Method, methods, parts
from hgc_horovod.core import header
from hgc_horovod.core.method import PARTS, register
from hgc_horovod.core.wire import METHOD_NAMES

from . import bits
from .cases import CASES, DEFAULTS, NAMES, ranks_of, state, step
from .tensors import FAMILIES, gradients

TEXT = bits.PAGE.read_text()
ROWS = {row["name"]: row for row in bits.ROW.finditer(TEXT)}
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def cells(name):
    return [cell.strip() for cell in ROWS[name][0].strip("|").split("|")]


def test_every_method_has_a_row():
    assert tuple(ROWS) == METHOD_NAMES[1:] and set(ROWS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_bits_are_measured(name):
    told, measured = float(ROWS[name]["bits"]), bits.measured(name)
    assert told == pytest.approx(measured, rel=0.02, abs=0.0006)


def test_the_bits_of_random_k():
    assert f"sends {bits.shown(bits.measured('memsgd', selection='random_k'))} bits" in TEXT


@pytest.mark.parametrize("name", NAMES)
def test_the_columns_follow_from_the_parts(name):
    _, selects, _, keeps, _, biased, collective, source = cells(name)
    method, about = DEFAULTS[name], getattr(methods, name).__doc__
    assert (collective == "allreduce") == method.by_allreduce
    assert (selects == "all") == isinstance(method.selector, parts.All)
    assert keeps.startswith("the rest") == method.feedback.keep
    assert (biased == "no") == ("Unbiased" in about and "but for" not in about)
    assert ("reconstruction" in about) == (source in ("R", "r")) or source == "r"


def test_the_methods_that_vary_are_told():
    fixed_bits = [name for name in NAMES if DEFAULTS[name].varies and DEFAULTS[name].controller is None]
    line = next(part for part in TEXT.split("\n- ") if "another number of\n  bytes" in part)
    assert set(re.findall(r"\*\*(\w+)\*\*", line)) == set(fixed_bits)


def test_every_part_is_public_and_told():
    for part in PARTS.values():
        if part.__module__.startswith("hgc_horovod"):
            assert getattr(parts, part.__name__) is part and f"`{part.__name__}`" in TEXT
    assert set(parts.__all__) >= {part.__name__ for part in PARTS.values() if hasattr(parts, part.__name__)}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """What is registered here is forgotten afterwards, since other tests try all numbers on the wire."""
    tables = (PARTS, header._ADDED, header._BUCKETED)
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@pytest.fixture(scope="module")
def made():
    """What the page's snippets make, one after the other."""
    names: dict = {}
    for snippet in SNIPPETS:
        exec(compile(snippet, bits.PAGE, "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["method", "mine"])
def test_the_snippets_methods_work(made, name, kernels):
    method = made[name]
    assert len(SNIPPETS[1].splitlines()) <= 12 and Method.from_json(method.to_json()) == method
    for family in FAMILIES:
        codecs = ranks_of(method, (40, 30), 2, hgc.kernels.get(kernels))
        for each in zip(*(gradients(family, 1200, 6, rank) for rank in range(2)), strict=True):
            payloads, result = step(codecs, list(each))
            assert np.isfinite(result).all()
            assert not codecs[0].decode_sum([codecs[0].encode_nothing()]).any()
        told = hgc.inspect(payloads[0])
        assert told.method == "custom" and told.bits == method.quantizer.bits
        again = Codec(method, 1200, codecs[0].name, codecs[0].seed, 0, 2)
        again.load_state_dict(codecs[0].state_dict())
        assert dict(state(again)) == dict(state(codecs[0]))
        assert again.encode(each[0]).tobytes() == codecs[0].encode(each[0]).tobytes()


def test_a_part_of_ones_own_keeps_and_sends_all(made):
    """Each entry leaves once in 20 steps, and to half a step of the quantizer."""
    codec, gradient = Codec(made["mine"], 1000, "a"), gradients("normal", 1000, 1)[0]
    sent = sum(codec.decode_sum([codec.encode(gradient if i == 0 else 0 * gradient)]) for i in range(20))
    assert np.abs(sent - gradient).max() <= np.abs(gradient).max() / 15 / 2 * 1.001
    assert np.allclose(sent + codec.residual, gradient, atol=1e-6)


def test_a_quantizer_of_ones_own_with_buckets():
    from dataclasses import dataclass
    from functools import cached_property
    from typing import ClassVar

    @register
    @dataclass(frozen=True)
    class Thirds(parts.Bucketed):
        kind: ClassVar[str] = "thirds"
        wire_id: ClassVar[int] = 201
        bits: int = 2
        bucket: int = 64

        @cached_property
        def levels(self):
            return np.array([1 / 3, -1 / 3, 1, -1], np.float32)

        def _scales(self, values, bucket, context):
            return context.passes.bucket_max(values, bucket)

        def _codes(self, values, scales, bucket, context):
            ratio = np.abs(values) / np.maximum(np.repeat(scales, bucket)[: values.size], 1e-30)
            return (ratio > 2 / 3).astype(np.uint8) << 1 | (values < 0)

    codec = Codec(Method(parts.All(), Thirds()), 500, "a")
    for gradient in gradients("normal", 500, 4):
        before = codec.residual.copy()
        decoded = codec.decode_sum([codec.encode(gradient)])
        assert np.allclose(decoded + codec.residual, before + gradient, atol=1e-6)
        assert np.unique(np.abs(decoded)).size == 2 * -(-500 // 64)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"kind": 5}, "kind"),
        ({}, "kind"),
        ({"kind": "top_k"}, "kind"),
        ({"kind": "other", "quantize": print}, "wire_id"),
        ({"kind": "other", "quantize": print, "wire_id": 4}, "wire_id"),
        ({"kind": "other", "quantize": print, "wire_id": 256}, "wire_id"),
    ],
)
def test_what_cannot_be_registered(fields, names):
    before = dict(PARTS)
    with pytest.raises(ValueError, match=rf"\b{names}\b"):
        register(type("Part", (), fields))
    assert before == PARTS


def test_a_number_on_the_wire_is_one_quantizers(made):
    with pytest.raises(ValueError, match="Halves"):
        register(type("Part", (), {"kind": "other", "quantize": print, "wire_id": 200}))
    assert register(made["Halves"]) is made["Halves"] and CASES
