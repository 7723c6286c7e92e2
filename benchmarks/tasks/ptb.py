"""Penn TreeBank, word by word, with an LSTM and an adaptive softmax (Grave et al., 1609.04309)."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from .task import Task


class Model(nn.Module):
    """Words (length, batch) and the words that follow them to the mean of their negative log-likelihoods.

    The state stays from one call to the next in training, as the text goes on there; `start` clears it.
    """

    def __init__(self, words: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(width, words, [words // 10, 4 * words // 10], div_value=2)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.start()

    def start(self) -> None:
        self.state: Any = None

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        x, (hidden, cell) = self.lstm(self.dropout(self.embedding(words)), self.state)
        self.state = hidden.detach(), cell.detach()
        return self.head(self.dropout(x).flatten(0, 1), following.flatten()).loss


@dataclass
class PTB(Task):
    """`length`: how many words the gradient goes back. `limit`: only so many words to train on."""

    name: ClassVar[str] = "ptb"
    metric: ClassVar[str] = "perplexity"
    epochs: int = 4
    batch: int = 8
    lr: float = 10.0
    clip: float | None = 0.5
    length: int = 35
    width: int = 128
    dropout: float = 0.1
    limit: int | None = None

    def load(self, data: Path) -> None:
        texts = [(data / f"ptb.{part}.txt").read_text() for part in ("train", "valid", "test")]
        words = [text.replace("\n", " <eos> ").split() for text in texts]
        # From the most frequent to the rarest, as the adaptive softmax wants them.
        index = {word: i for i, (word, _) in enumerate(Counter(words[0]).most_common())}
        train, *tests = (torch.tensor([index[word] for word in text]) for text in words)
        self._words, self._train, self._tests = len(index), train[: self.limit], tests

    def model(self) -> nn.Module:
        return Model(self._words, self.width, self.dropout)

    def steps(self, world: int) -> int:
        return (len(self._train) // (self.batch * world) - 1) // self.length

    def begin(self, epoch: int, seed: int) -> None:
        # Streams that begin elsewhere in each epoch, or every epoch would cut the text at the same places.
        self._streams = self._train.roll(-(7919 * epoch + 104729 * seed) % len(self._train))

    def loss(self, model: nn.Module, step: int, rank: int, world: int) -> torch.Tensor:
        if step == 0:
            model.start()
        streams = columns(self._streams, self.batch * world)[:, rank * self.batch : (rank + 1) * self.batch]
        part = streams[step * self.length : (step + 1) * self.length + 1]
        return model(part[:-1], part[1:])

    @torch.no_grad()
    def test(self, model: nn.Module, final: bool) -> dict[str, float]:
        valid, test = self._tests
        if not final:
            return {"valid perplexity": perplexity(model, valid)}
        return {"valid perplexity": perplexity(model, valid), "perplexity": perplexity(model, test)}


def columns(words: torch.Tensor, count: int) -> torch.Tensor:
    """A text as `count` streams side by side, (length, count)."""
    length = len(words) // count
    return words[: length * count].view(count, length).t()


def perplexity(model: nn.Module, words: torch.Tensor) -> float:
    kept = model.state
    model.start()
    streams, total = columns(words, 20), 0.0
    for first in range(0, len(streams) - 1, 100):
        part = streams[first : first + 101]
        total += model(part[:-1], part[1:]).item() * (len(part) - 1)
    model.state = kept
    return math.exp(min(total / (len(streams) - 1), 100.0))
