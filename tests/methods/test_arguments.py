"""Arguments that are out of range are refused by name."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

from hgc_horovod import Method, methods

from .cases import NAMES

NUMBERS = (math.nan, math.inf, "x", None, True)
FRACTIONS = (0, -0.5, 1.5, *NUMBERS)
FLAGS = ("no", 1, None)


def wholes(*outside):
    return (*outside, 2.5, "x", None, True)


LEVELS = {"norm": ("l3", 2, None), "bucket": wholes(-1, 2**31)}
MOMENTUM = {"momentum": (1, -0.1, *NUMBERS), "nesterov": FLAGS}
CLIP = {"clip": (0, -1, math.nan, math.inf, "x", True)}
VALUE_BITS = (0, 9, 64, 4.0, "4", None, True)
BAD = {
    "hgc": {
        "density": FRACTIONS,
        "bits": VALUE_BITS,
        **MOMENTUM,
        **CLIP,
        "masking": FLAGS,
        "feedback": FLAGS,
    },
    "adaqs": {
        "start_bits": wholes(1, 9),
        "most_bits": wholes(1, 9),
        "decay": (0, 1, *NUMBERS),
        **LEVELS,
    },
    "dqsgd": {
        "bits": (1, 8.5, *NUMBERS),
        "most_bits": wholes(1, 9),
        "t": (0, -1, math.nan, math.inf, "x", True),
        "p": (0, 3, math.nan, "x", None),
        "steps": (0, -1, 2.5, "x", True),
        **dict.fromkeys(("mu", "smoothness", "eta"), NUMBERS),
        **LEVELS,
    },
    "oland_raj": {"most_bits": wholes(1, 9), "least_bits": wholes(1, 9), "history": FLAGS, **LEVELS},
    "mqgrad": {
        "start_bits": wholes(1, 9),
        "least_bits": wholes(1, 9),
        "most_bits": wholes(1, 9),
        "interval": wholes(0),
        "epsilon": (-0.1, 1.1, *NUMBERS),
        **LEVELS,
    },
    "aiot_partition": {
        "block": wholes(0),
        **dict.fromkeys(("key_share", "key_entropy", "sparse_entropy"), FRACTIONS),
        "bits": VALUE_BITS,
    },
    "qsgd": {"bits": wholes(1, 9), **LEVELS},
    "terngrad": {"sigmas": (0, -1, math.nan, math.inf, "x", True), "bucket": LEVELS["bucket"]},
    "signsgd": {},
    "ef_signsgd": {**MOMENTUM, **CLIP, "bucket": LEVELS["bucket"]},
    "onebit": {**MOMENTUM, **CLIP},
    "strom": {"tau": (0, -1, *NUMBERS), "expected_density": FRACTIONS},
    "gradient_dropping": {
        **dict.fromkeys(("density", "sample"), FRACTIONS),
        "threshold": ("layer", None, 1),
        "bits": VALUE_BITS,
        "momentum": MOMENTUM["momentum"],
    },
    "dgc": {
        **dict.fromkeys(("density", "sample"), FRACTIONS),
        **MOMENTUM,
        **CLIP,
        "masking": FLAGS,
        "fp16": FLAGS,
        "warmup_steps": wholes(-1, 3),
    },
    "memsgd": {
        "density": FRACTIONS,
        "selection": ("top", None, 1),
        "bits": VALUE_BITS,
        "momentum": MOMENTUM["momentum"],
    },
    "adacomp": {"bin_size": wholes(0), "expected_density": FRACTIONS},
    "eightbit": {"bucket": LEVELS["bucket"], "feedback": FLAGS},
    "atomo": {"atoms": wholes(0)},
    "wangni": {"density": FRACTIONS, "bits": VALUE_BITS},
    "natural": {},
    "powersgd": {"rank": wholes(0), **MOMENTUM},
    "budget": {
        "ratio": (1, 0, -5, *NUMBERS),
        "interval": wholes(0),
        **MOMENTUM,
        **CLIP,
        "masking": FLAGS,
    },
}
DENSE = {"min_elements": wholes(-1), "min_ndim": wholes(-1), "inflate": FLAGS, "dense_fp16": FLAGS}
CASES = [
    (method, name, value)
    for method in NAMES
    for name, values in {**BAD[method], **DENSE}.items()
    for value in values
]
NEEDED = {"strom": {"tau": 1.0}}


@pytest.mark.parametrize("method", NAMES)
def test_every_argument_is_tried(method):
    """But those that only `hgc`'s tests need to try."""
    names = set(inspect.signature(getattr(methods, method)).parameters) - {"dense", *DENSE}
    if method == "hgc":
        names -= {"warmup", "warmup_steps", "warmup_stages", "dense_steps"}
    assert names - {"warmup"} == set(BAD[method])


@pytest.mark.parametrize(("method", "name", "value"), CASES)
def test_bad_arguments_are_refused_by_name(method, name, value):
    if value is None and (name == "t" or (name == "steps" and method == "dqsgd")):
        return
    with pytest.raises(ValueError, match=rf"\b{name}\b") as caught:
        getattr(methods, method)(**{**NEEDED.get(method, {}), name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [name for name in NAMES if name != "hgc"])
def test_an_argument_that_is_none_is_named(method):
    with pytest.raises(ValueError, match="densty"):
        getattr(methods, method)(**NEEDED.get(method, {}), densty=0.1)


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        ({"mu": 1.0, "eta": 2.0, "smoothness": 0.1, "steps": 5}, "mu"),  # a negative alpha
        ({"mu": 1.0, "eta": 1.0, "smoothness": 3.0, "steps": 5}, "smoothness"),  # one above 1
    ],
)
def test_dqsgd_needs_a_contracting_step(bad, names):
    with pytest.raises(ValueError, match=names):
        methods.dqsgd(**bad)


def test_random_k_takes_no_bits():
    with pytest.raises(ValueError, match="bits"):
        methods.memsgd(selection="random_k", bits=8)


def test_numpy_numbers_are_as_good_as_python_ones():
    for name, arguments in {
        "adaqs": {"start_bits": np.int64(3), "decay": np.float32(0.5)},
        "dqsgd": {"bits": np.float32(3.5), "t": np.float64(2), "p": np.int64(1)},
        "mqgrad": {"interval": np.int32(7), "epsilon": np.float32(0.25)},
        "terngrad": {"sigmas": np.float32(2)},
        "strom": {"tau": np.float32(0.5), "expected_density": np.float64(0.5)},
        "adacomp": {"bin_size": np.int64(50), "expected_density": np.float32(0.5)},
        "gradient_dropping": {"density": np.float32(0.5), "sample": np.float32(0.25)},
        "atomo": {"atoms": np.int64(2)},
        "powersgd": {"rank": np.int64(2), "momentum": np.float32(0.5)},
        "budget": {"ratio": np.float32(64), "interval": np.int64(3)},
        "aiot_partition": {"block": np.int64(64), "key_share": np.float32(0.5)},
    }.items():
        method = getattr(methods, name)
        plain = method(**{key: value.item() for key, value in arguments.items()})
        assert method(**arguments) == plain
        assert Method.from_json(method(**arguments).to_json()) == plain
