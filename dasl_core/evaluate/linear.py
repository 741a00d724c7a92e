"""The linear probe: the accuracy of a linear classifier on frozen features."""

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
# Below this share of its mean, the variation of a dimension is float32 rounding error.
NOISE = 1e-6


@dataclass(frozen=True)
class RateResult:
    """Result of one learning rate: accuracies from 0 to 1, and the mean cross-entropy in nats."""

    learning_rate: float
    validation_top1: float
    validation_loss: float
    top1: float
    top5: float


@dataclass(frozen=True)
class LinearProbeResult:
    """Accuracies from 0 to 1 at the learning rate chosen on validation samples, and at all rates."""

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
    views: Callable[[int], Tensor] | None = None,
) -> LinearProbeResult:
    """Train softmax regression on frozen features, one head for each learning rate, and test it.

    All heads are trained together on the same mini-batches: their weights are columns of one matrix,
    so the sweep reads the features once and a step is two matrix products. Weights start at 0 and are
    trained by SGD with momentum 0.9; the learning rate falls to 0 along a cosine, without warm-up.

    Features are standardized with the mean and standard deviation of the training samples, and
    divided by sqrt(d), so that a row has a length of about 1. The scale of features differs between
    methods by orders of magnitude, and the best learning rate is proportional to its inverse square.
    After standardization, one range of rates fits all methods and widths. (The probes of MAE and MoCo v3
    do the same with a BatchNorm without affine parameters.) It does not change the expressiveness of a
    linear classifier.

    A tenth of the training samples, drawn by `seed` and rounded up, is for validation. The rate with the
    best validation Top-1 is selected, or with the lower loss in a tie. Test samples have no influence on
    the selection.

    The features are not moved; one mini-batch at a time is copied to `device`.

    Args:
        train_x: (N, d) features, N >= 2.
        train_y: (N,) integer classes.
        test_x: (M, d) features.
        test_y: (M,) integer classes; a class that the training samples lack counts as wrong.
        learning_rates: learning rates for the mean loss of a mini-batch, above 0.
        epochs: passes over the training samples.
        batch_size: samples per step.
        weight_decay: added to the gradient, as in SGD; not applied to the bias.
        seed: determines the validation samples and the order.
        device: where the heads are trained; None: where `train_x` lies.
        on_epoch: called before each epoch.
        views: of an epoch, the features (N, d) of random views of the training samples to train on; `train_x` still
            gives the standardization and validates. None: `train_x` in all epochs.

    Raises:
        ValueError: shapes or numbers do not fit; the message names the argument.
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
    # Class numbers; -1 for classes missing in the training samples.
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
            x = train_x if views is None else views(epoch)
            shuffle = torch.randperm(len(fitted), generator=stream(seed, "linear probe", epoch))
            for batch in torch.split(fitted[shuffle], batch_size):
                decay = 0.5 * (1 + math.cos(math.pi * step / steps))
                target = train_class[batch.to(device)]
                heads.step(x[batch.to(x.device)], target, decay, weight_decay)
                step += 1
        chosen_by, _, loss = heads.accuracy(train_x, validation, train_class)
        top1, top5, _ = heads.accuracy(test_x, torch.arange(len(test_x)), test_class)
    results = zip(learning_rates, chosen_by, loss, top1, top5, strict=True)
    rates = tuple(RateResult(*result) for result in results)
    best = max(rates, key=lambda rate: (rate.validation_top1, -rate.validation_loss))
    return LinearProbeResult(best.top1, best.top5, best.learning_rate, rates)


class _Heads:
    """R linear classifiers (d -> C) on standardized features, as columns of one matrix."""

    def __init__(
        self, x: Tensor, num_classes: int, rates: Sequence[float], device: torch.device
    ) -> None:
        self.shape = (len(rates), num_classes)
        columns = len(rates) * num_classes
        width = x.shape[1]
        self.mean, self.scale = (values.to(device) for values in _standardization(x))
        self.weight, self.velocity = torch.zeros(2, width, columns, dtype=x.dtype, device=device)
        self.bias, self.bias_velocity = torch.zeros(2, columns, dtype=x.dtype, device=device)
        rates_of_columns = torch.tensor(rates, dtype=x.dtype).repeat_interleave(num_classes)
        self.rates = rates_of_columns.to(device)

    def step(self, x: Tensor, target: Tensor, decay: float, weight_decay: float) -> None:
        """Run one SGD step on a mini-batch (B, d) with classes (B,), at `decay` times the rates."""
        x = self._standardize(x)
        logits = torch.addmm(self.bias, x, self.weight).view(len(x), *self.shape)
        # The gradient of the mean cross-entropy in closed form: probabilities less one-hot targets.
        gradient = torch.softmax(logits, dim=2)
        true_class = target.view(-1, 1, 1).expand(-1, self.shape[0], 1)
        gradient.scatter_(2, true_class, gradient.gather(2, true_class) - 1)
        gradient = gradient.view(len(x), -1).div_(len(x))
        self.velocity.mul_(MOMENTUM).addmm_(x.t(), gradient)
        if weight_decay:
            self.velocity.add_(self.weight, alpha=weight_decay)
        self.bias_velocity.mul_(MOMENTUM).add_(gradient.sum(dim=0))
        self.weight.addcmul_(self.velocity, self.rates, value=-decay)
        self.bias.addcmul_(self.bias_velocity, self.rates, value=-decay)

    def accuracy(self, x: Tensor, indices: Tensor, target: Tensor) -> list[list[float]]:
        """Test on rows `indices` (n,) of features; `target` has the class of every row of `x`.

        Returns:
            Top-1, Top-5 and loss of each head. Samples of unknown classes count as wrong, and not in the loss.
        """
        heads, num_classes = self.shape
        top1, top5, loss = torch.zeros(3, heads, dtype=torch.float64, device=self.weight.device)
        for part in tensors.tiles(len(indices), max(self.weight.shape)):
            rows = indices[part]
            features = self._standardize(x[rows.to(x.device)])
            true_class = target[rows.to(target.device)].view(-1, 1, 1)
            logits = torch.addmm(self.bias, features, self.weight).view(-1, heads, num_classes)
            best = logits.topk(min(5, num_classes), dim=2).indices
            hit = best == true_class
            top1 += hit[..., 0].sum(dim=0)
            top5 += hit.any(dim=2).sum(dim=0)
            has_class = (true_class >= 0).squeeze(2)
            true_logit = logits.gather(2, true_class.clamp(min=0).expand(-1, heads, 1)).squeeze(2)
            loss += ((logits.logsumexp(dim=2) - true_logit) * has_class).sum(
                dim=0, dtype=torch.float64
            )
        shares: list[list[float]] = (torch.stack([top1, top5, loss]) / len(indices)).tolist()
        return shares

    def _standardize(self, x: Tensor) -> Tensor:
        return (x.to(self.mean) - self.mean) * self.scale


def _standardization(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale (d,) such that standardized features are ``(x - mean) * scale``."""
    mean, std = tensors.mean_and_std(x, lambda rows: rows)
    varies = std > NOISE * mean.abs()
    scale = torch.where(varies, 1 / (std * math.sqrt(x.shape[1])), 0.0)
    return mean.to(x.dtype), scale.to(x.dtype)
