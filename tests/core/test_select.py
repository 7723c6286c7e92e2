import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core.select import TopK, slots

from . import slow
from .samples import gaussian, tensors

TOP = TopK(0.1)


def chosen(values: list[float], k: int) -> list[int]:
    indices = TOP.select(np.array(values, np.float32), k)
    assert indices.dtype == np.int64
    return indices.tolist()


@given(tensors(min_size=1), st.data())
def test_exactly_the_largest_by_the_definition(tensor, data):
    k = data.draw(st.integers(1, tensor.size))
    assert chosen(tensor, k) == slow.top_k(tensor.tolist(), k)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0]), min_size=1, max_size=30), st.data())
def test_ties_go_to_the_lower_index(values, data):
    k = data.draw(st.integers(1, len(values)))
    assert chosen(values, k) == slow.top_k(values, k)


def test_every_k_of_a_larger_tensor():
    tensor = np.round(gaussian(300), 1)  # many ties, and zeros of both signs
    for k in range(1, 301):
        assert chosen(tensor, k) == slow.top_k(tensor.tolist(), k)


@pytest.mark.parametrize("value", [1.0, -3.5, 2.0**-149, 3.4028235e38])
def test_all_equal(value):
    for k in (1, 4, 9, 10):
        assert chosen([value] * 10, k) == list(range(k))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8, 9])
def test_zeros_are_never_chosen(k):
    assert chosen([0.0, -0.0, 5.0, 0.0, -0.0, -1.0, 0.0, 3.0], k) == [[2], [2, 7], [2, 5, 7]][min(k, 3) - 1]
    assert chosen([0.0, -0.0, 0.0], k) == []


def test_more_slots_than_entries():
    assert chosen([3.0, -1.0], 2) == chosen([3.0, -1.0], 7) == [0, 1]


def test_nothing_to_choose_from():
    assert chosen([], 0) == []


def test_the_input_stays_as_it_is():
    tensor = gaussian(50)
    tensor.setflags(write=False)
    before = tensor.tobytes()
    assert TOP.select(tensor, 5).size == 5
    assert tensor.tobytes() == before


@given(st.integers(0, 2**31 - 1), st.floats(0, 1, exclude_min=True))
def test_slots_lie_between_one_and_all(n, density):
    k = slots(n, density)
    assert isinstance(k, int)
    assert min(n, 1) <= k <= n
    assert abs(k - n * density) <= 0.5 + 1e-6 or k == 1


@pytest.mark.parametrize(
    ("n", "density", "k"),
    [
        (0, 0.5, 0),
        (1, 0.001, 1),
        (49, 0.01, 1),
        (150, 0.01, 2),
        (149, 0.01, 1),
        (3, 0.5, 2),
        (5, 0.5, 3),
        (7, 1.0, 7),
        (10**6, 0.01, 10**4),
        (2**31 - 1, 1.0, 2**31 - 1),
        (2**31 - 1, 1e-300, 1),
    ],
)
def test_slots_round_half_up(n, density, k):
    assert slots(n, density) == k
