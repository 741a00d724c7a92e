"""Fine-tuning: the accuracy of a network after training all layers with labels."""

import copy
import math
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from dasl_core import tensors
from dasl_core.distributed import gather, group_rank, group_size, rank_share
from dasl_core.seeds import derive_seed, stream

Request = tuple[Tensor, int | None]
"""The positions (B,) of a global batch, on the CPU, and the training step, or None for testing."""

Reader = Callable[[Iterable[Request]], Generator[Tensor, None, None]]
"""A function that reads images.

It yields this rank's share of each batch, (B / ranks, C, H, W), on the network's device. It may prefetch by taking
requests ahead of what it yields.
"""

WARMUP_SHARE = 0.1


@dataclass(frozen=True)
class FineTuneResult:
    """Accuracies from 0 to 1 after the last epoch."""

    top1: float
    top5: float


def fine_tune(
    backbone: nn.Module,
    train_images: Tensor | Reader,
    train_y: Tensor | np.ndarray,
    test_images: Tensor | Reader,
    test_y: Tensor | np.ndarray,
    *,
    epochs: int = 10,
    lr: float = 1e-3,
    batch_size: int = 128,
    weight_decay: float = 0.05,
    seed: int = 0,
    precision: torch.dtype | None = None,
    group: ProcessGroup | None = None,
) -> FineTuneResult:
    """Train a copy of `backbone` with a linear head end to end, and test its Top-1 and Top-5 accuracy.

    AdamW minimizes the cross-entropy, with a linear warm-up over a tenth of the steps, then a cosine
    to 0. Biases, 1-D parameters and those in the backbone's `no_weight_decay()` have no weight decay. The head
    starts at 0. `backbone` itself and the global random state do not change.

    All ranks of `group` must call this with the same arguments. Each computes its share of a batch; gradients are
    those of the whole batch.

    Args:
        backbone: images (B, C, H, W) to features (B, d).
        train_images: (N, C, H, W), as the network takes them, or a reader of augmented images.
        train_y: (N,) integer classes.
        test_images: (M, C, H, W), or a reader of them.
        test_y: (M,) integer classes; a class that the training images lack counts as wrong.
        epochs: passes over the training images, each without a last, incomplete batch.
        lr: peak learning rate.
        batch_size: global batch size; at most the number of training images.
        weight_decay: weight decay of AdamW.
        seed: determines the order of images and the randomness in the network (dropout).
        precision: dtype of autocast for the network; None: no autocast.
        group: process group that shares the work; None: only this process.

    Raises:
        ValueError: shapes or numbers do not fit; the message names the argument.
    """
    cpu = torch.device("cpu")
    train_y = tensors.label_vector(train_y, "train_y", len(train_y), cpu)
    test_y = tensors.label_vector(test_y, "test_y", len(test_y), cpu)
    for name, images, y in (
        ("train_images", train_images, train_y),
        ("test_images", test_images, test_y),
    ):
        if len(y) == 0 or (isinstance(images, Tensor) and len(images) != len(y)):
            raise ValueError(
                f"{name} must be at least one image, with one label per image; given {len(y)} labels"
            )
    tensors.check_whole_number(epochs, "epochs")
    tensors.check_whole_number(batch_size, "batch_size")
    tensors.check_number(lr, "lr")
    tensors.check_number(weight_decay, "weight_decay", zero=True)
    ranks = group_size(group)
    batch_size = min(batch_size, len(train_y)) // ranks * ranks
    if precision is not None and not isinstance(precision, torch.dtype):
        raise ValueError(f"precision must be a torch.dtype or None; given {precision!r}")
    has_batchnorm = any(isinstance(layer, _BatchNorm) for layer in backbone.modules())
    if batch_size < (2 if has_batchnorm else 1):
        least = "2, for the statistics of BatchNorm" if has_batchnorm else "1 for each rank"
        raise ValueError(
            f"batch_size must be at least {least}; given {batch_size} of {len(train_y)} train_images"
        )
    classes, train_class = torch.unique(train_y, return_inverse=True)

    device = next(backbone.parameters()).device
    read_train, read_test = (
        _reader(images, device, group) if isinstance(images, Tensor) else images
        for images in (train_images, test_images)
    )
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, "fine-tune", group_rank(group)))
        network = copy.deepcopy(backbone).requires_grad_(True)
        network.eval()
        with torch.no_grad():
            first = torch.zeros(ranks, dtype=torch.int64)
            (images,) = read_test([(first, None)])
            example = network(images)
        head = nn.Linear(example.shape[1], classes.numel(), device=device, dtype=example.dtype)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        model = nn.Sequential(network, head)
        optimizer = _optimizer(network, head, weight_decay)
        _train(
            model,
            read_train,
            train_class,
            batch_size,
            optimizer,
            lr,
            epochs,
            seed,
            precision,
            group,
        )
    return _test(model, read_test, test_y, classes, batch_size, precision, group)


def _reader(images: Tensor, device: torch.device, group: ProcessGroup | None) -> Reader:
    def read(requests: Iterable[Request]) -> Generator[Tensor, None, None]:
        for positions, _ in requests:
            yield images[rank_share(positions, group).to(images.device)].to(device)

    return read


def _optimizer(network: nn.Module, head: nn.Linear, weight_decay: float) -> torch.optim.Optimizer:
    named = getattr(network, "no_weight_decay", set)
    exempt = set(named())
    decayed, undecayed = [head.weight], [head.bias]
    for name, parameter in network.named_parameters():
        (undecayed if parameter.ndim <= 1 or name in exempt else decayed).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": undecayed, "weight_decay": 0.0},
        ]
    )


def _train(
    model: nn.Module,
    read: Reader,
    target: Tensor,
    batch_size: int,
    optimizer: torch.optim.Optimizer,
    lr: float,
    epochs: int,
    seed: int,
    precision: torch.dtype | None,
    group: ProcessGroup | None,
) -> None:
    """Train `model` in place on the classes `target`, (N,), numbered from 0."""
    device = next(model.parameters()).device
    parallel = model
    if group_size(group) > 1:
        parallel = DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, process_group=group
        )
        # Synchronized BatchNorm layers need no broadcast of buffers. `dasl_core.train.data_parallel` says why this is
        # not an argument.
        parallel.broadcast_buffers = False
    scaler = torch.amp.GradScaler(device.type, enabled=precision == torch.float16)
    steps_per_epoch = len(target) // batch_size
    total = epochs * steps_per_epoch
    model.train()
    # Batches of two epochs are read at the same time.
    order_of = lru_cache(maxsize=2)(
        lambda epoch: torch.randperm(len(target), generator=stream(seed, "fine-tune order", epoch))
    )

    def batch_positions(step: int) -> Tensor:
        epoch, number = divmod(step, steps_per_epoch)
        positions: Tensor = order_of(epoch)[number * batch_size : (number + 1) * batch_size]
        return positions

    with closing(read((batch_positions(step), step) for step in range(total))) as batches:
        for step, images in enumerate(batches):
            with _autocast(device, precision):
                logits = parallel(images)
            mine = rank_share(batch_positions(step), group)
            wide = tensors.full_precision(logits)
            loss = F.cross_entropy(wide, tensors.to_device(target[mine], device))
            for parameters in optimizer.param_groups:
                parameters["lr"] = lr * _schedule(step, total)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()


def _schedule(step: int, total: int) -> float:
    warmup = round(WARMUP_SHARE * total)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


@torch.no_grad()
def _test(
    model: nn.Module,
    read: Reader,
    y: Tensor,
    classes: Tensor,
    batch_size: int,
    precision: torch.dtype | None,
    group: ProcessGroup | None,
) -> FineTuneResult:
    """Test the model on the labels `y`, (M,); `classes` are the labels of its outputs."""
    device = next(model.parameters()).device
    model.eval()
    ranks = group_size(group)
    classes, y = classes.to(device), y.to(device)
    hits = torch.zeros(2, dtype=torch.int64, device=device)

    def request(start: int) -> Request:
        positions = torch.arange(start, min(start + batch_size, len(y)))
        count = len(positions)
        # Equal shares for all ranks; repeated images are removed below.
        return positions[torch.arange(-(-count // ranks) * ranks) % count], None

    starts = range(0, len(y), batch_size)
    # Read outside autocast, because only the network has reduced precision.
    with closing(read(request(start) for start in starts)) as batches:
        for start, images in zip(starts, batches, strict=True):
            with _autocast(device, precision):
                logits = model(images)
            target = y[start : start + batch_size]
            logits = gather(tensors.full_precision(logits), group)[: len(target)]
            best = classes[logits.topk(min(5, len(classes)), dim=1).indices]
            # NaN and infinite outputs count as wrong, because they have no order.
            hit = (best == target[:, None]) & logits.isfinite().all(dim=1, keepdim=True)
            hits += torch.stack([hit[:, 0].sum(), hit.any(dim=1).sum()])
    top1, top5 = hits.tolist()
    return FineTuneResult(top1 / len(y), top5 / len(y))


def _autocast(device: torch.device, precision: torch.dtype | None) -> torch.autocast:
    return torch.autocast(device.type, dtype=precision, enabled=precision is not None)
