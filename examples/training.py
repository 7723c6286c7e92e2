"""What the training scripts have in common, whatever their framework: their options, and the log of a run."""

import argparse
import json
import time
from pathlib import Path

from datasets import CLASSES
from tqdm import tqdm


def parse_arguments(description: str, **defaults) -> argparse.Namespace:
    """The options of a training script, some of which may have another default there."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=layout)
    add = parser.add_argument
    add("--dataset", choices=CLASSES, default="fashion-mnist")
    add("--data", metavar="DIR", help="folder of the data set (Fashion-MNIST's lies beside this script)")
    add("--limit", type=int, metavar="N", help="train on the first N images only")
    add("--compression", choices=["none", "fp16", "hgc"], default="none")
    add("--density", type=float, default=0.01, help="hgc: fraction of each gradient's entries that is sent")
    add("--bits", type=int, default=4, help="hgc: bits of each value that is sent, sign included")
    add("--warmup-epochs", type=float, default=3, help="hgc: epochs in which the density falls to its value")
    add("--epochs", type=int, default=12)
    add("--batch-size", type=int, default=64, help="images per step and rank")
    add("--lr", type=float, default=0.2, help="largest learning rate of the one-cycle schedule")
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=5e-4)
    add("--seed", type=int, default=0)
    add("--log-json", metavar="FILE", help="also write the result there")
    parser.set_defaults(**defaults)
    return parser.parse_args()


def steps_in_epoch(args: argparse.Namespace, images: int, ranks: int) -> int:
    """How many whole batches there are for each rank."""
    steps = images // (args.batch_size * ranks)
    if steps < 1 or args.epochs < 1:
        raise SystemExit(f"{images} images and {ranks} ranks leave no step to train")
    return steps


class Log:
    """Follows a training run: rank 0 shows the progress and, at the end, what was reached and what was sent.

    `compression` is what Horovod was given, and `parameters` how many numbers are trained. The time of the
    first `untimed` steps is not counted.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        compression,
        parameters: int,
        steps_per_epoch: int,
        rank: int,
        ranks: int,
        untimed: int = 0,
    ):
        self.args, self.compression, self.parameters = args, compression, parameters
        self.steps_per_epoch, self.rank, self.ranks, self.untimed = steps_per_epoch, rank, ranks, untimed
        self.progress = tqdm(
            total=args.epochs * steps_per_epoch,
            unit="step",
            desc=args.compression,
            disable=rank != 0,
            ncols=88,
            mininterval=0.5,
        )
        self.steps, self.seconds, self.history = 0, 0.0, []
        self.sent = self.last = self._traffic()
        self._since = time.perf_counter()

    def step(self) -> None:
        """After each step."""
        self.steps += 1
        now = time.perf_counter()
        if self.steps > self.untimed:
            self.seconds += now - self._since
        self._since = now
        self.progress.update()

    def epoch(self, loss: float, accuracy: float) -> None:
        """After each epoch, with the mean loss and the accuracy on the test images."""
        self.history.append({"loss": loss, "accuracy": accuracy})
        self.progress.set_postfix_str(f"test {accuracy:.2%}")
        before, self.sent = self.sent, self._traffic()
        self.last = {key: value - before[key] for key, value in self.sent.items()}
        self._since = time.perf_counter()  # the test is not counted

    def finish(self) -> None:
        """Print the result, and write it where `--log-json` says; its ratios are those of the last epoch."""
        self.progress.close()
        if self.rank != 0:
            return
        result = self._result()
        if self.args.compression == "hgc":
            print(self.compression.report())
        print(json.dumps(result, indent=2))
        if self.args.log_json:
            everything = {**result, "history": self.history, "arguments": vars(self.args)}
            Path(self.args.log_json).write_text(json.dumps(everything, indent=2) + "\n")

    def _traffic(self) -> dict[str, int]:
        """Bytes of gradients that this rank has handed to Horovod so far, beside float32's."""
        if self.args.compression == "hgc":
            total = self.compression.report().total
            return {
                "dense": total.dense_bytes,
                "sent": total.sent_bytes,
                "compressed_dense": total.compressed_dense_bytes,
                "payload": total.payload_bytes,
            }
        dense = 4 * self.steps * self.parameters
        sent = dense // 2 if self.args.compression == "fp16" else dense
        return {"dense": dense, "sent": sent, "compressed_dense": dense, "payload": sent}

    def _result(self) -> dict:
        sent, last = self.sent, self.last
        return {
            "test_accuracy": self.history[-1]["accuracy"],
            "test_loss": self.history[-1]["loss"],
            "seconds": round(self.seconds, 2),
            "steps": self.steps,
            "bytes_per_step": round(last["sent"] / self.steps_per_epoch),
            "bytes_in_all": sent["sent"],
            "ratio": _ratio(last["dense"], last["sent"]),
            "ratio_compressed_tensors": _ratio(last["compressed_dense"], last["payload"]),
            "ratio_with_warmup": _ratio(sent["dense"], sent["sent"]),
            "parameters": self.parameters,
            "ranks": self.ranks,
        }


def _ratio(dense: int, sent: int) -> float:
    """Compression ratio; 1 where nothing was sent, as on a single rank."""
    return dense / sent if sent else 1.0
