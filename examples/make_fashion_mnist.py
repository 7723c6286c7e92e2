"""Make data/fashion_mnist.npz, the subset of Fashion-MNIST that the examples train on.

    apt-get install dataset-fashion-mnist
    python examples/make_fashion_mnist.py

Classes are balanced, images are drawn without replacement from a stated seed, in shuffled order, the training
images from the training split and the test images from the test split. The same input gives the same arrays.
"""

import argparse
import gzip
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
CLASSES = 10


def read_idx(path: Path) -> np.ndarray:
    """A file of the MNIST family: two zero bytes, 8 for uint8, the rank, big-endian sizes, then the data."""
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: not an IDX file of unsigned bytes")
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def choose(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of `count` entries, equally many of each class, in shuffled order."""
    each = [rng.permutation(np.flatnonzero(labels == c))[: count // CLASSES] for c in range(CLASSES)]
    return rng.permutation(np.concatenate(each))


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--source", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--out", type=Path, default=HERE / "data" / "fashion_mnist.npz")
    parser.add_argument("--train", type=int, default=8000)
    parser.add_argument("--test", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    arrays = {}
    for split, prefix, count in (("train", "train", args.train), ("test", "t10k", args.test)):
        images = read_idx(args.source / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(args.source / f"{prefix}-labels-idx1-ubyte.gz")
        chosen = choose(labels, count, rng)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[chosen], labels[chosen]
    np.savez_compressed(args.out, **arrays)
    for name, array in arrays.items():
        print(f"{name:<13} {array.dtype} {array.shape}")
    print(f"{args.out.name}: {args.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
