"""Makes gradients.npz: gradients of real layers, early in a training and later.

    python tests/methods/make_gradients.py

A small residual network on the images that the examples ship, and an LSTM on a chain of symbols whose
frequencies fall as 1/rank (no text is shipped). One batch's gradient each; float16 in units of its largest
magnitude. `made_with` holds seed and versions.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))  # whose modules import each other by name
from datasets import load  # noqa: E402
from resnet import ResNet  # noqa: E402

SEED, SYMBOLS, WIDTH, BATCH, LENGTH = 0, 200, 64, 32, 24
MOMENTS = {"early": 5, "later": 120}  # steps
LAYERS = {
    "network": {
        "convolution": "blocks.1.conv2.weight",
        "wide convolution": "blocks.2.conv2.weight",
        "head": "head.weight",
    },
    "sequence": {"embedding": "embed.weight", "recurrent": "lstm.weight_hh_l0"},
}


class Sequence(nn.Module):
    """Symbols (batch, length) to logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0])


def chain(rng: np.random.Generator) -> Callable[[], torch.Tensor]:
    """Draws batches (batch, length + 1) of a Markov chain, each symbol of which has few followers."""
    frequency = 1 / np.arange(1, SYMBOLS + 1)
    followers = rng.choice(SYMBOLS, (SYMBOLS, 4), p=frequency / frequency.sum())

    def batch() -> torch.Tensor:
        rows = [rng.integers(0, SYMBOLS, BATCH)]
        for _ in range(LENGTH):
            rows.append(followers[rows[-1], rng.integers(0, 4, BATCH)])
        return torch.from_numpy(np.stack(rows, axis=1))

    return batch


def losses(rng: np.random.Generator) -> Iterator[tuple[str, nn.Module, Callable[[], torch.Tensor]]]:
    data = load("fashion-mnist", limit=4000)
    network, sequence, batch = ResNet(data.classes, 1), Sequence(), chain(rng)

    def image_loss() -> torch.Tensor:
        chosen = rng.integers(0, len(data.train_y), BATCH)
        return F.cross_entropy(
            network(torch.from_numpy(data.train_x[chosen])), torch.from_numpy(data.train_y[chosen])
        )

    def sequence_loss() -> torch.Tensor:
        drawn = batch()
        return F.cross_entropy(sequence(drawn[:, :-1]).reshape(-1, SYMBOLS), drawn[:, 1:].reshape(-1))

    yield "network", network, image_loss
    yield "sequence", sequence, sequence_loss


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    out: dict[str, np.ndarray] = {}
    for kind, model, loss in losses(np.random.default_rng(SEED)):
        rate = 0.1 if kind == "network" else 1.0
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9 if kind == "network" else 0.0)
        for step in range(1, max(MOMENTS.values()) + 1):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            for moment in (name for name, at in MOMENTS.items() if at == step):
                print(f"{kind}, step {step}: loss {value.item():.3f}")
                for label, name in LAYERS[kind].items():
                    gradient = model.get_parameter(name).grad.numpy()
                    out[f"{label}, {moment}"] = (gradient / np.abs(gradient).max()).astype(np.float16)
            optimizer.step()
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, PyTorch {torch.__version__}"
    np.savez_compressed(HERE / "gradients.npz", made_with=np.array(f"seed {SEED}, {versions}"), **out)


if __name__ == "__main__":
    main()
