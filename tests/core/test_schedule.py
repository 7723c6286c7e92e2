import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgc_horovod import methods
from hgc_horovod.core.schedule import Warmup

FRACTIONS = st.floats(0, 1, exclude_min=True)


def test_without_arguments_the_density_is_the_final_one():
    assert [Warmup().density(step, 0.01) for step in range(5)] == [0.01] * 5


def test_exponential_stages():
    schedule = Warmup(stage_steps=10, stages=4)
    stages = [schedule.density(step, 0.01) for step in range(60)]
    for stage, density in enumerate([0.398107, 0.158489, 0.063096, 0.025119]):
        assert stages[10 * stage : 10 * stage + 10] == pytest.approx([density] * 10, rel=1e-5)
    assert stages[40:] == [0.01] * 20


def test_four_stages_to_a_thousandth_are_those_of_deep_gradient_compression():
    densities = [Warmup(stage_steps=1, stages=4).density(step, 0.001) for step in range(5)]
    assert densities == pytest.approx([0.25, 0.063, 0.0158, 0.00398, 0.001], rel=0.01)


@given(FRACTIONS, st.integers(0, 5), st.integers(0, 20), st.integers(0, 20))
def test_the_density_falls_to_the_final_one_and_not_below(final, stages, stage_steps, dense_steps):
    schedule = Warmup(dense_steps=dense_steps, stage_steps=stage_steps, stages=stages)
    run = [schedule.density(step, final) for step in range(dense_steps + stages * stage_steps + 3)]
    assert all(final <= density <= 1 for density in run)
    assert run == sorted(run, reverse=True)
    assert run[-3:] == [final] * 3
    for step in range(dense_steps, dense_steps + stages * stage_steps):
        stage = (step - dense_steps) // stage_steps
        assert run[step] == pytest.approx(final ** ((stage + 1) / (stages + 1)), rel=1e-12)


@given(FRACTIONS, st.lists(FRACTIONS, min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 5))
def test_listed_densities(final, densities, stage_steps, dense_steps):
    schedule = Warmup(dense_steps=dense_steps, stage_steps=stage_steps, densities=tuple(densities))
    run = [schedule.density(step, final) for step in range(dense_steps, dense_steps + 60)]
    expected = [d for d in densities for _ in range(stage_steps)]
    assert run[: len(expected)] == expected
    assert set(run[len(expected) :]) == {final}


def test_a_list_without_a_density_means_no_stage():
    schedule = Warmup(dense_steps=5, stage_steps=1, densities=())
    assert [schedule.density(step, 0.01) for step in range(8)] == [0.01] * 8


def test_dense_steps_stand_before_the_stages():
    method = methods.hgc(0.01, warmup_steps=8, warmup_stages=2, dense_steps=3)
    dense = [method.is_dense((100, 100), step) for step in range(15)]
    assert dense == [True] * 3 + [False] * 12
    slots = [method.slots(10_000, step) for step in range(3, 15)]
    assert slots == [2154] * 4 + [464] * 4 + [100] * 4


def test_warmup_steps_are_divided_into_stages_and_rounded_up():
    for steps, stages, length in [(100, 4, 25), (10, 4, 3), (3, 4, 1), (0, 4, 0)]:
        assert methods.hgc(warmup_steps=steps, warmup_stages=stages).schedule.stage_steps == length


def test_listed_stages_of_the_hybrid_method():
    method = methods.hgc(0.01, warmup=[0.5, 0.25, 0.1], warmup_steps=6)
    assert [method.slots(1000, step) for step in range(8)] == [500, 500, 250, 250, 100, 100, 10, 10]
    assert method.slots(1000) == 10


@pytest.mark.parametrize("name", ["dense_steps", "stage_steps", "stages"])
@pytest.mark.parametrize("bad", [-1, 1.5, "2", True, None])
def test_bad_numbers_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=name):
        Warmup(**{name: bad})


@pytest.mark.parametrize("bad", [0, -0.1, 1.5, float("nan"), float("inf"), "x", True, None])
def test_bad_densities_are_refused(bad):
    with pytest.raises(ValueError, match=r"warmup|densities"):
        Warmup(stage_steps=1, densities=(0.5, bad))
