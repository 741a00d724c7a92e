"""Gradients in micro-batches: caching if the loss compares samples, accumulation if it is a mean."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dasl_core.distributed import all_ranks, gather_views, rank, world_size
from dasl_core.methods import REGISTRY, Method, Outputs, Step, nt_xent
from dasl_core.spec import DatasetFacts, JobSpec, resolve
from dasl_core.spec.train import Train
from dasl_core.train.criterion import Criterion
from dasl_core.train.gradients import GradientComputer
from tests.support.gloo_pool import GlooPool
from tests.support.gradients import gradient
from tests.support.methods import build_inputs
from tests.support.training_world import tiny_spec

BATCH, VIEWS = 8, 2
FACTS = DatasetFacts(num_images=100, num_classes=3, median_size=16)


class Contrastive(Method):
    """NT-Xent on a small network with dropout or batch statistics, with a weight used only by the loss."""

    def __init__(self, *layers: nn.Module) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), *layers, nn.Linear(6, 5))
        super().__init__(None, build_inputs(network, 5))
        self.scales = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    @property
    def embedding_head(self) -> nn.Module:
        return nn.Identity()

    def forward(self, views: Sequence[Tensor]) -> Outputs:
        features = self.collected(self.backbone(torch.cat(list(views))))
        outputs = features.unflatten(0, (len(views), -1))
        return {"embeddings": outputs, "unused": torch.zeros(1, outputs.shape[1])}

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        return nt_xent(outputs["embeddings"] * self.scales, 0.3, step.group)


class Mean(Contrastive):
    """A loss that is a mean over samples, each weighted by its number."""

    accumulates = True

    def loss(self, outputs: Outputs, step: Step) -> Tensor:
        first, second = outputs["embeddings"] * self.scales
        weights = 1.0 + step.indices.chunk(world_size())[rank()]
        return (weights * F.mse_loss(first, second * 0.3, reduction="none").sum(dim=1)).mean()


def made(kind: type[Contrastive], *layers: nn.Module) -> Contrastive:
    torch.manual_seed(0)
    return kind(*layers).double()


def a_batch() -> tuple[list[np.ndarray], Step]:
    random = np.random.default_rng(1)
    views = [random.normal(size=(BATCH, 3, 2, 2)) for _ in range(VIEWS)]
    return views, Step(2, 10, 5, torch.arange(BATCH) * 3, torch.arange(BATCH) % 3, all_ranks())


def gradients(
    kind: type[Contrastive],
    parts: int,
    terms: dict[str, Any],
    is_mean: bool = False,
    measure_shares: bool = False,
) -> tuple[dict[str, float], dict[str, np.ndarray], np.ndarray]:
    """Terms, gradients and embeddings of one global batch, on any number of ranks."""
    method = made(kind)
    views, step = a_batch()
    share = [torch.from_numpy(step_share(view)) for view in views]
    spec = resolve(JobSpec.model_validate(tiny_spec(**terms)), FACTS)
    model: nn.Module = method
    if dist.is_initialized():
        model = DistributedDataParallel(method, gradient_as_bucket_view=True)
    criterion = Criterion(
        "contrastive", method, spec.active_regularizers(), spec.train.seed, torch.device("cpu")
    )
    assert criterion.is_mean == is_mean
    computer = GradientComputer(
        model,
        method,
        criterion,
        micro_batches=parts,
        is_mean=is_mean,
        autocast=nullcontext,
        scale=lambda loss: loss * 4,
    )
    found, outputs = computer.backward(share, step, measure_shares=measure_shares)
    means = {}
    for name, value in found.items():
        if dist.is_initialized():
            dist.all_reduce(value)
            value /= dist.get_world_size()
        means[name] = float(value)
    slopes = {name: gradient(p).numpy().copy() for name, p in method.named_parameters()}
    return means, slopes, gather_views(outputs["embeddings"], all_ranks()).numpy()


def step_share(values: np.ndarray) -> np.ndarray:
    if not dist.is_initialized():
        return values
    return np.array_split(values, dist.get_world_size())[dist.get_rank()]


def assert_equal(one: Any, other: Any) -> None:
    assert other[0] == pytest.approx(one[0], abs=1e-12)
    assert one[1].keys() == other[1].keys()
    for name, slope in one[1].items():
        assert np.abs(slope).max() > 1e-6
        np.testing.assert_allclose(other[1][name], slope, rtol=0, atol=1e-12)
    np.testing.assert_allclose(other[2], one[2], rtol=0, atol=1e-12)


TERMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "dar": {"dar": {"weight": 0.5}},
    "dar-class": {"dar": {"weight": 0.5, "labels": "class", "difference": "abs"}},
    "sec": {"sec": {"weight": 0.5, "ramp": False}},
}


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("parts", [2, 4])
def test_cached_gradients_equal_whole_batch(parts: int, terms: str) -> None:
    whole = gradients(Contrastive, 1, TERMS[terms])
    assert_equal(whole, gradients(Contrastive, parts, TERMS[terms]))


@pytest.mark.parametrize("terms", TERMS)
def test_cached_gradients_on_two_ranks_equal_whole_batch_on_one(pool: GlooPool, terms: str) -> None:
    whole = gradients(Contrastive, 1, TERMS[terms])
    for part in pool.call(2, gradients, Contrastive, 2, TERMS[terms]):
        assert_equal(whole, part)


def test_shares_on_two_ranks_equal_those_of_one(pool: GlooPool) -> None:
    terms = {"dar": {"share": 0.3}, "sec": {"share": 0.2, "ramp": False}}
    whole = gradients(Contrastive, 1, terms, measure_shares=True)
    assert whole[0]["loss_dar"] > 0
    for part in pool.call(2, gradients, Contrastive, 1, terms, False, True):
        assert_equal(whole, part)


def test_mean_loss_is_accumulated(pool: GlooPool) -> None:
    whole = gradients(Mean, 1, {}, is_mean=True)
    assert_equal(whole, gradients(Mean, 4, {}, is_mean=True))
    for part in pool.call(2, gradients, Mean, 2, {}, True):
        assert_equal(whole, part)


def test_mean_loss_with_regularizer_is_cached() -> None:
    whole = gradients(Mean, 1, TERMS["dar"])
    assert_equal(whole, gradients(Mean, 4, TERMS["dar"]))


class Recorded(nn.Module):
    """Records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return x


def computer(method: Contrastive, parts: int) -> GradientComputer:
    spec = resolve(JobSpec.model_validate(tiny_spec()), FACTS)
    criterion = Criterion(
        "contrastive", method, spec.active_regularizers(), spec.train.seed, torch.device("cpu")
    )

    def no_autocast() -> AbstractContextManager[None]:
        return nullcontext()

    return GradientComputer(
        method,
        method,
        criterion,
        micro_batches=parts,
        is_mean=False,
        autocast=no_autocast,
        scale=lambda loss: loss,
    )


def test_second_forward_repeats_dropout() -> None:
    recorded = Recorded()
    method = made(Contrastive, nn.Dropout(0.5), recorded)
    views, step = a_batch()
    computer(method, 4).backward([torch.from_numpy(view) for view in views], step)
    first, second = recorded.seen[:4], recorded.seen[4:]
    assert len(second) == 4
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0] == 0, first[1] == 0)  # micro-batches have different dropout


def test_running_statistics_count_batch_once() -> None:
    views = [torch.from_numpy(view) for view in a_batch()[0]]
    method = made(Contrastive, nn.BatchNorm1d(6))
    computer(method, 4).backward(views, a_batch()[1])
    once = made(Contrastive, nn.BatchNorm1d(6))
    for part in zip(*(view.chunk(4) for view in views), strict=True):
        once(part)
    for name, buffer in once.named_buffers():
        assert torch.equal(buffer, method.get_buffer(name)), name


def test_micro_batch_takes_part_of_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasl_core.methods.base.group_size", lambda group: 2)
    step = Step(0, 1, 1, torch.arange(12), torch.arange(12) + 100)
    parts = [step.micro_batch(number, 3) for number in range(3)]
    assert [part.indices.tolist() for part in parts] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert parts[1].labels is not None
    assert parts[1].labels.tolist() == [102, 103, 108, 109]


def test_description_names_the_methods_that_accumulate() -> None:
    field = Train.model_json_schema()["properties"]["micro_batches"]
    words = re.findall(r"\w+", field["description"])
    assert REGISTRY.keys() & words == {
        name for name, method in REGISTRY.items() if method.accumulates
    }
