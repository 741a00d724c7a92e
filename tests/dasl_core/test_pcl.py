"""PCL: both terms of its loss against loops, its clusters, its queue, and the settings of the paper."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from dasl_core.clustering import cluster
from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Method, Step
from dasl_core.methods.pcl import PCL, concentrations, prototype_loss, queue_loss
from dasl_core.spec import DatasetFacts, JobSpec, SpecError, resolve
from dasl_core.spec.methods.pcl import ResolvedPCL
from tests.support.gradients import gradient
from tests.support.methods import build_inputs
from tests.support.setting_effects import HEAD, History, SettingEffects, effects
from tests.support.training_world import resolved

WIDTH, BATCH, PER_EPOCH = 4, 6, 3


def method(*, seed: int = 0, **changes: Any) -> PCL:
    torch.manual_seed(seed)
    values: dict[str, Any] = {
        "hidden_dim": 12,
        "projection_dim": WIDTH,
        "queue_length": 8,
        "bank_size": BATCH * PER_EPOCH,
        "clusters": (2, 5),
        "warmup_epochs": 1,
        "teacher_momentum": 0.9,
    }
    return PCL(ResolvedPCL(**values | changes), build_inputs(nn.Flatten(), 12)).double()


def unit_rows(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def run_epoch(pcl: PCL, epoch: int, keys: Tensor, images: Tensor) -> None:
    """Pass one epoch's keys (PER_EPOCH, BATCH, h) of images (PER_EPOCH, BATCH)."""
    for number in range(PER_EPOCH):
        step = Step(epoch * PER_EPOCH + number, 9 * PER_EPOCH, PER_EPOCH, images[number])
        outputs = {"embeddings": keys[number : number + 1], "keys": keys[number : number + 1]}
        pcl.loss(outputs, step)
        pcl.before_update(step)
        pcl.after_update(step)


def test_skipped_step_costs_no_copy_of_queue_and_bank() -> None:
    """What a step leaves there is stored only after the update, and not at all if the device skips it."""
    pcl, images = method(), torch.arange(BATCH * PER_EPOCH).view(PER_EPOCH, BATCH)
    run_epoch(pcl, 0, unit_rows(PER_EPOCH, BATCH, WIDTH), images)
    assert {id(buffer) for buffer in pcl.restored_buffers()}.isdisjoint(
        map(id, (pcl.queue, pcl.bank, pcl.bank_images, pcl.prototypes))
    )
    for updated in (False, True):
        before = {name: buffer.clone() for name, buffer in pcl.named_buffers()}
        step = Step(PER_EPOCH, 9 * PER_EPOCH, PER_EPOCH, images[0] + 100)
        keys = unit_rows(1, BATCH, WIDTH, seed=1)
        pcl.loss({"embeddings": keys, "keys": keys}, step)
        pcl.before_update(step)
        assert all(torch.equal(buffer, before[name]) for name, buffer in pcl.named_buffers())
        pcl.after_update(replace(step, updated=torch.tensor(updated)))
        for name in ("queue", "bank", "bank_images"):
            assert torch.equal(pcl.get_buffer(name), before[name]) != updated


def naive_softmax(query: Tensor, candidates: Tensor, right: int, temperatures: Tensor) -> Tensor:
    """Cross-entropy of one query, written out."""
    logits = [
        query @ candidate / query.norm() / temperature
        for candidate, temperature in zip(candidates, temperatures, strict=True)
    ]
    loss: Tensor = torch.stack(logits).logsumexp(dim=0) - logits[right]
    return loss


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 2**31))
def test_loss_terms_equal_their_formulas(samples: int, others: int, seed: int) -> None:
    lengths = 1 + torch.arange(samples, dtype=torch.float64).unsqueeze(1)
    keys, candidates = unit_rows(samples, WIDTH, seed=seed), unit_rows(others, WIDTH, seed=seed + 1)
    temperatures = 0.1 + torch.arange(others, dtype=torch.float64) / 10
    assigned = torch.arange(samples) % others
    assigned[0] = -1

    def by_hand(x: Tensor) -> list[Tensor]:
        even = torch.full((1 + others,), 0.2, dtype=torch.float64)
        rows = list(zip(x, keys, strict=True))
        first = [naive_softmax(q, torch.cat([k[None], candidates]), 0, even) for q, k in rows]
        known = [
            naive_softmax(q, candidates, int(a), temperatures)
            for q, a in zip(x[1:], assigned[1:], strict=True)
        ]
        return [sum(first, x.new_zeros(())) / samples, sum(known, x.new_zeros(())) / samples]

    results = []
    for terms in (
        by_hand,
        lambda x: [
            queue_loss(x, keys, candidates, 0.2),
            prototype_loss(x, assigned, candidates, temperatures),
        ],
    ):
        x = (unit_rows(samples, WIDTH, seed=seed + 2) * lengths).requires_grad_()
        values = terms(x)
        sum(values, x.new_zeros(())).backward()
        results.append((*(value.detach() for value in values), gradient(x)))
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


def test_concentrations_are_those_of_the_authors_code() -> None:
    random = np.random.default_rng(0)
    assigned = np.array([0] * 6 + [1] * 3 + [2] + [3] * 9 + [4] * 2)
    distances = random.uniform(0.1, 1, len(assigned))
    density = np.zeros(5)
    for number in range(5):
        own = distances[assigned == number]
        if len(own) > 1:
            density[number] = own.mean() / math.log(len(own) + 10)
    density[2] = density.max()
    density = density.clip(np.percentile(density, 10), np.percentile(density, 90))
    ours = concentrations(torch.from_numpy(distances), torch.from_numpy(assigned), 5)
    np.testing.assert_allclose(ours.numpy(), density / density.mean(), rtol=1e-12)


def test_clusters_without_extent_have_equal_temperatures() -> None:
    ours = concentrations(torch.zeros(4), torch.tensor([0, 0, 1, 1]), 2)
    assert torch.equal(ours, torch.ones(2))


def test_prototypes_are_those_of_the_last_epoch() -> None:
    pcl = method()
    images = (torch.randperm(BATCH * PER_EPOCH) * 3 + 1).view(PER_EPOCH, BATCH)
    keys = unit_rows(PER_EPOCH, BATCH, WIDTH)
    run_epoch(pcl, 0, keys, images)
    assigned = pcl._assignments_of(images.flatten())
    rows = keys.flatten(0, 1)
    for of_image, (first, last) in zip(assigned, [(0, 2), (2, 7)], strict=True):
        means = torch.stack([rows[of_image == k].mean(dim=0) for k in range(last - first)])
        torch.testing.assert_close(pcl.prototypes[first:last], F.normalize(means, dim=1))
        assert pcl.concentrations[first:last].mean().item() == pytest.approx(1)
    assert (pcl._assignments_of(torch.tensor([0, 2, 999])) == -1).all()

    before = assigned.clone()
    run_epoch(pcl, 1, -keys.flip(0), images)
    assert not torch.equal(pcl._assignments_of(images.flatten()), before)


def test_clustering_depends_on_the_seed_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.arange(BATCH * PER_EPOCH).view(PER_EPOCH, BATCH)
    keys = unit_rows(PER_EPOCH, BATCH, WIDTH)
    seeds: list[list[int]] = []

    def spy(*arguments: Any, seed: int, **rest: Any) -> Any:
        seeds[-1].append(seed)
        return cluster(*arguments, seed=seed, **rest)

    monkeypatch.setattr("dasl_core.methods.pcl.cluster", spy)
    for seed in (0, 0, 1):
        seeds.append([])
        run_epoch(method(seed=seed), 0, keys, images)
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])
    assert len(set(seeds[0])) == 2


def test_prototypes_join_the_loss_after_warmup() -> None:
    pcl, images = method(warmup_epochs=2), torch.arange(BATCH * PER_EPOCH).view(PER_EPOCH, BATCH)
    keys = unit_rows(PER_EPOCH, BATCH, WIDTH)
    run_epoch(pcl, 0, keys, images)
    assert (pcl.assignments == -1).all()
    run_epoch(pcl, 1, keys, images)
    assert (pcl.assignments >= 0).all()
    outputs = {"embeddings": keys[:1], "keys": keys[:1]}
    pcl.eval()
    early, late = (
        pcl.loss(outputs, Step(epoch * PER_EPOCH, 27, PER_EPOCH, images[0])) for epoch in (1, 2)
    )
    terms = [
        prototype_loss(
            keys[0],
            pcl.assignments[number, :BATCH],
            pcl.prototypes[first:last],
            0.2 * pcl.concentrations[first:last],
        )
        for number, (first, last) in enumerate([(0, 2), (2, 7)])
    ]
    torch.testing.assert_close(late - early, (terms[0] + terms[1]) / 2)


def test_queue_holds_newest_keys() -> None:
    pcl, images = method(), torch.arange(BATCH * PER_EPOCH).view(PER_EPOCH, BATCH)
    keys = unit_rows(PER_EPOCH, BATCH, WIDTH)
    run_epoch(pcl, 0, keys, images)
    newest = keys.flatten(0, 1)[-8:]
    nearest = (pcl.queue @ newest.T).max(dim=1)
    assert sorted(nearest.indices.tolist()) == list(range(8))
    torch.testing.assert_close(nearest.values, torch.ones(8, dtype=torch.float64))


def test_settings_of_the_paper_on_imagenet() -> None:
    spec = JobSpec.model_validate(
        {
            "dataset": "imagenet",
            "method": {"name": "pcl"},
            "backbone": {"name": "resnet50"},
            "train": {"epochs": 200, "batch_size": 256},
            "evaluate": {"holdout": None},
        }
    )
    facts = DatasetFacts(num_images=1_281_167, num_classes=1000, median_size=375)
    chosen = resolve(spec, facts)
    method = chosen.method
    assert isinstance(method, ResolvedPCL)
    assert (method.clusters, method.queue_length) == ((25_000, 50_000, 100_000), 16_384)
    assert (method.warmup_epochs, method.teacher_momentum) == (20, 0.999)
    assert (method.temperature, method.projection_dim, method.hidden_dim) == (0.2, 128, 2048)
    optimizer = chosen.train.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("sgd", 0.03, 1e-4)


def test_more_clusters_than_keys_are_refused(pictures: DatasetIndex) -> None:
    with pytest.raises(SpecError, match=r"method\.clusters: are more than the 24 images"):
        resolved(pictures, method={"name": "pcl", "clusters": [2, 25]})
    with pytest.raises(SpecError, match=r"method\.clusters: are more than the 24 images"):
        resolved(pictures, method={"name": "pcl", "clusters": [25], "bank_size": 1000})


def test_settings_without_clusters_are_refused(pictures: DatasetIndex) -> None:
    with pytest.raises(ValidationError, match="bank_size"):
        resolved(pictures, method={"name": "pcl", "bank_size": 1})
    with pytest.raises(SpecError, match=r"method\.warmup_epochs: leaves no epoch with clusters"):
        resolved(pictures, method={"name": "pcl", "warmup_epochs": 3}, train={"epochs": 3})


def loss_by_settings(settings: Any, method: Method, history: History) -> Tensor:
    assert isinstance(method, PCL)
    step, outputs = history[-1]
    queries, keys = outputs["embeddings"][0], F.normalize(outputs["keys"][0], dim=1)
    loss = queue_loss(queries, keys, method.queue, settings.temperature)
    if step.epoch < settings.warmup_epochs:
        return loss
    terms, first = [], 0
    for number, k in enumerate(settings.clusters):
        rows = slice(first, first + k)
        terms.append(
            prototype_loss(
                queries,
                method._assignments_of(step.indices)[number],
                method.prototypes[rows],
                settings.temperature * method.concentrations[rows],
            )
        )
        first += k
    return loss + torch.stack(terms).mean()


SETTING_EFFECTS = {
    "pcl": SettingEffects(
        HEAD
        | effects("loss", temperature=0.7, warmup_epochs=2)
        | effects("network", queue_length=11, bank_size=13, clusters=(2, 4))
        | effects("teacher", teacher_momentum=0.5)
        | effects("kept", keep="teacher"),
        loss_by_settings,
    )
}
