"""The images that the examples train on: `load(name, folder)` gives a `Dataset` of NumPy arrays.

| name            | read from                                                                            |
|-----------------|--------------------------------------------------------------------------------------|
| `fashion-mnist` | data/fashion_mnist.npz beside this file (8,000 + 3,000 images), or of a given folder |
| `cifar10`       | `cifar-10-batches-py/`, the python version as published, or `cifar10_full_jpeg*.npz` |
| `cifar100`      | `cifar-100-python/`, the python version as published, or `cifar100_full_jpeg*.npz`   |

A `*_full_jpeg*.npz` pack holds JPEG images one after another: `body_train` (all bytes), `len_train` (bytes of
each), `y_train` (labels), the same for test, and `header`, which the images have in common. It takes pillow.
"""

import io
import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
CLASSES = {"fashion-mnist": 10, "cifar10": 10, "cifar100": 100}
BATCHES = {  # name: folder, training files, test file, label key
    "cifar10": ("cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], "test_batch", "labels"),
    "cifar100": ("cifar-100-python", ["train"], "test", "fine_labels"),
}


class Dataset(NamedTuple):
    """Images float32 (n, channels, height, width), standardized per channel; labels int64 (n,).

    `shift` is how many pixels an image may be moved in training: clothes are centred, CIFAR's objects not.
    """

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    shift: int


def load(name: str, folder: str | Path | None = None, limit: int | None = None) -> Dataset:
    """Read data set `name`; `limit` keeps only the first training images (their order is random)."""
    if name == "fashion-mnist":
        path = Path(folder or HERE / "data") / "fashion_mnist.npz"
        if not path.is_file():
            raise SystemExit(f"{path} is missing; examples/make_fashion_mnist.py makes it")
        pack = np.load(path)
        train, test = ((pack[f"{s}_images"][:, None], pack[f"{s}_labels"]) for s in ("train", "test"))
    else:
        train, test = _cifar(name, folder, limit)
    train = train[0][:limit], train[1][:limit]

    pixels = train[0].astype(np.float32) / 255
    mean, std = pixels.mean((0, 2, 3), keepdims=True), pixels.std((0, 2, 3), keepdims=True)

    def arrays(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (images.astype(np.float32) / 255 - mean) / std, labels.astype(np.int64)

    return Dataset(*arrays(*train), *arrays(*test), CLASSES[name], 1 if name == "fashion-mnist" else 4)


def _cifar(name: str, folder: str | Path | None, limit: int | None):
    if folder is None:
        raise SystemExit(f"--dataset {name} needs --data DIR, the folder that {BATCHES[name][0]} lies in")
    folder = Path(folder)
    if not folder.is_dir():
        raise SystemExit(f"--data {folder}: no such folder")
    batches, train_files, test_file, key = BATCHES[name]
    for place in (folder / batches, folder):
        if (place / test_file).is_file():
            return _pickles(place, train_files, key), _pickles(place, [test_file], key)
    packs = sorted(folder.glob(f"{name}_full_jpeg*.npz"))
    if not packs:
        raise SystemExit(f"--data {folder}: neither {batches}/ nor {name}_full_jpeg*.npz is there")
    pack = np.load(packs[0])
    return _jpegs(pack, "train", limit), _jpegs(pack, "test", None)


def _pickles(place: Path, files: list[str], key: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for name in files:
        with (place / name).open("rb") as file:
            batch = pickle.load(file, encoding="latin1")
        images.append(batch["data"].reshape(-1, 3, 32, 32))
        labels.append(batch[key])
    return np.concatenate(images), np.concatenate(labels)


def _jpegs(pack, split: str, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    try:
        from PIL import Image
    except ImportError:
        raise SystemExit("A pack of JPEG images takes pillow: pip install pillow") from None
    ends = np.cumsum(pack[f"len_{split}"].astype(np.int64))[:limit]
    starts = np.concatenate([[0], ends[:-1]])
    header, body = pack["header"].tobytes(), pack[f"body_{split}"].tobytes()
    files = (io.BytesIO(header + body[a:b]) for a, b in zip(starts, ends, strict=True))
    images = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    return images.transpose(0, 3, 1, 2), pack[f"y_{split}"][:limit]
