"""The linear probe against torch.optim, scikit-learn and its own rules."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dasl_core import tensors
from dasl_core.evaluate import linear_probe
from dasl_core.evaluate.linear import _Heads, _standardization

Split = tuple[Tensor, Tensor, Tensor, Tensor]


def clouds(
    classes: int = 8, per_class: int = 40, width: int = 16, spread: float = 1.0, seed: int = 0
) -> Split:
    """Training and test features, equally many, with their classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=generator)
    y = torch.arange(classes).repeat(2 * per_class)
    x = centres[y] + spread * torch.randn(len(y), width, generator=generator)
    half = len(y) // 2
    return x[:half], y[:half], x[half:], y[half:]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_head_updates_equal_torch_sgd(weight_decay: float) -> None:
    x, y = (part.double() if part.is_floating_point() else part for part in clouds()[:2])
    rates, steps = (0.1, 3.0, 10.0), 12
    heads = _Heads(x, 8, rates, torch.device("cpu"))
    standardised = (x - x.mean(dim=0)) / x.std(dim=0, correction=0) / math.sqrt(x.shape[1])
    for number, rate in enumerate(rates):
        head = torch.nn.Linear(16, 8).double()
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
        optimizer = torch.optim.SGD(
            [
                {"params": [head.weight], "weight_decay": weight_decay},
                {"params": [head.bias], "weight_decay": 0},
            ],
            lr=rate,
            momentum=0.9,
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(steps):
            batch = slice(20 * step, 20 * step + 20)
            if number == 0:
                decay = 0.5 * (1 + math.cos(math.pi * step / steps))
                heads.step(x[batch], y[batch], decay, weight_decay)
            optimizer.zero_grad()
            F.cross_entropy(head(standardised[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
        columns = slice(8 * number, 8 * number + 8)
        torch.testing.assert_close(heads.weight[:, columns], head.weight.detach().t())
        torch.testing.assert_close(heads.bias[columns], head.bias.detach())
        logits = head(standardised).detach()
        top1, top5, loss = heads.accuracy(x, torch.arange(len(x)), y)
        best = logits.topk(5, dim=1).indices
        assert top1[number] == (best[:, 0] == y).double().mean()
        assert top5[number] == (best == y[:, None]).any(dim=1).double().mean()
        assert loss[number] == pytest.approx(F.cross_entropy(logits, y).item())


def test_probe_matches_scikit_learn_softmax_regression() -> None:
    train_x, train_y, test_x, test_y = clouds(per_class=60, spread=1.6)
    reference = LogisticRegression(max_iter=2000).fit(train_x.numpy(), train_y.numpy())
    expected = reference.score(test_x.numpy(), test_y.numpy())
    assert 0.5 < expected < 0.95
    result = linear_probe(train_x, train_y, test_x, test_y, batch_size=64)
    assert linear_probe(train_x, train_y, test_x, test_y, batch_size=64, device="cpu") == result
    assert result.top1 > expected - 0.03
    assert result.top1 < result.top5 <= 1


def test_sweep_equals_separate_probes() -> None:
    split = clouds(spread=2)
    rates = (0.01, 0.3, 10.0)
    together = linear_probe(*split, learning_rates=rates, epochs=5, batch_size=50)
    assert [rate.learning_rate for rate in together.rates] == list(rates)
    for number, rate in enumerate(rates):
        alone = linear_probe(*split, learning_rates=[rate], epochs=5, batch_size=50)
        assert vars(alone.rates[0]) == pytest.approx(vars(together.rates[number]))
    assert len({rate.top1 for rate in together.rates}) > 1


def test_learning_rate_is_chosen_on_held_out_training_samples() -> None:
    train_x, train_y, test_x, test_y = clouds(spread=2)
    rates = (1e-9, 1.0)
    result = linear_probe(train_x, train_y, test_x, test_y, learning_rates=rates, epochs=10)
    assert result.learning_rate == 1.0
    chosen = result.rates[1]
    assert (result.top1, result.top5) == (chosen.top1, chosen.top5)
    assert chosen.validation_top1 > result.rates[0].validation_top1
    # With test labels for which the other rate is better, the choice stays the same.
    guess = linear_probe(
        train_x, train_y, test_x, (test_y + 1) % 8, learning_rates=rates, epochs=10
    )
    assert guess.learning_rate == 1.0
    assert guess.rates[1].validation_top1 == chosen.validation_top1
    assert guess.top1 < guess.rates[0].top1
    # With random labels, training images are memorized and held-out ones are not.
    noise = torch.randint(0, 8, (200,), generator=torch.Generator().manual_seed(0))
    wide = torch.randn(200, 400, generator=torch.Generator().manual_seed(1))
    heart = linear_probe(wide, noise, wide, noise, learning_rates=[10.0], epochs=30)
    assert heart.rates[0].validation_top1 < 0.5
    assert heart.top1 > 0.88


def test_probe_learns_from_the_views_of_each_epoch() -> None:
    train_x, train_y, test_x, test_y = clouds(spread=1.5)
    expected = linear_probe(train_x, train_y, test_x, test_y, epochs=4)
    drawn: list[int] = []

    def same(epoch: int) -> Tensor:
        drawn.append(epoch)
        return train_x

    assert linear_probe(train_x, train_y, test_x, test_y, epochs=4, views=same) == expected
    assert drawn == [0, 1, 2, 3]
    mirrored = linear_probe(
        train_x - train_x.mean(0),
        train_y,
        test_x,
        test_y,
        epochs=4,
        views=lambda _: train_x.mean(0) - train_x,
    )
    assert mirrored.top1 < 1 / 8 < expected.top1


def test_accuracy_does_not_depend_on_feature_scale_and_offset() -> None:
    train_x, train_y, test_x, test_y = clouds(spread=1.5)
    expected = linear_probe(train_x, train_y, test_x, test_y, epochs=10)
    for scale, shift in ((1e4, 0), (1e-4, 0), (torch.logspace(-3, 3, 16), 0), (1, 100)):
        result = linear_probe(
            scale * train_x + shift, train_y, scale * test_x + shift, test_y, epochs=10
        )
        assert result.learning_rate == expected.learning_rate
        assert result.top1 == pytest.approx(expected.top1, abs=0.01)


def test_dimension_of_rounding_noise_is_ignored() -> None:
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 7
    x[:, 2] = 1000 + 1e-4 * x[:, 2]
    mean, scale = _standardization(x)
    assert scale.tolist()[1:] == [0, 0]
    standardised = ((x - mean) * scale)[:, 0]
    assert standardised.std(correction=0).item() == pytest.approx(1 / math.sqrt(3))
    # Identical features give chance accuracy, not NaN.
    collapsed = torch.full((40, 5), 0.3)
    y = torch.arange(40) % 4
    result = linear_probe(collapsed, y, collapsed, y, epochs=2)
    assert result.top1 == 0.25
    assert all(math.isfinite(rate.validation_loss) for rate in result.rates)


def test_probe_handles_missing_and_few_classes() -> None:
    train_x, train_y, test_x, test_y = clouds(classes=3, spread=0.1)
    numbers = torch.tensor([4, -2, 90])
    result = linear_probe(train_x, numbers[train_y], test_x, numbers[test_y], epochs=20)
    assert (result.top1, result.top5) == (1, 1)
    unknown = torch.where(test_y == 0, torch.where(test_y == 0, 50, 4), numbers[test_y])
    result = linear_probe(train_x, numbers[train_y], test_x, unknown, epochs=20)
    assert result.top1 == result.top5 == pytest.approx(2 / 3)
    assert linear_probe(train_x, numbers[train_y], test_x, numbers[test_y] + 1000).top5 == 0


def test_probe_repeats_itself_and_takes_arrays_tiles_and_both_precisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = clouds(spread=1.5)
    expected = linear_probe(*split, epochs=3)
    random_state = torch.get_rng_state()
    assert linear_probe(*split, epochs=3) == expected
    assert torch.equal(torch.get_rng_state(), random_state)
    assert linear_probe(*(part.numpy() for part in split), epochs=3) == expected
    assert linear_probe(*split, epochs=3, device=torch.device("cpu")) == expected
    assert linear_probe(*split, epochs=3, seed=1) != expected
    double = linear_probe(split[0].double(), split[1], split[2].double(), split[3], epochs=3)
    assert double.top1 == pytest.approx(expected.top1, abs=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear_probe(*split, epochs=3) == expected
    monkeypatch.setattr(tensors, "TILE_ENTRIES", 100)
    tiled = linear_probe(*split, epochs=3)
    assert [rate.top1 for rate in tiled.rates] == [rate.top1 for rate in expected.rates]


def test_invalid_arguments_are_named() -> None:
    x, y, _, _ = clouds()
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: linear_probe(x, y, x[:, :3], y), "test_x must have the 16 columns of train_x"),
        (lambda: linear_probe(x, y[:3], x, y), r"train_y must have the shape \(320,\)"),
        (lambda: linear_probe(x[:1], y[:1], x, y), "train_x must have at least 2 rows; given 1"),
        (
            lambda: linear_probe(x, y, x, y, learning_rates=[]),
            "learning_rates must be a list of numbers",
        ),
        (
            lambda: linear_probe(x, y, x, y, learning_rates=0.1),  # type: ignore[arg-type]
            "a list of numbers above 0; given 0.1",
        ),
        (lambda: linear_probe(x, y, x, y, learning_rates=[0.1, 0]), r"above 0; given \[0.1, 0\]"),
        (lambda: linear_probe(x, y, x, y, epochs=0), "epochs must be at least 1"),
        (lambda: linear_probe(x, y, x, y, epochs=1.5), "epochs must be .* whole number"),  # type: ignore[arg-type]
        (lambda: linear_probe(x, y, x, y, batch_size=0), "batch_size must be at least 1"),
        (lambda: linear_probe(x, y, x, y, batch_size=2.0), "batch_size must be .* whole number"),  # type: ignore[arg-type]
        (lambda: linear_probe(x, y, x, y, weight_decay=-1), "weight_decay must be at least 0"),
        (lambda: linear_probe(x, y, x, y, weight_decay=np.nan), "weight_decay must be .* nan"),
        (lambda: linear_probe(x, y, x, y, learning_rates=["1"]), "learning_rates must be a list"),  # type: ignore[list-item]
        (lambda: linear_probe(x * np.nan, y, x, y), "train_x holds NaN"),
    )
    for call, expected in calls:
        with pytest.raises(ValueError, match=expected):
            call()
