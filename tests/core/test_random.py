"""The random words: known answers, and that what differs in one part of a draw draws other numbers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod.core.random import EVERYONE, Draw, key_of, philox

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
ANSWERS = {  # of the authors' own implementation
    ((0, 0, 0, 0), (0, 0)): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ((ONES,) * 4, (ONES, ONES)): "408f276d 41c83b0e a20bc7c6 6d5451fd",
    PI: "d16cfe09 94fdcceb 5001e420 24126ea1",
}


@pytest.mark.parametrize(("counter", "key"), ANSWERS)
def test_known_answers(counter, key):
    words = philox(tuple(np.array([word], np.uint64) for word in counter), key)
    assert " ".join(f"{word:08x}" for word in words[:, 0]) == ANSWERS[counter, key]


def test_where_the_parts_of_a_draw_stand():
    draw = Draw(key=(7, 8), step=9, rank=11, stream=10)
    words = draw.words(9)
    for block in range(3):
        counter = tuple(np.array([word], np.uint64) for word in (block, 9, 10, 11))
        expected = philox(counter, (7, 8))[:, 0]
        assert (words[4 * block : 4 * block + 4] == expected[: words.size - 4 * block]).all()


@given(st.integers(0, 300), st.integers(0, 300))
def test_fewer_words_are_the_first_of_more(some, more):
    some, more = sorted((some, more))
    draw = Draw(key_of(3, "layer.weight"), step=5, rank=2)
    words = draw.words(some)
    assert words.dtype == np.uint32 and words.shape == (some,)
    assert (words == draw.words(more)[:some]).all()


def test_draws_that_differ_in_any_part_are_others():
    draw = Draw((1, 2), 3, 4, 5)
    others = [
        draw,
        draw._replace(key=(1, 3)),
        draw._replace(key=(2, 2)),
        draw._replace(step=4),
        draw._replace(rank=5),
        draw.of(6),
        draw.of(5, shared=True),
    ]
    for one, other in combinations(others, 2):
        assert (one.words(400) == other.words(400)).sum() <= 1
    assert draw.of(6).rank == 4 and draw.of(6, shared=True).rank == EVERYONE


def test_a_step_and_a_rank_of_more_than_32_bits_wrap():
    draw = Draw((1, 2), 3, EVERYONE)
    assert (draw.words(8) == draw._replace(step=3 + 2**32, rank=-1).words(8)).all()


def test_keys_depend_on_seed_and_name():
    keys = {key_of(seed, name) for seed in range(10) for name in ("a", "b", "a/b", "")}
    assert len(keys) == 40 and key_of(1, "a") == key_of(1, "a")
    assert all(0 <= word < 2**32 for key in keys for word in key)


def test_uniform_numbers():
    numbers = Draw(key_of(0, "x"), 0, 0).uniform(100_000)
    assert numbers.dtype == np.float64 and numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.005 and abs(numbers.var() - 1 / 12) < 0.002
    counts = np.histogram(numbers, 64)[0]
    assert (np.abs(counts - 100_000 / 64) < 6 * np.sqrt(100_000 / 64)).all()
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
