"""Which kernels run, and that they may run beside others."""

from __future__ import annotations

import _ctypes
import copy
import logging
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from hgc_horovod import Codec, kernels
from hgc_horovod.core.feedback import Feedback
from hgc_horovod.core.select import Taking
from hgc_horovod.kernels import State, library
from hgc_horovod.kernels.native import NativeKernels
from hgc_horovod.kernels.reference import ReferenceKernels
from tests.core.samples import gaussian, hybrid, same_bits

from .pairs import PATHS, REFERENCE


@pytest.fixture
def without_library(monkeypatch):
    """An installation whose library was not built."""
    monkeypatch.setattr(library, "find", lambda: None)
    library.load.cache_clear()
    kernels._notice.cache_clear()
    yield
    library.load.cache_clear()
    kernels._notice.cache_clear()


def test_names(monkeypatch):
    monkeypatch.delenv("HGC_KERNELS", raising=False)
    assert isinstance(kernels.get(), NativeKernels)
    assert isinstance(kernels.get("auto"), NativeKernels)
    assert isinstance(kernels.get("cpu"), NativeKernels)
    assert isinstance(kernels.get("reference"), ReferenceKernels)


@pytest.mark.parametrize("name", ["gpu", "", "CPU", None])
def test_a_name_that_is_none(name):
    with pytest.raises(ValueError, match='name must be "auto", "reference" or "cpu"'):
        kernels.get(name)


def test_the_environment_decides_what_auto_is(monkeypatch):
    values = {"reference": ReferenceKernels, "cpu": NativeKernels, "auto": NativeKernels, "": NativeKernels}
    for value, kind in values.items():
        monkeypatch.setenv("HGC_KERNELS", value)
        assert isinstance(kernels.get(), kind)
        assert isinstance(kernels.get("cpu"), NativeKernels)
        assert isinstance(kernels.get("reference"), ReferenceKernels)
    monkeypatch.setenv("HGC_KERNELS", "numpy")
    with pytest.raises(ValueError, match=r"HGC_KERNELS must be .*'numpy'"):
        kernels.get()
    assert isinstance(kernels.get("cpu"), NativeKernels)


def test_the_codec_takes_what_auto_is(monkeypatch):
    monkeypatch.setenv("HGC_KERNELS", "reference")
    assert isinstance(Codec(hybrid(), 3)._kernels, ReferenceKernels)
    monkeypatch.setenv("HGC_KERNELS", "cpu")
    assert isinstance(Codec(hybrid(), 3)._kernels, NativeKernels)


def test_another_build_of_the_library(monkeypatch, tmp_path):
    monkeypatch.setenv("HGC_LIBRARY", str(tmp_path / "other.so"))
    assert library.find() == tmp_path / "other.so"
    monkeypatch.delenv("HGC_LIBRARY")
    assert library.find() != tmp_path / "other.so"


@pytest.fixture
def forgotten():
    """The library is loaded anew, and again afterwards."""
    library.load.cache_clear()
    kernels._notice.cache_clear()
    yield
    library.load.cache_clear()
    kernels._notice.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_a_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(library, "VERSION", library.VERSION + 1)
    with pytest.raises(ValueError, match=r"has version \d+ of the kernels' interface"):
        NativeKernels()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("content", [b"", b"no library"])
def test_a_library_that_cannot_be_loaded_is_refused_and_auto_goes_on_without(
    monkeypatch, tmp_path, caplog, content
):
    (tmp_path / "broken.so").write_bytes(content)
    monkeypatch.setenv("HGC_LIBRARY", str(tmp_path / "broken.so"))
    monkeypatch.delenv("HGC_KERNELS", raising=False)
    with pytest.raises(ValueError, match="cannot be loaded"):
        kernels.get("cpu")
    with caplog.at_level(logging.WARNING, "hgc_horovod"):
        assert isinstance(kernels.get(), ReferenceKernels)
    assert "cannot be loaded" in caplog.text


@pytest.mark.usefixtures("forgotten")
def test_a_library_without_the_calls_is_refused(monkeypatch):
    monkeypatch.setenv("HGC_LIBRARY", _ctypes.__file__)
    with pytest.raises(ValueError, match="cannot be loaded"):
        NativeKernels()


def test_pickled_kernels_do_not_name_this_machines_path():
    assert NativeKernels(2).__reduce__()[1][:2] == (2, None)
    assert pickle.loads(pickle.dumps(NativeKernels(path="portable"))).path == "portable"


def test_a_state_passes_from_kernels_to_kernels():
    state, other = State(np.zeros(64, np.float32)), NativeKernels(path="portable")
    for kind in (NativeKernels(), other):
        kind.encode(hybrid(), 6, state, gaussian(64), None, 1)
    assert state.plan.step.path == PATHS.index("portable")


@pytest.mark.usefixtures("without_library")
def test_without_the_library_the_reference_runs_with_one_notice(monkeypatch, caplog):
    monkeypatch.delenv("HGC_KERNELS", raising=False)
    with caplog.at_level(logging.WARNING, "hgc_horovod"):
        assert all(isinstance(kernels.get(), ReferenceKernels) for _ in range(3))
    assert len(caplog.records) == 1 and "compiler" in caplog.text


@pytest.mark.usefixtures("without_library")
def test_without_the_library_the_reference_runs_in_silence_where_it_was_asked_for(monkeypatch, caplog):
    monkeypatch.setenv("HGC_KERNELS", "reference")
    with caplog.at_level(logging.WARNING, "hgc_horovod"):
        assert isinstance(kernels.get(), ReferenceKernels)
        assert isinstance(kernels.get("reference"), ReferenceKernels)
    assert not caplog.records


@pytest.mark.usefixtures("without_library")
def test_without_the_library_native_kernels_are_refused(monkeypatch):
    for make in (lambda: kernels.get("cpu"), NativeKernels):
        with pytest.raises(ValueError, match="compiler"):
            make()
    monkeypatch.setenv("HGC_KERNELS", "cpu")
    with pytest.raises(ValueError, match="compiler"):
        kernels.get()


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None, True])
def test_numbers_of_threads_that_are_none(threads):
    for name in ("auto", "cpu"):
        with pytest.raises(ValueError, match="threads must be a whole number of at least 1"):
            kernels.get(name, threads=threads)


@pytest.mark.parametrize("path", ["sse9", "", "AVX2", "portable,avx2"])
def test_paths_that_the_machine_does_not_have(path):
    with pytest.raises(ValueError, match=f"path must be one that this machine can run, {', '.join(PATHS)}"):
        NativeKernels(path=path)


def test_paths_are_the_best_first_and_always_hold_the_portable_one():
    assert PATHS[-1] == "portable" and list(PATHS) == sorted(PATHS, key=["avx512", "avx2", "portable"].index)
    assert NativeKernels().path == PATHS[0]
    assert [NativeKernels(path=path).path for path in PATHS] == list(PATHS)


@pytest.mark.parametrize("grain", [0, -1, 0.5])
def test_grains_that_are_none(grain):
    with pytest.raises(ValueError, match="grain"):
        NativeKernels(grain=grain)


def test_what_a_description_says():
    chosen = NativeKernels(3)
    assert chosen.description == f"cpu ({PATHS[0]}, at most 3 threads)"
    Codec(hybrid(), 9, kernels=chosen).encode(gaussian(9))
    assert "0 second passes in 1 encodes" in chosen.description
    assert "NumPy" in REFERENCE.description


def test_another_thread_runs_while_a_tensor_is_encoded():
    """The interpreter's lock is not given up by time here: only a call that releases it lets others run."""
    n, ticks, done = 4_000_000, 0, False
    codec, gradient = Codec(hybrid(0.01), n, kernels=NativeKernels()), gaussian(1000).repeat(n // 1000)

    def tick() -> None:
        nonlocal ticks
        while not done:
            time.sleep(1e-4)
            ticks += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    thread = threading.Thread(target=tick)
    try:
        thread.start()
        for _ in range(50):
            codec.encode(gradient)
            if ticks >= 3:
                break
    finally:
        done = True
        sys.setswitchinterval(interval)
        thread.join()
    assert ticks >= 3


@pytest.mark.parametrize("threads", [1, 2])
def test_codecs_that_encode_at_the_same_time(threads):
    sizes, shared = (50_000, 50_001, 4097, 80_000), NativeKernels(threads, grain=1)
    method = hybrid(0.05, 4, momentum=0.9, masking=True, clip=3.0)

    def run(n: int, chosen: kernels.Kernels) -> list[bytes]:
        codec = Codec(method, n, kernels=chosen)
        steps = [codec.encode(gaussian(n, seed)) for seed in range(6)]
        total = codec.decode_sum(steps, np.empty(n, np.float16))
        return [*(payload.tobytes() for payload in steps), codec.residual.tobytes(), total.tobytes()]

    expected = [run(n, REFERENCE) for n in sizes]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda n: run(n, shared), sizes)) == expected
    assert shared.encodes == 3 * 4 * 6


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda codec: pickle.loads(pickle.dumps(codec))])
@pytest.mark.parametrize("chosen", [REFERENCE, NativeKernels()], ids=["reference", "native"])
def test_a_codec_can_be_duplicated(chosen, duplicate):
    codec = Codec(hybrid(momentum=0.9), 300, kernels=chosen)
    codec.encode(gaussian(300))
    other = duplicate(codec)
    assert same_bits(codec.encode(gaussian(300, 1)), other.encode(gaussian(300, 1)))
    assert same_bits(codec.residual, other.residual)
    assert not np.shares_memory(codec.residual, other.residual)


class First(Taking):
    """A selector of a user's own: the first k nonzero entries."""

    kind, density = "first", 0.25

    def select(self, values, k, context):
        return np.flatnonzero(values)[:k]


class Halved(Feedback):
    """A rule of a user's own."""

    def advance(self, momentum, gradient):
        buffer, update = super().advance(momentum, gradient)
        return buffer, update / 2


def test_a_rule_that_the_library_does_not_know_is_the_references():
    method = replace(hybrid(0.25), feedback=Halved(momentum=0.5))
    codecs = [Codec(method, 40, kernels=kind) for kind in (REFERENCE, NativeKernels())]
    payloads = [codec.encode(gaussian(40), factor=0.3) for codec in codecs]
    plain = Codec(hybrid(0.25), 40).encode(gaussian(40), factor=0.3)
    assert same_bits(*payloads) and not same_bits(payloads[0], plain)


def test_a_selector_that_the_library_does_not_know_is_the_references():
    method = replace(hybrid(0.25), selector=First())
    payloads = [Codec(method, 40, kernels=kind).encode(gaussian(40)) for kind in (REFERENCE, NativeKernels())]
    assert same_bits(*payloads)
    assert np.flatnonzero(Codec(method, 40).decode_sum(payloads[1:])).tolist() == list(range(10))
