"""Methods that go through Python: what is kept where a step does not count, and in checkpoints."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

import hgc_horovod.tensorflow as hgc
from tests.cases import variants

from .composed import METHODS, SHAPES, Codecs, check, compressor, is_summed_by_horovod
from .gradients import reducer
from .harness import close, equal_on_all_ranks, given, name_of, raises, variables

KINDS = {
    name: SHAPES[name]
    for name in (
        *(
            "adaqs",
            "aiot_partition",
            "budget",
            "dense_at_first",
            "dgc",
            "eightbit",
            "gradient_dropping_model",
        ),
        *("memsgd_random_k", "mqgrad", "oland_raj", "powersgd_momentum", "qsgd"),
    )
}
FEW = {name: KINDS[name] for name in ("budget", "dense_at_first", "dgc", "powersgd_momentum", "qsgd")}

PAIR = {name: KINDS[name] for name in ("budget", "powersgd_momentum")}


def states(compression: Any) -> dict[str, Any]:
    """A copy of what is kept of each tensor, as flat arrays."""
    found = {}
    for name, slot in compression.slots.by_name.items():
        state = slot.python.codec.state_dict()
        arrays = {"residual": state["residual"], "momentum": state["momentum"], **state.get("memory", {})}
        found |= {f"{key} of {name}": np.array(one) for key, one in arrays.items() if one is not None}
        found[f"step of {name}"] = slot.counts.numpy()
    return found


def check_states(actual: dict[str, Any], expected: dict[str, Any], tensor: str = "") -> None:
    """The same, to rounding, for the tensors whose names end so."""
    assert [key for key in actual if key.endswith(tensor)] == [k for k in expected if k.endswith(tensor)]
    for key, one in expected.items():
        if key.endswith(tensor):
            close(actual[key], one, 1e-5)


def check_same(name: str, one: np.ndarray, other: np.ndarray) -> None:
    """To the bit, where what Horovod sums has no order."""
    if hvd.size() > 2 and is_summed_by_horovod(METHODS[name]):
        close(one, other, 1e-5)
    else:
        assert np.array_equal(one, other), name


@variants(average={}, sum={"op": hvd.Sum})
def case_not_finite(**horovod: Any) -> None:
    """One rank's NaN makes a tensor NaN on all ranks, and what is kept of it is as before."""
    trained = variables(FEW)
    compression = compressor(trained, FEW)
    reduce = reducer(trained, compression, **horovod)
    for step in range(3):
        reduce(given(trained, step))
    for bad in (np.nan, -np.inf):
        before, gradients = states(compression), given(trained, 9)
        good = [name_of(v) for v in trained][-1]
        if hvd.rank() == 1:
            gradients[:-1] = [tf.concat([[bad * one[0]], one[1:]], 0) for one in gradients[:-1]]
        reduced = reduce(gradients)
        assert all(np.isnan(one).all() for one in reduced[:-1]) and np.isfinite(reduced[-1]).all()
        after = states(compression)
        for name in FEW:
            if name != good:
                check_states(after, before, f"of {name}")
        assert after[f"step of {good}"][0] == before[f"step of {good}"][0] + 1
    reduced = reduce(given(trained, 3))
    assert all(np.isfinite(one).all() for one in reduced)
    equal_on_all_ranks([one.numpy() for one in reduced], "reduced")


@variants(graph={"graph": True}, eager={"graph": False})
def case_dropped_step(graph: bool) -> None:
    """With `loss_scale`, a step in which any tensor is not finite leaves what is kept of all as it was."""
    trained = variables(FEW)
    compression = compressor(trained, FEW, loss_scale=lambda: tf.constant(8.0))
    reduce = reducer(trained, compression, graph)
    for step in range(6):
        if step in (1, 4):  # within the dense steps and behind them
            before, gradients = states(compression), given(trained, 9)
            if hvd.rank() == 1:
                gradients[3] *= np.nan
            assert not np.isfinite(reduce(gradients)[3]).any()
            check_states(states(compression), before)
        assert all(np.isfinite(one).all() for one in reduce(given(trained, step)))
    assert {int(slot.step) for slot in compression.slots.by_name.values()} == {6}


def case_changing_scale() -> None:
    """With `loss_scale` all is as without a scale."""
    scale = tf.Variable(1.0)
    plain, scaled = variables(PAIR), variables(PAIR)
    reduce = reducer(plain, compressor(plain, PAIR))
    other = reducer(scaled, compressor(scaled, PAIR, loss_scale=lambda: scale))
    for step, power in enumerate((16, 3, -4, 10)):
        scale.assign(2.0**power)
        expected = reduce(given(plain, step))
        reduced = other([g * scale for g in given(scaled, step)])
        for one, two in zip(expected, reduced, strict=True):
            close(two / scale, one.numpy(), 1e-6)


@variants(
    encode={"attribute": "encode", "name": "dgc"},
    begin={"attribute": "rounds", "name": "powersgd_momentum"},
    proceed={"attribute": "rounds", "name": "powersgd_momentum", "late": True},
    decode={"attribute": "decode_gathered", "name": "qsgd"},
)
def case_failure(attribute: str, name: str, late: bool = False) -> None:
    """An error on one rank is one on all, once all that the step sends has been sent; the next step works."""
    trained = variables(FEW)
    compression = compressor(trained, FEW)
    reduce = reducer(trained, compression)
    reduce(given(trained, 0))
    before, codec = states(compression), compression.slots.by_name[name].python.codec

    def failing(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no way")

    def failing_late(gradient: Any, **options: Any) -> Any:
        yield np.zeros(codec.round_sizes[0], np.float32)
        raise RuntimeError("no way")

    everyone = attribute == "decode_gathered"  # the others could not hear of it any more
    if hvd.rank() == 1 or everyone:
        setattr(codec, attribute, failing_late if late else failing)
    words = ["no way"] if everyone else ["could not encode", name, "log"]
    raises(tf.errors.OpError, words, lambda: reduce(given(trained, 1)))
    check_states(states(compression), before, f"of {name}")
    if hvd.rank() == 1 or everyone:
        delattr(codec, attribute)
    reduced = reduce(given(trained, 2))
    equal_on_all_ranks([one.numpy() for one in reduced], "reduced")


@variants(
    given={"known": True, "traced": False},
    given_and_traced={"known": True, "traced": True, "shapes": PAIR},
    found={"known": False, "traced": False, "shapes": PAIR},
)
def case_checkpoint(known: bool, traced: bool, shapes: Any = KINDS) -> None:
    """What is restored, before or after the first trace, goes on as the original, to the bit."""
    trained = variables(shapes)
    first, second = (compressor(trained if known else None, shapes) for _ in range(2))
    reduce, other = (reducer(trained, one) for one in (first, second))

    def step_of(compression: Any, reduce: Any, number: int) -> Any:
        compression.report_loss(1.0 / (1 + number))
        return [one.numpy() for one in reduce(given(trained, number))]

    with tempfile.TemporaryDirectory() as folder:
        step_of(first, reduce, 0)
        path = tf.train.Checkpoint(compression=first).save(Path(folder) / "state")  # within dense steps
        if traced:
            other(given(trained, 7))
        status = tf.train.Checkpoint(compression=second).restore(path)
        if known:
            status.assert_existing_objects_matched()
        for number in range(1, 5):
            expected, actual = (step_of(*each, number) for each in ((first, reduce), (second, other)))
            for name, one, two in zip(shapes, expected, actual, strict=True):
                check_same(name, one, two)
        status.assert_existing_objects_matched()
        tf.train.Checkpoint(compression=second).save(Path(folder) / "later")
    one, two = states(first), states(second)
    assert one.keys() == two.keys()
    for key in one:
        check_same(key.rpartition("of ")[2], one[key], two[key])


def case_another_ranks_checkpoint() -> None:
    """Restoring one rank's on all fails on all, until it is reset."""
    trained = variables(PAIR)
    first, second = compressor(trained, PAIR), compressor(trained, PAIR)
    reducer(trained, first)(given(trained, 0))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "state")
        if hvd.rank() == 0:
            path = tf.train.Checkpoint(compression=first).save(path)
        path = hvd.broadcast_object(path, name="path")
        tf.train.Checkpoint(compression=second).restore(path)
        hvd.allreduce(tf.zeros(1), name="restored")
    reduce = reducer(trained, second)
    raises(tf.errors.OpError, ["could not encode", "log"], lambda: reduce(given(trained, 1)))
    second.reset()
    codecs = Codecs(PAIR)
    for step in range(2):
        check(trained, reduce(given(trained, step)), codecs, step)


def case_another_methods_checkpoint() -> None:
    """What the new method has a use for is taken over, with a warning."""
    trained = variables({"x": (40, 30)})
    first, second = (
        hgc.Compression.from_method(METHODS[name], trained) for name in ("dgc", "powersgd_momentum")
    )
    reducer(trained, first)(given(trained, 0))
    before = states(first)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = tf.train.Checkpoint(compression=first).save(Path(folder) / "state")
        tf.train.Checkpoint(compression=second).restore(path)
    assert any("another method" in str(one.message) for one in caught)
    assert all(np.array_equal(one, before[key]) for key, one in states(second).items())
    assert np.isfinite(reducer(trained, second)(given(trained, 1))[0]).all()
