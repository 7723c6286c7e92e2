"""Train a small ResNet on images with Horovod, with or without gradient compression.

    horovodrun --gloo -np 2 python examples/pytorch_images.py
    horovodrun --gloo -np 2 python examples/pytorch_images.py --compression hgc --density 0.01 --bits 4
    horovodrun --gloo -np 2 python examples/pytorch_images.py --dataset cifar10 --data DIR

A plain Horovod script but for its `compression`. Rank 0 shows the progress and prints the result.
"""

import os

import horovod.torch as hvd
import torch
from datasets import load
from resnet import ResNet
from torch.nn import functional as F
from training import Log, parse_arguments, steps_in_epoch

import hgc_horovod.torch as hgc


def shard(count: int, steps: int, batch_size: int, seed: int) -> torch.Tensor:
    """This rank's images of one epoch, (steps, batch_size): a permutation that all ranks share, dealt out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[: steps * batch_size * hvd.size()][hvd.rank() :: hvd.size()].view(steps, batch_size)


def augment(x: torch.Tensor, shift: int, generator: torch.Generator) -> torch.Tensor:
    """Flip half of a batch left to right and move each image by up to `shift` pixels."""
    n, channels, height, width = x.shape
    flip = torch.rand(n, 1, 1, 1, generator=generator) < 0.5
    x = F.pad(torch.where(flip, x.flip(3), x), (shift,) * 4)
    top, left = torch.randint(0, 2 * shift + 1, (2, n, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    index = torch.arange(n)[:, None, None, None], torch.arange(channels)[:, None, None]
    return x[(*index, rows[:, None, :, None], columns[:, None, None, :])]


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


def main() -> None:
    args = parse_arguments(__doc__)
    hvd.init()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(args.seed)
    noise = torch.Generator().manual_seed(1000 * args.seed + hvd.rank())
    data = load(args.dataset, args.data, args.limit)
    train_x, train_y, test_x, test_y = map(torch.from_numpy, data[:4])
    steps_per_epoch = steps_in_epoch(args, len(train_x), hvd.size())

    model = ResNet(data.classes, channels=train_x.shape[1])
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
        optimizer, args.lr, args.epochs * steps_per_epoch, pct_start=0.25, cycle_momentum=False
    )

    parameters = sum(p.numel() for p in model.parameters())
    log = Log(args, compression, parameters, steps_per_epoch, hvd.rank(), hvd.size())
    for epoch in range(args.epochs):
        for batch in shard(len(train_x), steps_per_epoch, args.batch_size, 1000 * args.seed + epoch):
            images = augment(train_x[batch], data.shift, noise)
            loss = F.cross_entropy(model(images), train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            log.step()
        log.epoch(*evaluate(model, test_x, test_y))
    log.finish()
    hvd.barrier()


if __name__ == "__main__":
    main()
