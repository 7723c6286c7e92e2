"""Multinomial logistic regression on Fashion-MNIST in NumPy, its gradients averaged over MPI.

    mpirun -np 4 python -m mpi4py examples/numpy_mpi.py
    mpirun -np 4 python -m mpi4py examples/numpy_mpi.py --compression none

The images are the 8,000 + 3,000 that lie in data/ beside this file. Rank 0 prints the result.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import hgc_horovod.mpi as hgc

DATA = Path(__file__).resolve().parent / "data" / "fashion_mnist.npz"
CLASSES = 10


def parse_arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--compression", choices=["none", "hgc"], default="hgc")
    add("--density", type=float, default=0.01, help="hgc: fraction of the gradient's entries that is sent")
    add("--bits", type=int, default=4, help="hgc: bits of each value that is sent, sign included")
    add("--warmup-epochs", type=float, default=2, help="hgc: epochs in which the density falls to its value")
    add("--epochs", type=int, default=20)
    add("--steps", type=int, help="stop after so many steps")
    add("--batch-size", type=int, default=32, help="images per step and rank")
    add("--lr", type=float, default=0.01, help="learning rate at the start; it falls to 0 linearly")
    add("--momentum", type=float, default=0.9)
    add("--seed", type=int, default=0)
    return parser.parse_args()


def load() -> list[np.ndarray]:
    """Training images float32 (n, 784), standardized, and labels; then the test set's."""
    pack = np.load(DATA)
    pixels = [pack[f"{part}_images"].reshape(-1, 784).astype(np.float32) for part in ("train", "test")]
    train, test = ((each - pixels[0].mean()) / pixels[0].std() for each in pixels)
    return [train, pack["train_labels"], test, pack["test_labels"]]


def probabilities(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """float32 (n, classes)"""
    logits = images @ weights["weight"] + weights["bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def gradients(
    weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Of the mean cross-entropy."""
    error = probabilities(weights, images)
    error[np.arange(len(labels)), labels] -= 1
    error /= np.float32(len(labels))
    return {"weight": images.T @ error, "bias": error.sum(axis=0)}


def main() -> None:
    args = parse_arguments()
    comm = MPI.COMM_WORLD
    images, labels, test_images, test_labels = load()
    per_epoch = len(images) // (args.batch_size * comm.size)
    steps = args.steps or args.epochs * per_epoch

    # The momentum is the method's, so that without compression it is applied as well.
    if args.compression == "hgc":
        method = hgc.methods.hgc(
            density=args.density,
            bits=args.bits,
            momentum=args.momentum,
            warmup_steps=round(args.warmup_epochs * per_epoch),
        )
    else:
        method = hgc.methods.dense().with_feedback(momentum=args.momentum)

    weights = {
        "weight": np.zeros((images.shape[1], CLASSES), np.float32),
        "bias": np.zeros(CLASSES, np.float32),
    }
    shapes = {name: weight.shape for name, weight in weights.items()}
    start = time.perf_counter()
    with hgc.Reducer(comm, method, shapes) as reducer:
        for step in range(steps):
            if step % per_epoch == 0:  # a permutation that all ranks share, dealt out
                shuffled = np.random.default_rng([args.seed, step]).permutation(len(images))
                mine = shuffled[comm.rank :: comm.size]
            begin = step % per_epoch * args.batch_size
            batch = mine[begin : begin + args.batch_size]
            found = gradients(weights, images[batch], labels[batch])
            requests = {name: reducer.iallreduce(name, gradient) for name, gradient in found.items()}
            rate = np.float32(args.lr * (1 - step / steps))
            for name, request in requests.items():
                weights[name] -= rate * request.wait()
        report = reducer.report()

    if comm.rank == 0:
        right = probabilities(weights, test_images).argmax(axis=1) == test_labels
        result = {
            "compression": args.compression,
            "ranks": comm.size,
            "steps": steps,
            "test_accuracy": round(float(right.mean()), 4),
            "bytes_sent": report.total.sent_bytes,
            "ratio": round(report.total.ratio, 1),
            "seconds": round(time.perf_counter() - start, 2),
        }
        print(report)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
