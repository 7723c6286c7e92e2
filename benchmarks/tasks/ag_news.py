"""AG News: the first words of a report to one of four topics, with a bidirectional LSTM."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from .task import Task, share, shuffled

PAD, UNKNOWN = 0, 1
WORD = re.compile(r"[a-z]+|[0-9]+")


class Model(nn.Module):
    """Words (batch, length), padded with 0, to the logits of topics: by the mean of the LSTM's outputs."""

    def __init__(self, words: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm(self.dropout(self.embedding(words)))
        there = (words != PAD)[:, :, None]
        return self.head(self.dropout((x * there).sum(1) / there.sum(1)))


@dataclass
class AGNews(Task):
    """`words`: how many words are known, `length`: of how many a report keeps the first."""

    name: ClassVar[str] = "ag_news"
    metric: ClassVar[str] = "accuracy"
    epochs: int = 6
    batch: int = 16
    lr: float = 1.0
    clip: float | None = 1.0
    weight_decay: float = 1e-4
    words: int = 10_000
    length: int = 32
    width: int = 64
    dropout: float = 0.3
    limit: int | None = None
    tested: int = 2000  # test reports that the curve is of

    def load(self, data: Path) -> None:
        train, test = (read(data, part) for part in ("train", "test"))
        train = train[: self.limit]
        counts = Counter(word for text, _ in train for word in text)
        known = {word: i for i, (word, _) in enumerate(counts.most_common(self.words - 2), start=2)}
        self._train, self._test = (self._tensors(part, known) for part in (train, test))

    def _tensors(
        self, rows: list[tuple[list[str], int]], known: dict[str, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.full((len(rows), self.length), PAD)
        for row, (text, _) in zip(words, rows, strict=True):
            start = [known.get(word, UNKNOWN) for word in text[: self.length]] or [UNKNOWN]
            row[: len(start)] = torch.tensor(start)
        return words, torch.tensor([label for _, label in rows])

    def model(self) -> nn.Module:
        return Model(self.words, self.width, self.dropout)

    def steps(self, world: int) -> int:
        return len(self._train[1]) // (self.batch * world)

    def begin(self, epoch: int, seed: int) -> None:
        self._order = shuffled(len(self._train[1]), epoch, seed)

    def loss(self, model: nn.Module, step: int, rank: int, world: int) -> torch.Tensor:
        chosen = share(self._order, self.batch, step, rank, world)
        words, labels = self._train
        return F.cross_entropy(model(words[chosen]), labels[chosen])

    @torch.no_grad()
    def test(self, model: nn.Module, final: bool) -> dict[str, float]:
        words, labels = (both if final else both[: self.tested] for both in self._test)
        pairs = zip(words.split(400), labels.split(400), strict=True)
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in pairs)
        return {"accuracy": right / len(labels)}


def read(data: Path, part: str) -> list[tuple[list[str], int]]:
    """The words and the topic, 0 to 3, of each report of `train` or `test`."""
    names = {"train": ("train.csv", "ag_news_extra*.csv"), "test": ("test.csv", "ag_news_test*.csv")}[part]
    paths = [path for name in names for path in sorted(data.glob(name))]
    if not paths:
        raise SystemExit(f"--data {data}: neither {names[0]} nor {names[1]} is there")
    with paths[0].open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if "text" in rows[0]:  # a sample with named columns, of which `gt` is the topic
        text, topic = rows[0].index("text"), rows[0].index("gt")
        pairs = [(row[text], int(row[topic])) for row in rows[1:]]
    else:
        pairs = [(f"{title}. {text}", int(label) - 1) for label, title, text in rows]
    return [(WORD.findall(text.lower()), label) for text, label in pairs]
