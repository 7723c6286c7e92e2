import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import methods
from hgc_horovod.core.dense import DenseRule

from .samples import BITS, hybrid

SHAPES = st.lists(st.integers(0, 60), max_size=4)


@pytest.mark.parametrize(
    ("shape", "dense"),
    [
        ((), True),
        ((0,), True),
        ((5000,), True),
        ((32, 32), False),
        ((31, 33), True),
        ((0, 2048), True),
        ((64, 3, 7, 7), False),
        ((1, 1024), False),
    ],
)
def test_small_tensors_and_vectors_are_dense_by_default(shape, dense):
    assert DenseRule().covers(shape) is dense
    assert methods.hgc().is_dense(shape) is dense


@given(SHAPES, st.integers(0, 3000), st.integers(0, 4))
def test_what_a_shape_decides(shape, min_elements, min_ndim):
    n = math.prod(shape)
    rule = DenseRule(min_elements=min_elements, min_ndim=min_ndim)
    assert rule.covers(shape) == (n == 0 or n < min_elements or len(shape) < min_ndim)


@given(SHAPES, st.floats(0.001, 1), st.sampled_from(BITS), st.sampled_from([2, 4, 8]), st.booleans())
def test_a_payload_never_inflates_a_tensor_unless_that_is_allowed(shape, density, bits, itemsize, inflate):
    method = hybrid(density, bits, inflate=inflate)
    n = math.prod(shape)
    smaller = method.payload_bytes(n) < n * itemsize
    allowed = n > 0 and len(shape) > 0 and (inflate or smaller)
    assert method.is_dense(shape, itemsize=itemsize) != allowed


def test_a_payload_of_the_very_size_of_the_tensor_is_no_gain():
    method = hybrid(0.125, bits=2)
    assert method.payload_bytes(8) == 8 * 4 and method.is_dense((8,))
    assert method.payload_bytes(9) < 9 * 4 and not method.is_dense((9,))


def test_half_precision_tensors_go_dense_earlier():
    method = hybrid(1.0, bits=16)
    assert not method.is_dense((100, 100), itemsize=4)
    assert method.is_dense((100, 100), itemsize=2)


def test_a_warm_up_step_whose_payload_would_inflate_is_dense():
    method = hybrid(0.01, bits=32, warmup=[1.0, 0.5], warmup_steps=2)
    assert [method.is_dense((64, 64), step) for step in range(4)] == [True, False, False, False]
    assert not method.is_dense((64, 64))


def test_dense_steps_count_from_the_first_step():
    method = hybrid(0.01, dense_steps=2)
    assert [method.is_dense((64, 64), step) for step in range(4)] == [True, True, False, False]
    assert not method.is_dense((64, 64))


@pytest.mark.parametrize("name", ["min_elements", "min_ndim"])
@pytest.mark.parametrize("bad", [-1, 0.5, "1", True, None])
def test_bad_numbers_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=name):
        DenseRule(**{name: bad})
