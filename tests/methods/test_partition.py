"""The partition-based method, against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from hgc_horovod import inspect, methods

from .compare import codec_of, follow
from .partition_definition import Partition
from .tensors import FAMILIES, SMOOTH, gradients, real

ARGUMENTS = {
    "defaults": ((256, 0.25, 0.94, 0.97), 32),
    "small blocks": ((16, 0.3, 0.9, 0.95), 32),
    "4 bits": ((16, 0.25, 0.9, 0.95), 4),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", ARGUMENTS)
def test_every_step_is_the_definitions(case, family):
    (block, key, key_entropy, sparse_entropy), bits = ARGUMENTS[case]
    method = methods.aiot_partition(
        block, key_share=key, key_entropy=key_entropy, sparse_entropy=sparse_entropy, bits=bits
    )
    for n in (1, 2, block - 1, block, block + 1, 900):
        definition = Partition(block, key, key_entropy, sparse_entropy, bits)
        follow(codec_of(method, n), definition, gradients(family, n, 6))


def test_more_blocks_than_it_learns_of_at_once():
    method = methods.aiot_partition(2)
    follow(codec_of(method, 1200), Partition(2, 0.25, 0.94, 0.97, 32), gradients("laplace", 1200, 4))


@pytest.mark.parametrize("family", SMOOTH)
@pytest.mark.parametrize("scale", [1.0, 1.3, 1.7])
def test_the_defaults_send_one_to_three_per_cent(family, scale):
    n = 40_000
    codec = codec_of(methods.aiot_partition(), n)
    for gradient in gradients(family, n, 12):
        kept = inspect(codec.encode(gradient * np.float32(scale))).kept
        assert 0.01 <= kept / n <= 0.03


def test_the_defaults_send_one_to_three_per_cent_of_real_gradients():
    for name, gradient in real().items():
        codec = codec_of(methods.aiot_partition(), gradient.size)
        kept = [inspect(codec.encode(gradient.reshape(-1))).kept for _ in range(8)]
        assert 0.01 <= np.mean(kept) / gradient.size <= 0.03, name
