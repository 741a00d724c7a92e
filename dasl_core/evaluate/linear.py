"""The linear probe: how well does a linear classifier do on frozen features?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dasl_core import tensors
from dasl_core.seeds import stream

LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
MOMENTUM = 0.9
# A tenth of the training samples chooses the learning rate.
VALIDATION_SHARE = 0.1
# A dimension that varies by less than this share of its mean has float32's rounding in it, no more.
NOISE = 1e-6


@dataclass(frozen=True)
class RateResult:
    """What one learning rate gives: accuracies from 0 to 1, and the mean cross-entropy in nats."""

    learning_rate: float
    validation_top1: float
    validation_loss: float
    top1: float
    top5: float


@dataclass(frozen=True)
class LinearProbeResult:
    """Accuracies from 0 to 1 of the rate that the validation part chose, and those of all rates."""

    top1: float
    top5: float
    learning_rate: float
    rates: tuple[RateResult, ...]


@torch.no_grad()
def linear_probe(
    train_x: Tensor | np.ndarray,
    train_y: Tensor | np.ndarray,
    test_x: Tensor | np.ndarray,
    test_y: Tensor | np.ndarray,
    *,
    learning_rates: Sequence[float] = LEARNING_RATES,
    epochs: int = 100,
    batch_size: int = 256,
    weight_decay: float = 0.0,
    seed: int = 0,
    device: torch.device | str | None = None,
    on_epoch: Callable[[], None] = lambda: None,
) -> LinearProbeResult:
    """Top-1 and Top-5 accuracy of softmax regression on frozen features, one head a learning rate.

    All heads see the same mini-batches and are trained together: their weights lie side by side in
    one matrix, so the sweep reads the features once and a step is two matrix products. SGD with
    momentum 0.9, weights from 0, a cosine from the learning rate to 0 without warm-up.

    Features are standardised with the mean and standard deviation of the training samples, and
    divided by sqrt(d), so that a row has a length of about 1. Methods differ in the scale of their
    features by orders of magnitude, and the best learning rate goes with the inverse square of it:
    so one range fits all of them, of any width. (A BatchNorm without affine parameters does it in the
    probes of MAE and MoCo v3.) What a linear classifier can express stays the same.

    A tenth of the training samples, drawn by `seed` and rounded up, is not trained on: the rate with
    the best Top-1 there is chosen, of equal ones that with the lower loss. The test samples choose
    nothing.

    The features stay where they are; a mini-batch of them at a time goes to `device`.

    Args:
        train_x: (N, d) features, N >= 2.
        train_y: (N,) integer classes.
        test_x: (M, d) features.
        test_y: (M,) integer classes; a class that the training samples lack counts as wrong.
        learning_rates: of the mean loss of a mini-batch; each above 0.
        epochs: passes over the training samples.
        batch_size: samples a step.
        weight_decay: added to the gradient, as SGD does; not on the bias.
        seed: of the validation part and of the order. Zeros need no seed.
        device: where the heads are trained; where `train_x` lies if not given.
        on_epoch: called before each epoch.

    Raises:
        ValueError: when shapes or numbers do not fit; the message names the argument.
    """
    train_x = tensors.feature_matrix(train_x, "train_x", min_rows=2)
    test_x = tensors.feature_matrix(test_x, "test_x")
    tensors.check_same_width(train_x, test_x)
    device = torch.device(device or train_x.device)
    train_y = tensors.label_vector(train_y, "train_y", train_x.shape[0], device)
    test_y = tensors.label_vector(test_y, "test_y", test_x.shape[0], device)
    if (
        not isinstance(learning_rates, Sequence)
        or not learning_rates
        or not all(isinstance(rate, int | float) and 0 < rate < math.inf for rate in learning_rates)
    ):
        raise ValueError(
            f"learning_rates must be a list of numbers above 0; given {learning_rates!r}"
        )
    tensors.check_whole_number(epochs, "epochs")
    tensors.check_whole_number(batch_size, "batch_size")
    tensors.check_number(weight_decay, "weight_decay", zero=True)

    classes, train_class = torch.unique(train_y, return_inverse=True)
    # The class's number; one that was never seen has none.
    test_class = torch.searchsorted(classes, test_y.contiguous()).clamp_(max=classes.numel() - 1)
    test_class[classes[test_class] != test_y] = -1

    order = torch.randperm(len(train_x), generator=stream(seed, "linear probe split"))
    held = math.ceil(VALIDATION_SHARE * len(train_x))
    validation, fitted = order[:held].sort().values, order[held:].sort().values

    with tensors.exact_products(device):
        heads = _Heads(train_x, classes.numel(), learning_rates, device)
        steps = epochs * math.ceil(len(fitted) / batch_size)
        step = 0
        for epoch in range(epochs):
            on_epoch()
            shuffle = torch.randperm(len(fitted), generator=stream(seed, "linear probe", epoch))
            for batch in torch.split(fitted[shuffle], batch_size):
                decay = 0.5 * (1 + math.cos(math.pi * step / steps))
                target = train_class[batch.to(device)]
                heads.step(train_x[batch.to(train_x.device)], target, decay, weight_decay)
                step += 1
        chosen_by = heads.accuracy(train_x, validation, train_class)
        test = heads.accuracy(test_x, torch.arange(len(test_x)), test_class)
    rates = tuple(
        RateResult(rate, chosen_by.top1[i], chosen_by.loss[i], test.top1[i], test.top5[i])
        for i, rate in enumerate(learning_rates)
    )
    best = max(rates, key=lambda rate: (rate.validation_top1, -rate.validation_loss))
    return LinearProbeResult(best.top1, best.top5, best.learning_rate, rates)


@dataclass(frozen=True)
class _Accuracy:
    """Of each head. Samples of an unknown class are wrong, and no part of the loss."""

    top1: list[float]
    top5: list[float]
    loss: list[float]


class _Heads:
    """R linear classifiers (d -> C) on standardised features, their columns side by side."""

    def __init__(
        self, x: Tensor, num_classes: int, rates: Sequence[float], device: torch.device
    ) -> None:
        self.shape = (len(rates), num_classes)
        columns = len(rates) * num_classes
        width = x.shape[1]
        self.mean, self.scale = (figure.to(device) for figure in _standardisation(x))
        self.weight, self.velocity = torch.zeros(2, width, columns, dtype=x.dtype, device=device)
        self.bias, self.bias_velocity = torch.zeros(2, columns, dtype=x.dtype, device=device)
        rates_of_columns = torch.tensor(rates, dtype=x.dtype).repeat_interleave(num_classes)
        self.rates = rates_of_columns.to(device)

    def step(self, x: Tensor, target: Tensor, decay: float, weight_decay: float) -> None:
        """One step of SGD on a mini-batch (B, d) with classes (B,); rates are multiplied by `decay`."""
        x = self._standardised(x)
        logits = torch.addmm(self.bias, x, self.weight).view(len(x), *self.shape)
        # The gradient of the mean cross-entropy in closed form: probabilities less one-hot targets.
        gradient = torch.softmax(logits, dim=2)
        own = target.view(-1, 1, 1).expand(-1, self.shape[0], 1)
        gradient.scatter_(2, own, gradient.gather(2, own) - 1)
        gradient = gradient.view(len(x), -1).div_(len(x))
        self.velocity.mul_(MOMENTUM).addmm_(x.t(), gradient)
        if weight_decay:
            self.velocity.add_(self.weight, alpha=weight_decay)
        self.bias_velocity.mul_(MOMENTUM).add_(gradient.sum(dim=0))
        self.weight.addcmul_(self.velocity, self.rates, value=-decay)
        self.bias.addcmul_(self.bias_velocity, self.rates, value=-decay)

    def accuracy(self, x: Tensor, samples: Tensor, target: Tensor) -> _Accuracy:
        """On the given rows (n,) of features; `target` holds a class for each row of all of `x`."""
        heads, num_classes = self.shape
        top1, top5, loss = torch.zeros(3, heads, dtype=torch.float64, device=self.weight.device)
        for part in tensors.tiles(len(samples), max(self.weight.shape)):
            rows = samples[part]
            features = self._standardised(x[rows.to(x.device)])
            wanted = target[rows.to(target.device)].view(-1, 1, 1)
            logits = torch.addmm(self.bias, features, self.weight).view(-1, heads, num_classes)
            best = logits.topk(min(5, num_classes), dim=2).indices
            hit = best == wanted
            top1 += hit[..., 0].sum(dim=0)
            top5 += hit.any(dim=2).sum(dim=0)
            known = (wanted >= 0).squeeze(2)
            own = logits.gather(2, wanted.clamp(min=0).expand(-1, heads, 1)).squeeze(2)
            loss += ((logits.logsumexp(dim=2) - own) * known).sum(dim=0, dtype=torch.float64)
        shares = (torch.stack([top1, top5, loss]) / len(samples)).tolist()
        return _Accuracy(*shares)

    def _standardised(self, x: Tensor) -> Tensor:
        return (x.to(self.mean) - self.mean) * self.scale


def _standardisation(x: Tensor) -> tuple[Tensor, Tensor]:
    """What is subtracted from and multiplied with each dimension of rows like those of `x` (N, d)."""
    num_samples, width = x.shape
    mean, squares = torch.zeros(2, width, dtype=torch.float64, device=x.device)
    for rows in tensors.tiles(num_samples, width):
        mean += x[rows].sum(dim=0, dtype=torch.float64) / num_samples
    for rows in tensors.tiles(num_samples, width):
        squares += (x[rows] - mean).square().sum(dim=0)
    std = (squares / num_samples).sqrt()
    varies = std > NOISE * mean.abs()
    scale = torch.where(varies, 1 / (std * math.sqrt(width)), 0.0)
    return mean.to(x.dtype), scale.to(x.dtype)
