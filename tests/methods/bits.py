"""What each method sends of a large tensor: the numbers of docs/methods.md.

python -m tests.methods.bits      # measures them, and writes them into the table
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np

from hgc_horovod import Codec, methods

from .cases import reduced
from .definitions import NAME, SEED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"
SHAPE = (1000, 1000)
N = 1_000_000
STEPS = {"atomo": 1}
TAU = float(np.log(100))  # what one in a hundred of the entries reaches
ROW = re.compile(
    r"^(?P<before>\| `(?P<name>\w+)` (\|[^|\n]*){3}\| )(?P<bits>[\d.]+)(?P<after> .*)$", re.MULTILINE
)


@cache
def measured(name: str, **arguments: object) -> float:
    """Bits per entry in the third step of gradients of a Laplace distribution, one million entries."""
    if name == "strom":
        arguments = {"tau": TAU, **arguments}
    method = getattr(methods, name)(**arguments)
    codec, rng = Codec(method, N, NAME, SEED, shape=SHAPE), np.random.default_rng(SEED)
    for _ in range(STEPS.get(name, 3)):
        gradient = rng.laplace(size=N).astype(np.float32)
        if method.by_allreduce:
            sent, _ = reduced([codec], [gradient])
        else:
            sent = [codec.encode(gradient)]
            codec.decode_sum(sent)
    return 8 * sum(one.nbytes for one in sent) / N


def shown(bits: float) -> str:
    return f"{bits:.3f}" if bits < 1 else f"{bits:.2f}"


def main() -> None:
    def line(row: re.Match[str]) -> str:
        return f"{row['before']}{shown(measured(row['name']))}{row['after']}"

    PAGE.write_text(ROW.sub(line, PAGE.read_text()))


if __name__ == "__main__":
    main()
