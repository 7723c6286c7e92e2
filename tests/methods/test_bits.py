"""Payloads take the bits that theory tells, headers included."""

from __future__ import annotations

import math

import pytest

from .bits import SHAPE, N, measured


def positions(density):
    """Elias and Fano's: ⌊log2(1/density)⌋ low bits an entry, and the vector of high bits."""
    low = math.floor(math.log2(1 / density))
    return density * (low + 1) + 2.0**-low


def kept(density, bits):
    return positions(density) + density * bits


@pytest.mark.parametrize(
    ("name", "arguments", "theory", "most"),
    [
        ("signsgd", {}, 1, 1.03),
        ("ef_signsgd", {}, 1, 1.03),
        ("onebit", {}, 1, 1.03),
        ("terngrad", {}, 2, 2.03),
        ("qsgd", {"bits": 4}, 4 + 32 / 512, 4.1),
        ("qsgd", {"bits": 2, "bucket": 64}, 2.5, 2.55),
        ("qsgd", {"bits": 8, "bucket": 0}, 8, 8.01),
        ("natural", {}, 9, 9.01),
        ("eightbit", {}, 8, 8.01),
        ("hgc", {}, kept(0.01, 4), 0.13),
        ("hgc", {"density": 0.001, "bits": 2}, kept(0.001, 2), 0.0145),
        ("hgc", {"density": 0.1, "bits": 1}, kept(0.1, 1), 0.63),
        ("memsgd", {}, kept(0.01, 32), 0.42),
        ("memsgd", {"density": 0.01, "selection": "random_k"}, 0.32, 0.3201),
        ("powersgd", {"rank": 4}, 32 * 4 * sum(SHAPE) / N, 0.2561),
        ("powersgd", {"rank": 1}, 32 * 1 * sum(SHAPE) / N, 0.0641),
        ("budget", {"ratio": 300}, 32 / 300, 32 / 300 + 0.0003),
    ],
)
def test_bits_per_entry(name, arguments, theory, most):
    bits = measured(name, **arguments)
    assert bits == pytest.approx(theory, rel=0.02) and bits <= most * (1 + 1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "density", "bits"),
    [
        ("wangni", {"density": 0.01}, 0.01, 32),
        ("gradient_dropping", {"density": 0.01, "sample": 0.05}, 0.01, 32),
        ("dgc", {"density": 0.01}, 0.01, 32),
    ],
)
def test_bits_of_methods_whose_number_of_entries_varies(name, arguments, density, bits):
    assert measured(name, **arguments) == pytest.approx(kept(density, bits), rel=0.2)


def test_a_pair_of_ratios_that_the_documentation_names():
    """254 at 1 % and 4 bits, and for one million entries 2,257 at 0.1 % and 2 bits."""
    assert 32 / measured("hgc") == pytest.approx(254, rel=0.01)
    assert 32 / measured("hgc", density=0.001, bits=2) == pytest.approx(2257, rel=0.01)
