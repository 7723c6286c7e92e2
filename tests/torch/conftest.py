"""What the tests in one process share."""

from __future__ import annotations

from collections.abc import Iterator

import horovod.torch as hvd
import pytest


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """Horovod with one rank, under Gloo, which can be initialized again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_CONTROLLER", "gloo")
        patch.setenv("HOROVOD_CPU_OPERATIONS", "gloo")
        hvd.init()
    yield
    hvd.shutdown()
