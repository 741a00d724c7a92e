"""Fine-tuning: it learns, does not modify its network, and does not depend on the number of processes."""

import copy
import math
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from dasl_core.distributed import all_ranks, rank_share
from dasl_core.evaluate import fine_tune
from dasl_core.evaluate.finetune import Request, _schedule
from dasl_core.models.batchnorm import synchronize_batchnorm
from tests.support.gloo_pool import GlooPool


def pictures(count: int = 48, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy images (N, 1, 6, 6) of three classes, which differ in the two bright rows."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    images = 0.5 * torch.randn(count, 1, 6, 6, generator=generator)
    for image, label in zip(images, y.tolist(), strict=True):
        image[0, 2 * label : 2 * label + 2] += 1
    return images, y


def small_network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((3, 1)),
        nn.Dropout(dropout),
        nn.Flatten(),
    )


def test_finetune_learns_without_changing_network_or_random_state() -> None:
    network = small_network(dropout=0.1)
    network.get_submodule("0").requires_grad_(False)  # like a teacher's weights
    before = copy.deepcopy(network.state_dict())
    random_state = torch.get_rng_state()
    result = fine_tune(network, *pictures(), *pictures(30, seed=1), lr=0.01, batch_size=8)
    assert result.top1 > 0.85
    assert result.top5 == 1  # of three classes
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert [parameter.requires_grad for parameter in network.parameters()] == [False, True, True]
    assert torch.equal(torch.get_rng_state(), random_state)
    torch.manual_seed(5)
    again = fine_tune(network, *pictures(), *pictures(30, seed=1), lr=0.01, batch_size=8)
    assert again == result


def test_finetune_trains_whole_network_with_adamw_and_layer_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare with a naive implementation of two steps."""
    images, y = (part[:8] for part in pictures())
    images = images.double()
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()
    reference = nn.Sequential(copy.deepcopy(network), nn.Linear(4, 3).double())
    nn.init.zeros_(reference.get_parameter("1.weight"))
    nn.init.zeros_(reference.get_parameter("1.bias"))
    weights = [p for p in reference.parameters() if p.ndim > 1]
    biases = [p for p in reference.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.5}, {"params": biases, "weight_decay": 0}], lr=1
    )
    for step in range(2):  # on all images, so their order does not matter
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * _schedule(step, 2)
        optimizer.zero_grad()
        F.cross_entropy(reference(images), y).backward()
        optimizer.step()
    trained: list[nn.Module] = []
    deepcopy = copy.deepcopy

    def recording(network: nn.Module) -> nn.Module:
        trained.append(deepcopy(network))
        return trained[-1]

    monkeypatch.setattr(copy, "deepcopy", recording)
    fine_tune(network, images, y, images, y, epochs=2, lr=0.1, batch_size=8, weight_decay=0.5)
    for ours, theirs in zip(trained[0].parameters(), reference[0].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.equal(trained[0].get_parameter("1.weight"), network.get_parameter("1.weight"))


def test_learning_rate_warms_up_and_falls_to_zero() -> None:
    rates = [_schedule(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 11)
    assert rates.index(max(rates)) == 10
    assert rates[10] == 1
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[-1] < 0.001
    assert _schedule(0, 1) == 1


def test_exempt_weights_have_no_weight_decay() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # It has no gradient, so only weight decay could change it.
            self.place = nn.Parameter(torch.ones(1, 36))
            self.linear = nn.Linear(36, 2)

        def no_weight_decay(self) -> set[str]:
            return {"place"}

        def forward(self, images: Tensor) -> Tensor:
            kept.append(self.place.detach().clone())
            return self.linear(images.flatten(1) + 0 * self.place)  # type: ignore[no-any-return]

    kept: list[Tensor] = []
    images, y = pictures(6)
    fine_tune(Positions(), images, y, images, y, epochs=3, lr=0.1, weight_decay=1)
    assert all(torch.equal(place, torch.ones(1, 36)) for place in kept)


def test_readers_get_positions_and_steps() -> None:
    images, y = pictures(20)
    reads: list[tuple[list[int], int | None]] = []

    def read(requests: Iterable[Request]) -> Generator[Tensor, None, None]:
        for positions, step in requests:
            reads.append((positions.tolist(), step))
            yield images[positions]

    fine_tune(small_network(), read, y, read, y, epochs=2, batch_size=8)
    tests = [None, None, None]  # of 8, 8 and 4 images
    assert [step for _, step in reads] == [None, 0, 1, 2, 3, *tests]
    assert reads.pop(0)[0] == [0]
    for first in (0, 2):
        epoch = reads[first][0] + reads[first + 1][0]
        assert len(set(epoch)) == 16
        assert epoch != sorted(epoch)
    assert reads[0][0] != reads[2][0]


def test_missing_class_and_non_finite_network_count_as_wrong() -> None:
    images, y = pictures(24)
    result = fine_tune(small_network(), images, 5 * y - 3, images, y + 100, epochs=1)
    assert (result.top1, result.top5) == (0, 0)

    class Lost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, images: Tensor) -> Tensor:
            features = images.flatten(1) * self.weight
            return features if len(images) == 1 else features * torch.nan

    assert fine_tune(Lost(), images, y, images, y, epochs=1).top5 == 0


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_finetune_learns_in_half_precision(precision: torch.dtype) -> None:
    result = fine_tune(
        small_network(),
        *pictures(),
        *pictures(30, seed=1),
        lr=0.01,
        batch_size=8,
        precision=precision,
    )
    assert result.top1 > 0.85


def on_some_ranks() -> dict[str, Any]:
    network = synchronize_batchnorm(small_network().double(), torch.device("cpu"))
    images, y = pictures(26)
    images = images.double()
    seen: list[Tensor] = []
    heads: list[np.ndarray] = []

    def read(requests: Iterable[Request]) -> Generator[Tensor, None, None]:
        for positions, _ in requests:
            seen.append(positions)
            yield images[rank_share(positions, all_ranks())]

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Linear) and not module.training:
            heads.append(module.weight.detach().numpy().copy())

    with register_module_forward_hook(record):
        result = fine_tune(
            network,
            read,
            y,
            images[:13],
            y[:13],
            epochs=2,
            lr=0.01,
            batch_size=8,
            group=all_ranks(),
        )
    return {"result": vars(result), "head": heads[-1], "first": seen[0].numpy()}


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_finetune_like_one_process(pool: GlooPool, world: int) -> None:
    (alone,) = pool.call(1, on_some_ranks)
    together = pool.call(world, on_some_ranks)
    assert np.abs(alone["head"]).max() > 0.01
    for rank in together:
        assert rank["result"] == alone["result"]
        assert np.array_equal(rank["first"], alone["first"])
        np.testing.assert_allclose(rank["head"], alone["head"], atol=1e-9)


def test_invalid_arguments_are_named() -> None:
    images, y = pictures(6)
    network = small_network()
    with_batchnorm = nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.BatchNorm1d(4))
    with_batchnorm(images)
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: fine_tune(network, images, y[:3], images, y), "train_images must be at least one"),
        (
            lambda: fine_tune(network, images, y, images, y, precision="fp32"),  # type: ignore[arg-type]
            "precision must be a torch.dtype or None; given 'fp32'",
        ),
        (lambda: fine_tune(network, images, y, images, y[:0]), "test_images must be at least one"),
        (lambda: fine_tune(network, images, y.float(), images, y), "train_y must be integers"),
        (lambda: fine_tune(network, images, y, images, y, epochs=0), "epochs must be at least 1"),
        (lambda: fine_tune(network, images, y, images, y, batch_size=0), "batch_size must be"),
        (lambda: fine_tune(network, images, y, images, y, lr=0), "lr must be above 0"),
        (lambda: fine_tune(network, images, y, images, y, lr=math.nan), "lr must be above 0"),
        (lambda: fine_tune(network, images, y, images, y, epochs=1.5), "epochs must be .* 1.5"),  # type: ignore[arg-type]
        (
            lambda: fine_tune(network, images, y, images, y, weight_decay=-1),
            "weight_decay must be at least 0",
        ),
        (
            lambda: fine_tune(network, images, y, images, y, weight_decay=math.nan),
            "weight_decay must be at least 0.* given nan",
        ),
        (
            lambda: fine_tune(with_batchnorm, images, y, images, y, batch_size=1),
            "batch_size must be at least 2, for the statistics of BatchNorm",
        ),
        (
            lambda: fine_tune(with_batchnorm, images[:1], y[:1], images, y),
            "batch_size must be at least 2.* given 1 of 1 train_images",
        ),
    )
    for call, expected in calls:
        with pytest.raises(ValueError, match=expected):
            call()
