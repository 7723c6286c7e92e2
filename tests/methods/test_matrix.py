"""Methods of matrices, and those that average vectors over the ranks, against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hgc_horovod import Codec, methods
from hgc_horovod.core import context, matrices

from .definitions import NAME, SEED
from .matrix_definitions import Atoms, PowerSGD, RandomPlaces, matrix_shape, probabilities
from .tensors import FAMILIES, SMOOTH, gradients

DEFICIENT = ("mostly zeros", "wide")  # matrices whose rank is a question of rounding
SHAPES = ((1, 1), (2, 1), (5, 7), (30, 20), (8, 4, 3, 3))


def codecs_of(method, shape, ranks):
    n = math.prod(shape)
    return [Codec(method, n, NAME, SEED, rank, ranks, shape=shape) for rank in range(ranks)]


def reduced(codecs, each):
    """One step of a method that averages vectors."""
    rounds = [codec.rounds(gradient) for codec, gradient in zip(codecs, each, strict=True)]
    vectors, results = [next(one) for one in rounds], []
    while not results:
        assert len({vector.shape for vector in vectors}) == 1
        mean = np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)
        vectors = []
        for one in rounds:
            try:
                vectors.append(one.send(mean))
            except StopIteration as end:
                results.append(end.value)
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0]


def ranks_gradients(family, n, ranks, steps):
    return list(zip(*(gradients(family, n, steps, rank) for rank in range(ranks)), strict=True))


def assert_near(got, want, size, what):
    assert np.abs(got - want).max(initial=0) <= 2e-4 * size, what


@pytest.mark.parametrize("shape", [*SHAPES, (7,), (3, 1, 5), (64, 3, 7, 7), (1000, 2)])
def test_the_matrix_is_as_square_as_the_dimensions_allow(shape):
    assert context.matrix_shape(shape) == matrix_shape(shape)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in DEFICIENT])
@pytest.mark.parametrize(("rank", "momentum"), [(1, 0.0), (4, 0.0), (2, 0.9)])
def test_powersgd_on_several_ranks(family, ranks, rank, momentum):
    for shape in SHAPES:
        codecs = codecs_of(methods.powersgd(rank, momentum=momentum), shape, ranks)
        definition = PowerSGD(shape, rank, ranks, momentum)
        size = 0.0
        for step, each in enumerate(ranks_gradients(family, math.prod(shape), ranks, 5)):
            got, want = reduced(codecs, each), definition.step(list(each))
            size = max(size, np.abs(definition.e).max(), np.abs(want).max())
            assert_near(got, want, size, f"{shape}, step {step}: result")
            for codec, kept in zip(codecs, definition.e, strict=True):
                assert_near(codec.residual, kept.reshape(-1), size, f"{shape}, step {step}: residual")


@pytest.mark.parametrize("family", FAMILIES)
def test_powersgd_projects_whatever_the_matrix_is(family):
    """Where a matrix's rank is not that of its rounding, the columns that are left are anybody's guess: but
    what is sent and what is kept sum up, and a projection makes nothing larger."""
    for shape in SHAPES:
        codecs = codecs_of(methods.powersgd(4), shape, 2)
        for step, each in enumerate(ranks_gradients(family, math.prod(shape), 2, 5)):
            before = [codec.residual + gradient for codec, gradient in zip(codecs, each, strict=True)]
            got, kept = reduced(codecs, each), [codec.residual for codec in codecs]
            size = max(np.abs(before).max(), np.abs(got).max())
            assert_near(got + np.mean(kept, axis=0), np.mean(before, axis=0), size, f"{shape}, step {step}")
            for old, new in zip(before, kept, strict=True):
                assert np.linalg.norm(new) <= np.linalg.norm(old.astype(np.float64)) * (1 + 1e-5)


@pytest.mark.parametrize("zero_steps", [1, 2])
def test_powersgd_goes_on_after_a_gradient_of_zeros(zero_steps):
    """Q becomes 0 then, from which no product leads away."""
    shape, rank = (30, 20), 4
    codecs, definition = codecs_of(methods.powersgd(rank), shape, 2), PowerSGD(shape, rank, 2)
    for step, each in enumerate(ranks_gradients("normal", 600, 2, 6)):
        each = [gradient * np.float32(step >= zero_steps) for gradient in each]
        got, want = reduced(codecs, each), definition.step(each)
        assert got.any() == (step >= zero_steps)
        assert_near(got, want, 10, f"step {step}")


def test_powersgd_finds_a_matrix_of_its_rank():
    rng = np.random.default_rng(0)
    matrix = (rng.standard_normal((30, 3)) @ rng.standard_normal((3, 40))).astype(np.float32).reshape(-1)
    codecs = codecs_of(methods.powersgd(3), (30, 40), 2)
    assert np.allclose(reduced(codecs, [matrix, matrix]), matrix, atol=1e-4)
    assert np.abs(codecs[0].residual).max() < 1e-4


def test_warm_start_follows_a_matrix_that_stays():
    """Without feedback's help each step is one of subspace iteration: the error falls to the best of its
    rank."""
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((40, 30)).astype(np.float32)
    codec = codecs_of(methods.powersgd(2), (40, 30), 1)[0]
    errors = []
    for _ in range(30):
        errors.append(np.linalg.norm(reduced([codec], [matrix.reshape(-1)]) - matrix.reshape(-1)))
        codec.residual = np.zeros(1200, np.float32)
    weights = np.linalg.svd(matrix)[1]
    best = math.sqrt((weights[2:] ** 2).sum())
    assert errors[0] > 1.02 * best and errors[-1] < 1.002 * best


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.7, 1.0])
def test_random_k_on_several_ranks(density, ranks):
    for n in (1, 2, 40, 500):
        codecs = codecs_of(methods.memsgd(density, selection="random_k"), (n,), ranks)
        definition = RandomPlaces(n, density, ranks)
        for step, each in enumerate(ranks_gradients("student t", n, ranks, 4)):
            assert codecs[0].round_sizes == (definition.k,)
            got, want = reduced(codecs, each), definition.step(list(each))
            assert np.allclose(got, want, rtol=1e-6, atol=1e-6), f"{n} entries, step {step}"
            for codec, kept in zip(codecs, definition.e, strict=True):
                assert codec.residual.tobytes() == kept.tobytes()


def test_random_k_chooses_every_entry_as_often():
    codec = codecs_of(methods.memsgd(0.25, selection="random_k"), (40,), 1)[0]
    steps, chosen = 2000, np.zeros(40)
    for _ in range(steps):
        chosen += reduced([codec], [np.ones(40, np.float32)]) != 0
    deviation = (chosen - steps / 4) / math.sqrt(steps * 0.25 * 0.75)
    assert np.abs(deviation).max() < 4 and (deviation**2).sum() < 80  # chi-square of 39: 80 at 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("atoms", [1, 3])
def test_atomo(family, atoms):
    for shape in SHAPES:
        codec, definition = codecs_of(methods.atomo(atoms), shape, 1)[0], Atoms(shape, atoms)
        for step, gradient in enumerate(gradients(family, math.prod(shape), 4)):
            got = codec.decode_sum([codec.encode(gradient)])
            want, near = definition.step(gradient)
            assert not near
            size = max(np.abs(gradient).max(), np.abs(want).max())
            assert_near(got, want, size, f"{shape}, step {step}")
            assert not codec.residual.any()


@pytest.mark.parametrize("expected", [1, 2, 5, 100])
@pytest.mark.parametrize("family", [*SMOOTH, "one hot", "zeros", "two values"])
def test_the_atoms_chances_sum_up(family, expected):
    sizes = np.sort(np.abs(gradients(family, 20, 1)[0]))[::-1]
    chances = matrices.atom_chances(sizes, expected)
    assert chances.sum() == pytest.approx(min(expected, np.count_nonzero(sizes)))
    assert (chances <= 1).all() and ((chances > 0) == (sizes > 0)).all()
    assert chances == pytest.approx(probabilities(sizes.tolist(), expected))


@pytest.mark.parametrize("name", ["atomo", "powersgd"])
def test_the_largest_gradients_stay_finite(name):
    shape = (20, 30)
    codecs = codecs_of(getattr(methods, name)(), shape, 2)
    for step in range(3):
        each = [(gradients("normal", 600, 1, 2 * step + rank)[0] * 3e37) for rank in range(2)]
        if name == "powersgd":
            result = reduced(codecs, each)
        else:
            result = codecs[0].decode_sum([codecs[0].encode(each[0])])
        assert np.isfinite(result).all() and np.isfinite(codecs[0].residual).all()
