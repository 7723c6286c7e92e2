"""Train a small ResNet on images with Horovod, with or without gradient compression.

    horovodrun --gloo -np 2 python examples/pytorch_images.py
    horovodrun --gloo -np 2 python examples/pytorch_images.py --compression hgc --density 0.01 --bits 4
    horovodrun --gloo -np 2 python examples/pytorch_images.py --dataset cifar10 --data DIR

A plain Horovod script but for its `compression`. Rank 0 shows the progress and prints the result.
"""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from datasets import CLASSES, augment, load
from resnet import ResNet
from torch.nn import functional as F
from tqdm import tqdm

import hgc_horovod.torch as hgc


def parse_arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
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
    return parser.parse_args()


def shard(count: int, steps: int, batch_size: int, seed: int) -> torch.Tensor:
    """This rank's images of one epoch, (steps, batch_size): a permutation that all ranks share, dealt out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: steps * batch_size * hvd.size()][hvd.rank() :: hvd.size()].view(steps, batch_size)


@torch.no_grad()
def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Mean loss and accuracy on the test images; each rank takes its share of them.

    Each rank's batch norm has seen images of its own, so the running statistics are averaged first.
    """
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            hvd.allreduce_(buffer, name=f"buffer.{name}")
    model.eval()
    x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
    sums = torch.zeros(3)
    for images, labels in zip(x.split(500), y.split(500), strict=True):
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum").item()
        sums += torch.tensor([loss, (logits.argmax(1) == labels).sum().item(), len(labels)])
    model.train()
    loss, correct, count = hvd.allreduce(sums, op=hvd.Sum, name="test").tolist()
    return loss / count, correct / count


def traffic(compression, model: torch.nn.Module, steps: int) -> dict[str, int]:
    """Bytes of gradients that this rank has handed to Horovod in `steps` steps, beside float32's."""
    if isinstance(compression, hgc.Compressor):
        total = compression.report().total
        return {
            "dense": total.dense_bytes,
            "sent": total.sent_bytes,
            "compressed_dense": total.compressed_dense_bytes,
            "payload": total.payload_bytes,
        }
    dense = 4 * steps * sum(p.numel() for p in model.parameters())
    sent = dense // 2 if compression is hvd.Compression.fp16 else dense
    return {"dense": dense, "sent": sent, "compressed_dense": dense, "payload": sent}


def ratio(dense: int, sent: int) -> float:
    """Compression ratio; 1 where nothing was sent, as on a single rank."""
    return dense / sent if sent else 1.0


def main() -> None:
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(args.seed)
    noise = torch.Generator().manual_seed(1000 * args.seed + hvd.rank())
    data = load(args.dataset, args.data, args.limit)
    steps_per_epoch = len(data.train_x) // (args.batch_size * hvd.size())
    steps = args.epochs * steps_per_epoch
    if steps < 1:
        raise SystemExit(f"{len(data.train_x)} images and {hvd.size()} ranks leave no step to train")

    model = ResNet(data.classes, channels=data.train_x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum, weight_decay=args.weight_decay)
    if args.compression == "hgc":
        warmup_steps = round(args.warmup_epochs * steps_per_epoch)
        compression = hgc.Compression.hgc(
            model.named_parameters(),
            density=args.density,
            bits=args.bits,
            momentum_from=optimizer,
            warmup_steps=warmup_steps,
        )
    else:
        compression = getattr(hvd.Compression, args.compression)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, steps, pct_start=0.25, cycle_momentum=False
    )

    progress = tqdm(
        total=steps, unit="step", desc=args.compression, disable=hvd.rank() != 0, ncols=88, mininterval=0.5
    )
    history, seconds = [], 0.0
    for epoch in range(args.epochs):
        before, start = traffic(compression, model, epoch * steps_per_epoch), time.perf_counter()
        for batch in shard(len(data.train_x), steps_per_epoch, args.batch_size, 1000 * args.seed + epoch):
            images = augment(data.train_x[batch], data.shift, noise)
            loss = F.cross_entropy(model(images), data.train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.update()
        seconds += time.perf_counter() - start
        test_loss, test_accuracy = evaluate(model, data.test_x, data.test_y)
        history.append({"loss": test_loss, "accuracy": test_accuracy})
        progress.set_postfix_str(f"test {test_accuracy:.2%}")
    progress.close()

    sent = traffic(compression, model, steps)
    last = {key: value - before[key] for key, value in sent.items()}  # the last epoch's, after any warm-up
    result = {
        "test_accuracy": test_accuracy,
        "test_loss": test_loss,
        "seconds": round(seconds, 2),
        "steps": steps,
        "bytes_per_step": round(last["sent"] / steps_per_epoch),
        "bytes_in_all": sent["sent"],
        "ratio": ratio(last["dense"], last["sent"]),
        "ratio_compressed_tensors": ratio(last["compressed_dense"], last["payload"]),
        "ratio_with_warmup": ratio(sent["dense"], sent["sent"]),
        "parameters": sum(p.numel() for p in model.parameters()),
        "ranks": hvd.size(),
    }
    if hvd.rank() == 0:
        if args.compression == "hgc":
            print(compression.report())
        print(json.dumps(result, indent=2))
        if args.log_json:
            everything = {**result, "history": history, "arguments": vars(args)}
            Path(args.log_json).write_text(json.dumps(everything, indent=2) + "\n")
    hvd.barrier()


if __name__ == "__main__":
    main()
