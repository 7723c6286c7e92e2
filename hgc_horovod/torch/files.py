"""A compressor's state in files, one for each rank."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakValueDictionary

import torch

from . import state

if TYPE_CHECKING:
    from .compressor import Compressor

_saved_by: WeakValueDictionary[Path, Any] = WeakValueDictionary()  # this process's files


def save(compressor: Compressor, directory: str | Path) -> None:
    """Write this rank's state, so that a crash leaves the old file or the new one. Outside of the process set
    there is none."""
    compressor._step.look_around()
    rank, world = compressor._step.rank, compressor._step.world
    if rank < 0:
        return
    path = Path(directory).resolve() / f"{_stem(compressor)}rank{rank}-of-{world}.pt"
    if _saved_by.get(path, compressor) is not compressor:
        warnings.warn(
            f"another compressor of this process wrote its state to {path}, which is lost now; give each a "
            "directory of its own, or a name=",
            stacklevel=3,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state.of(compressor), part)
    part.replace(path)
    _saved_by[path] = compressor


def load(compressor: Compressor, directory: str | Path, other_world: str) -> None:
    """Read this rank's file, or all where the world was another one."""
    compressor._step.look_around()
    rank, world = compressor._step.rank, compressor._step.world
    if rank < 0:
        return
    stem, found = _stem(compressor), dict[int, dict[int, Path]]()
    for path in Path(directory).glob("*.pt"):
        if match := re.fullmatch(re.escape(stem) + r"rank(\d+)-of-(\d+)\.pt", path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    if len(found) != 1:
        raise ValueError(
            f"directory must hold files {stem}rank….pt of one world size; {directory} has those of "
            f"{', '.join(map(str, sorted(found))) or 'none'}"
        )
    ((saved, paths),) = found.items()
    if missing := set(range(saved)) - set(paths):
        raise ValueError(f"directory {directory} lacks the file of rank {min(missing)} of {saved}")
    if saved == world:
        state.load(compressor, _read(paths[rank]), other_world)
    else:
        ranks = range(saved) if other_world == "mean" else range(1)
        state.load(compressor, [_read(paths[rank]) for rank in ranks], other_world)


def _stem(compressor: Compressor) -> str:
    """What a file's name begins with: the compressor's name, if it was given one, and its process set."""
    name = "" if compressor.name is None else f"{quote(compressor.name, safe='')}-"
    process_set = compressor.process_set
    if process_set.process_set_id == 0:
        return name
    return f"{name}set{'.'.join(map(str, process_set.ranks))}-"


def _read(path: Path) -> state.State:
    read: state.State = torch.load(path, map_location="cpu", weights_only=True)
    return read
