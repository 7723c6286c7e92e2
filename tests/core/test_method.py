import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import Method, methods
from hgc_horovod.core import wire
from hgc_horovod.core.feedback import Feedback
from hgc_horovod.core.quantize import Float32, for_bits
from hgc_horovod.core.select import TopK

from .samples import BITS

NUMBERS = st.integers(0, 10**6)
PARTS = ("selector", "quantizer", "feedback", "schedule", "dense")


@st.composite
def hybrid_arguments(draw):
    """Arguments that `methods.hgc` takes."""
    momentum = draw(st.just(0.0) | st.floats(0.001, 0.999))
    densities = draw(st.none() | st.lists(st.floats(0.001, 1), min_size=1, max_size=5))
    return {
        "density": draw(st.floats(0, 1, exclude_min=True)),
        "bits": draw(st.sampled_from(BITS)),
        "momentum": momentum,
        "nesterov": momentum > 0 and draw(st.booleans()),
        "masking": momentum > 0 and draw(st.booleans()),
        "clip": draw(st.none() | st.floats(0.01, 100)),
        "feedback": draw(st.booleans()),
        "warmup_steps": draw(st.integers(len(densities or ()), 1000)),
        "warmup_stages": draw(st.integers(1, 10)),
        "warmup": densities,
        "dense_steps": draw(NUMBERS),
        "min_elements": draw(NUMBERS),
        "min_ndim": draw(st.integers(0, 5)),
        "dense_fp16": draw(st.booleans()),
        "inflate": draw(st.booleans()),
    }


@given(hybrid_arguments())
def test_equal_arguments_give_equal_methods_and_json_gives_them_back(arguments):
    method = methods.hgc(**arguments)
    again = Method.from_json(method.to_json())
    for other in (methods.hgc(**arguments), again):
        assert other == method and hash(other) == hash(method) and repr(other) == repr(method)
    assert again.to_json() == method.to_json()
    assert method.name == "hgc"


@given(hybrid_arguments(), hybrid_arguments())
def test_methods_are_equal_only_where_what_they_do_is(a, b):
    first, second = methods.hgc(**a), methods.hgc(**b)
    assert (first == second) == (first.to_json() == second.to_json())


def test_numpy_numbers_are_as_good_as_python_ones():
    plain = methods.hgc(0.5, 4, momentum=0.5, min_elements=10, warmup_steps=8, dense_steps=2, clip=2.0)
    numpy = methods.hgc(
        np.float32(0.5),
        np.int64(4),
        momentum=np.float64(0.5),
        min_elements=np.int32(10),
        warmup_steps=np.int64(8),
        dense_steps=np.int64(2),
        clip=np.float32(2),
    )
    assert numpy == plain and numpy.to_json() == plain.to_json()


def test_a_method_is_immutable():
    with pytest.raises(AttributeError):
        methods.hgc().name = "other"
    with pytest.raises(AttributeError):
        methods.hgc().feedback.momentum = 0.5


def test_with_feedback_changes_the_rule_alone():
    method = methods.hgc(0.02, 3, clip=1.0)
    changed = method.with_feedback(momentum=0.9, nesterov=True)
    assert changed.feedback == Feedback(momentum=0.9, nesterov=True, clip=1.0)
    assert changed.with_feedback(momentum=0.0, nesterov=False) == method
    with pytest.raises(ValueError, match="momentum"):
        method.with_feedback(momentum=2.0)


@pytest.mark.parametrize("bits", BITS)
def test_slots_and_payload_bytes(bits):
    method = methods.hgc(0.01, bits, warmup=[0.5], warmup_steps=3)
    assert (method.slots(1000), method.slots(1000, 2), method.slots(1000, 3)) == (10, 500, 10)
    assert method.payload_bytes(1000) == wire.payload_bytes(1000, 10, for_bits(bits))
    assert method.payload_bytes(1000, 0) == wire.payload_bytes(1000, 500, for_bits(bits))


@pytest.mark.parametrize(
    ("bad", "names"),
    [({"density": d}, "density") for d in (0, -1, math.nan, math.inf, 2, 1.0001, "x", True, None, 10**400)]
    + [({"bits": b}, "bits") for b in (0, 9, 15, 64, -1, 3.5, 4.0, True, "4", None, math.nan)]
    + [({"momentum": m}, "momentum") for m in (1, 1.5, -0.1, math.nan, "x", True, None)]
    + [({"clip": c}, "clip") for c in (0, -1, math.nan, math.inf, "x", True)]
    + [({"nesterov": True}, "nesterov")]
    + [({flag: "no"}, flag) for flag in ("feedback", "inflate", "dense_fp16")]
    + [({"momentum": 0.9, flag: 1}, flag) for flag in ("nesterov", "masking")]
    + [({"warmup": w, "warmup_steps": 4}, "warmup") for w in (5, "0.1", 0.5)]
    + [
        ({name: bad}, name)
        for name in ("warmup_steps", "dense_steps", "min_elements", "min_ndim")
        for bad in (-1, 1.5, "x", True, None)
    ]
    + [({"warmup_stages": s, "warmup_steps": 5}, "warmup_stages") for s in (0, -1, 1.5, "x", True)]
    + [
        ({"warmup": w, "warmup_steps": 5}, "warmup")
        for w in ([], [0], [1.5], [0.5, math.nan], ["x"], [True], [None], [-0.5], [0.5] * 6)
    ]
    + [({"warmup": [0.5]}, "warmup")],
)
def test_bad_arguments_are_refused_by_name(bad, names):
    with pytest.raises(ValueError, match=rf"\b{names}\b"):
        methods.hgc(**bad)


def with_part(name: str, **fields: object) -> str:
    """The JSON of the default method with one part changed."""
    method = json.loads(methods.hgc().to_json())
    method[name] = {**method[name], **fields}
    return json.dumps(method)


def replaced(name: str, value: object) -> str:
    return json.dumps({**json.loads(methods.hgc().to_json()), name: value})


BROKEN = {
    "no JSON": "x",
    "nothing": "",
    "half": "{",
    "null": "null",
    "a list": "[]",
    "an empty object": "{}",
    "a number": "5",
    "a string": '"text"',
    "no parts": '{"name": "hgc"}',
    "an unknown kind": with_part("selector", kind="unknown"),
    "no kind": with_part("selector", kind=None),
    "a list for a kind": with_part("selector", kind=["top_k"]),
    "more fields": with_part("selector", more=1),
    "density 0": with_part("selector", density=0),
    "density x": with_part("selector", density="x"),
    "a density beyond float64": with_part("selector", density=10**400),
    "9 bits": with_part("quantizer", bits=9),
    "4 bits of 32": with_part("quantizer", kind="float32"),
    "momentum 1": with_part("feedback", momentum=1),
    "no momentum": with_part("feedback", nesterov=True),
    "negative stages": with_part("schedule", stages=-1),
    "half a dimension": with_part("dense", min_ndim=0.5),
    "density 2": with_part("schedule", densities=[2.0]),
    "no list": with_part("schedule", densities=5),
    "null for a part": replaced("selector", None),
    "a number for a part": replaced("selector", 5),
    "a string for a part": replaced("selector", "top_k"),
    "a list for a part": replaced("quantizer", [1, 2]),
    "an empty part": replaced("dense", {}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_text_that_is_no_method_is_refused(case):
    with pytest.raises(ValueError):
        Method.from_json(BROKEN[case])


@pytest.mark.parametrize("name", PARTS)
def test_a_part_in_the_place_of_another_is_refused(name):
    parts = json.loads(methods.hgc().to_json())
    for other in set(PARTS) - {name}:
        with pytest.raises(ValueError):
            Method.from_json(replaced(name, parts[other]))


@given(st.data())
def test_no_piece_of_the_json_passes(data):
    text = methods.hgc(warmup=[0.5], warmup_steps=2).to_json()
    with pytest.raises(ValueError):
        Method.from_json(text[: data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(ValueError):
        Method.from_json(text[data.draw(st.integers(1, len(text) - 1)) :])


def test_parts_compose_to_a_custom_method():
    method = Method(selector=TopK(0.5), quantizer=Float32())
    assert method.name == "custom"
    assert Method.from_json(method.to_json()) == method
    assert not method.is_dense((64, 64))


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (methods.hgc(0.001, 2), "hgc(density=0.001, bits=2)"),
        (methods.qsgd(), "qsgd(bits=4)"),
        (methods.powersgd(2), "powersgd(rank=2)"),
        (methods.memsgd(selection="random_k"), "memsgd(density=0.01)"),
        (methods.atomo(), "atomo(atoms=3)"),
        (methods.strom(0.5), "strom(tau=0.5, expected_density=0.01, bits=1)"),
        (methods.adaqs(), "adaqs(start_bits=4, most_bits=8, decay=0.9)"),
        (methods.budget(300), "budget(ratio=300, interval=100)"),
    ],
)
def test_a_method_says_what_it_sends(method, text):
    assert str(method) == text


def test_sizes_of_rounds():
    assert methods.powersgd(2).round_sizes((8, 4, 7, 9)) == (2 * 32, 2 * 63)
    assert methods.memsgd(0.1, selection="random_k").round_sizes((40, 30)) == (120,)
