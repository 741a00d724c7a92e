"""W processes compute in float64 what one does with the global batch: losses, gradients, whole runs."""

import pickle
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import (
    all_ranks,
    all_reduce_sum,
    gather,
    gather_objects,
    gather_objects_to_rank0,
    group_size,
    mean_over_ranks,
    reduced_sum,
    scattered_sum,
)
from dasl_core.methods import REGISTRY, Step, build_method, nt_xent
from dasl_core.methods.barlow_twins import barlow_twins_loss
from dasl_core.methods.hcl import hard_negative_loss
from dasl_core.methods.moco_v3 import moco_v3_loss
from dasl_core.methods.swav import sinkhorn
from dasl_core.methods.vicreg import vicreg_loss
from dasl_core.spec import DatasetFacts, JobSpec, ResolvedJobSpec, resolve
from dasl_core.train.criterion import Criterion
from dasl_core.train.validation import Validator
from tests.support.gloo_pool import GlooPool
from tests.support.gradients import gradient
from tests.support.training_world import (
    FAMILIES,
    KIN,
    Recorder,
    families_first,
    open_trainer,
    resolved,
    run,
    supported,
    tiny_spec,
)

TOLERANCE = 1e-10
# The method whose whole run on two ranks also draws its plots.
DRAWN = "simclr"
# Methods whose whole runs have the small stem: those that multiply rounding errors if BatchNorm sees 1 x 1
# pixels at the last stage, and one of the others.
SMALL_STEM = ("simclr", "margin_softmax", "npair", "proxy_anchor", "triplet")
# Checks of every method; checks that do not depend on the method run on SimCLR only. Four ranks take four times as
# long as two. Regularizers gather by the same code for every method, so only those of one method run on four, too.
EVERY_METHOD: dict[str, dict[str, Any]] = {
    "alone": {},
    "dar": {"dar": {"weight": 0.1}},
    "dar-cluster": {"dar": {"weight": 0.1, "labels": "cluster", "clusters": {"k": 3}}},
    "dar-class": {"dar": {"weight": 0.1, "labels": "class"}},
    "sec": {"sec": {"weight": 0.5, "ramp": False}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "dar-elementwise": {"dar": {"weight": 0.1, "difference": "abs"}},
    "dar-l2-unbiased-sum": {
        "dar": {
            "weight": 1e-3,
            "difference": "signed",
            "norm": "l2",
            "estimator": "unbiased",
            "reduction": "sum",
        }
    },
    "dar-unnormalised": {"dar": {"weight": 0.1, "normalize": False}},
    "sec-zero": {"sec": {"weight": 0.01, "target": "zero", "ramp": False}},
    "dar-and-sec": {"dar": {"weight": 0.1}, "sec": {"weight": 0.5, "ramp": False}},
    "pairs": {"regularizers": {"uniformity": {"weight": 0.3, "labels": "class"}}},
    "dinov2": {"settings": {"centering": "sinkhorn", "koleo": 0.1, "shared_head": False}},
    "slices": {"regularizers": {"visreg": {"weight": 0.3, "slices": 9}}},
}
# Regularizers see the embeddings alone: `make test` runs each with SimCLR and with methods of other kinds.
PAIRS = {
    *(("simclr", terms) for terms in ("dar", "sec", "dar-cluster")),
    ("ibot", "alone"),
    ("byol", "dar"),
    ("dino", "sec"),
    ("swav", "dar-cluster"),
    ("proxy_anchor", "dar-class"),
    ("moco_v3", "sec"),
}
# And on four ranks what gathers more than embeddings: codes, and features with their clusters.
ON_FOUR = {("swav", "alone"), ("simclr", "dar-cluster")}
CASES = [
    *(
        pytest.param(
            method,
            terms,
            ranks,
            marks=[]
            if (
                ranks == 2
                and ((terms == "alone" and method in FAMILIES) or (method, terms) in PAIRS)
            )
            or (ranks == 4 and (method, terms) in ON_FOUR)
            else pytest.mark.slow,
        )
        for method in REGISTRY
        for terms, changes in EVERY_METHOD.items()
        for ranks in (2, 4)
        if changes == supported(method, **changes) and not (changes and method in KIN)
        if ranks == 2 or terms == "alone" or method == "simclr"
    ),
    *(("ibot" if terms == "dinov2" else "simclr", terms, 2) for terms in VARIANTS),
]


def share(global_batch: np.ndarray, dim: int = 0) -> Tensor:
    """This rank's contiguous part of an array."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.from_numpy(global_batch).chunk(world, dim)[rank].clone()


# --- collectives


def gather_and_weigh(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    own = share(values).requires_grad_()
    gathered = gather(own, all_ranks())
    (gathered * torch.from_numpy(weights[dist.get_rank()])).sum().backward()
    return gathered.detach().numpy(), gradient(own).numpy()


def test_gather_keeps_rank_order_and_sums_gradients(pool: GlooPool) -> None:
    random = np.random.default_rng(0)
    values, weights = random.normal(size=(8, 3)), random.normal(size=(4, 8, 3))
    results = pool.call(4, gather_and_weigh, values, weights)
    for gathered, _ in results:
        np.testing.assert_array_equal(gathered, values)
    gradient = np.concatenate([gradient for _, gradient in results])
    np.testing.assert_allclose(gradient, weights.sum(axis=0), rtol=1e-14)


def sums_of_shares(values: np.ndarray) -> list[np.ndarray]:
    own = torch.from_numpy(values[dist.get_rank()]).transpose(1, 2)  # not contiguous
    group = dist.group.WORLD
    assert group is not None
    return [scattered_sum(own, group).numpy(), reduced_sum(own, group).numpy()]


def test_each_rank_gets_its_share_of_the_sum_in_rank_order(pool: GlooPool) -> None:
    """The way of GPUs and that of CPUs, both on CPUs."""
    values = np.random.default_rng(2).normal(size=(3, 6, 2, 5))
    expected = values.sum(axis=0).transpose(0, 2, 1)
    results = pool.call(3, sums_of_shares, values)
    for way in range(2):
        together = np.concatenate([shares[way] for shares in results])
        np.testing.assert_allclose(together, expected, rtol=1e-14)


def sum_and_mean(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    own = share(values).requires_grad_()
    total = all_reduce_sum(own, all_ranks())
    (total * (dist.get_rank() + 1)).sum().backward()
    mean = mean_over_ranks(own, all_ranks())
    return total.detach().numpy(), gradient(own).numpy(), mean.numpy()


def test_all_reduce_sum_and_its_gradient(pool: GlooPool) -> None:
    values = np.arange(4.0).reshape(4, 1)
    for total, slope, mean in pool.call(4, sum_and_mean, values):
        assert (total.item(), slope.item(), mean.item()) == (6.0, 10.0, 1.5)


def exchanged(values: list[Any]) -> tuple[list[Any], list[Any] | None, str]:
    group, mine = all_ranks(), values[dist.get_rank()]
    both = gather_objects(mine, group), gather_objects_to_rank0(mine, group)
    try:  # what a process that is no rank may send
        gather_objects(Path("run"), group)
    except pickle.UnpicklingError as error:
        return *both, str(error)
    return *both, ""


def test_values_of_ranks_are_gathered_and_no_code_is_among_them(pool: GlooPool) -> None:
    values = [{3: "cut off", 70: "empty"}, (True, 5, [1.5, b"x" * 5000, None])]
    for rank, (all_values, of_rank0, problem) in enumerate(pool.call(2, exchanged, values)):
        assert all_values == values
        assert of_rank0 == (values if rank == 0 else None)
        assert "Weights only load failed" in problem


# --- losses of given embeddings


def half_gradient(loss: str, embeddings: np.ndarray) -> np.ndarray:
    """Gradient of a loss term with respect to embeddings in bfloat16."""
    own = share(embeddings, dim=1).bfloat16().requires_grad_()
    samples = torch.arange(embeddings.shape[1])
    changes: dict[str, Any] = {"dar": {"weight": 1.0}, "sec": {"weight": 1.0, "ramp": False}}
    facts = DatasetFacts(num_images=64, num_classes=3, median_size=20)
    spec = resolve(JobSpec.model_validate(tiny_spec(**changes)), facts)
    criterion = Criterion(
        spec.method.name,
        build_method(spec, 3),
        spec.active_regularizers(),
        spec.train.seed,
        torch.device("cpu"),
    )
    terms = criterion({"embeddings": own}, Step(0, 9, 3, samples, None, all_ranks()))
    (terms[loss] / (dist.get_world_size() if dist.is_initialized() else 1)).backward()
    return gradient(own).float().numpy()


@pytest.mark.parametrize("loss", ["loss_simclr", "loss_dar", "loss_sec"])
def test_half_precision_is_gathered_in_float32(pool: GlooPool, loss: str) -> None:
    """A summed backward in bfloat16 would round once per rank.

    It would be exact for 2 or 4 ranks with the same loss, whose shares are exact halves.
    """
    embeddings = np.random.default_rng(5).normal(size=(2, 12, 8))
    reference = half_gradient(loss, embeddings)
    gradient = np.concatenate(pool.call(3, half_gradient, loss, embeddings), axis=1)
    # Sums in another order sometimes round to the adjacent bfloat16 number.
    assert np.mean(gradient == reference) > 0.95
    np.testing.assert_allclose(gradient, reference, rtol=2**-7, atol=1e-6)


# --- losses over some ranks, or over none

LOSSES: dict[str, Callable[[Tensor, dist.ProcessGroup | None], Tensor]] = {
    "nt_xent": lambda z, group: nt_xent(z, 0.2, group),
    "hard_negative_loss": lambda z, group: hard_negative_loss(z, 0.2, 0.1, 1.0, group),
    "moco_v3_loss": lambda z, group: moco_v3_loss(z, z.flip(2), 0.2, group),
    "barlow_twins_loss": lambda z, group: barlow_twins_loss(z, 0.01, group),
    "vicreg_loss": lambda z, group: vicreg_loss(z, 25.0, 25.0, 1.0, group),
    # A value of its own on every rank: a mean over ranks is the mean of the global codes' squares.
    "sinkhorn": lambda z, group: sinkhorn(z.tanh(), 0.05, 3, group).square().mean(),
}


def losses_of(own: Tensor, group: dist.ProcessGroup | None) -> dict[str, tuple[float, np.ndarray]]:
    """Means of the losses over a group, with their gradients as in DDP."""
    results: dict[str, tuple[float, np.ndarray]] = {}
    for name, loss_of in LOSSES.items():
        leaf = own.clone().requires_grad_()
        loss = loss_of(leaf, group)
        if loss.requires_grad:  # codes have no gradient
            (loss / group_size(group)).backward()
        slope = torch.zeros_like(own) if leaf.grad is None else leaf.grad
        results[name] = (float(mean_over_ranks(loss, group)), slope.numpy())
    return results


def losses_of_pairs_and_rank_0(
    embeddings: np.ndarray,
) -> tuple[dict[str, tuple[float, np.ndarray]], dict[str, tuple[float, np.ndarray]] | None]:
    """Losses over the ranks {0, 2} or {1, 3}, and then those of rank 0 alone."""
    pairs: list[Any] = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    number, place = dist.get_rank() % 2, dist.get_rank() // 2
    half = torch.from_numpy(embeddings).chunk(2, dim=1)[number]
    together = losses_of(half.chunk(2, dim=1)[place], pairs[number])
    with pytest.raises(ValueError, match="group must contain this process"):
        nt_xent(half, 0.2, pairs[1 - number])
    # The other ranks take no part: no group means no communication.
    alone = losses_of(half[:, :3], None) if dist.get_rank() == 0 else None
    return together, alone


def test_losses_compare_only_samples_of_their_group(pool: GlooPool) -> None:
    embeddings = np.random.default_rng(7).normal(size=(2, 16, 6))
    results = pool.call(4, losses_of_pairs_and_rank_0, embeddings)
    for number, half in enumerate(np.split(embeddings, 2, axis=1)):
        pair = [results[number][0], results[number + 2][0]]
        for name, (value, slope) in losses_of(torch.from_numpy(half), None).items():
            assert [own[name][0] for own in pair] == pytest.approx([value, value], abs=1e-12)
            parts = [own[name][1] for own in pair]
            np.testing.assert_allclose(np.concatenate(parts, axis=1), slope, rtol=0, atol=1e-11)
    alone = results[0][1]
    assert alone is not None
    for name, (value, slope) in losses_of(torch.from_numpy(embeddings[:, :3]), None).items():
        assert alone[name][0] == value, name
        np.testing.assert_array_equal(alone[name][1], slope)


# --- whole steps and whole runs of every method


def one_step(
    spec: dict[str, Any], index: DatasetIndex, cache: Path, scratch: Path
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Loss terms and parameter gradients of the first step of a run."""
    this = open_trainer(ResolvedJobSpec.model_validate(spec), index, cache, scratch)
    if this.criterion.pseudo_labels is not None:
        # Assigned as if k-means had run: in the first epoch every image is a class of its own.
        this.criterion.pseudo_labels.labels = torch.arange(len(index)) % 3
    terms: dict[str, float] = {}
    gradients: dict[str, np.ndarray] = {}
    terms_of, before_update = this.gradients.criterion, this.method.before_update

    def recorded(*arguments: Any) -> dict[str, Tensor]:
        actual = terms_of(*arguments)
        terms.update(
            {name: float(mean_over_ranks(value, all_ranks())) for name, value in actual.items()}
        )
        return actual

    def copied(step: Step) -> None:
        for name, parameter in this.method.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None, name
                gradients[name] = parameter.grad.numpy().copy()
        before_update(step)

    this.gradients.criterion = recorded
    this.method.before_update = copied  # type: ignore[method-assign]
    try:
        this.method.train()
        this.step(next(this.loader.epoch(0)))
    finally:
        this.close()
    return terms, gradients


def method_spec(
    index: DatasetIndex,
    method: str,
    workers: int,
    *,
    stem: str = "standard",
    settings: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> dict[str, Any]:
    """A spec in float64, by default with the stem that takes a third of the small one's time."""
    spec = resolved(
        index,
        method={"name": method, **settings},
        backbone={"stem": stem},
        train={"precision": "fp64", "epochs": 2, "optimizer": {"name": "sgd", "lr": 0.05}},
        resources={"workers": workers},
        **changes,
    )
    return spec.model_dump(mode="json")


@pytest.mark.parametrize(("method", "terms", "ranks"), CASES)
def test_gradients_of_a_step_equal_those_of_one_process(
    pool: GlooPool,
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    method: str,
    terms: str,
    ranks: int,
) -> None:
    changes = (EVERY_METHOD | VARIANTS)[terms]
    alone, reference = one_step(
        method_spec(pictures, method, 1, **changes), pictures, cache, tmp_path
    )
    assert len(alone) == 1 + len(changes.keys() - {"settings"})
    largest = max(np.abs(gradient).max() for gradient in reference.values())
    assert largest > 1e-4
    spec = method_spec(pictures, method, ranks, **changes)
    for together, gradients in pool.call(ranks, one_step, spec, pictures, cache, tmp_path):
        assert together == pytest.approx(alone, abs=TOLERANCE)
        assert gradients.keys() == reference.keys()
        difference = max(np.abs(gradients[n] - reference[n]).max() for n in reference)
        assert difference < TOLERANCE


def whole_run(spec: dict[str, Any], index: DatasetIndex, cache: Path, kept: Path) -> dict[str, Any]:
    """All losses, evaluations and final weights of a run."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    reporter = Recorder(kept) if first else None
    validated = ResolvedJobSpec.model_validate(spec)
    with ExitStack() as stack:
        # The plotting code is the same for every method, and takes as long as the run itself; test_plots has it alone.
        if validated.method.name != DRAWN or not dist.is_initialized():
            stack.enter_context(patch.object(Validator, "publish_plots", lambda *_: None))
        assert run(validated, index, cache, reporter) == "succeeded"
    if reporter is None:
        return {}
    from dasl_core.train.serialization import load_state

    state = load_state(reporter.last_checkpoint)
    names = [name for name in reporter.points[0]["values"] if name.startswith("loss")]
    return {
        "losses": {name: reporter.curve(name) for name in names},
        "evaluations": reporter.evaluations,
        "weights": {name: value.numpy() for name, value in state["method"].items()},
        "constraint": float(state["criterion"]["sec"]["constraint.mean"]) if spec["sec"] else None,
        "epoch_losses": state["progress"]["losses"],
    }


@pytest.mark.parametrize("method", families_first(REGISTRY, (DRAWN,)))
def test_run_on_two_ranks_equals_run_on_one(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path, method: str
) -> None:
    changes = supported(method, dar={"weight": 0.1}, sec={"weight": 0.5, "momentum": 0.5})
    stem = "small" if method in SMALL_STEM else "standard"
    spec = method_spec(pictures, method, 1, stem=stem, **changes)
    one = whole_run(spec, pictures, cache, tmp_path / "1")
    spec = method_spec(pictures, method, 2, stem=stem, **changes)
    two = pool.call(2, whole_run, spec, pictures, cache, tmp_path / "2")[0]

    terms = [f"loss_{term}" for term in (method, *changes)]
    assert one["losses"].keys() == {*terms, "loss"}
    for name, curve in one["losses"].items():
        assert len(curve) == 6
        np.testing.assert_allclose(two["losses"][name], curve, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(two["epoch_losses"], one["epoch_losses"], rtol=0, atol=TOLERANCE)
    assert two["constraint"] == pytest.approx(one["constraint"], abs=TOLERANCE)
    assert two["weights"].keys() == one["weights"].keys()
    # Includes BatchNorm's running statistics, which are far from 1 for raw embeddings.
    for name, weight in one["weights"].items():
        np.testing.assert_allclose(two["weights"][name], weight, rtol=1e-11, atol=TOLERANCE)
    for (_, _, subject, ours), (_, _, _, theirs) in zip(
        one["evaluations"], two["evaluations"], strict=True
    ):
        for name in ours:
            assert theirs[name] == pytest.approx(ours[name], abs=1e-5), (subject, name)


def bf16_losses(spec: dict[str, Any], index: DatasetIndex, cache: Path, kept: Path) -> list[float]:
    losses: dict[str, list[float]] = whole_run(spec, index, cache, kept).get("losses", {})
    return losses.get("loss", [])


@pytest.mark.slow
def test_two_ranks_train_in_bfloat16(
    pool: GlooPool, pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(
        pictures,
        # see test_resume
        backbone={"stem": "small"},
        train={"precision": "bf16", "epochs": 1},
        dar={"weight": 0.1},
        resources={"workers": 2},
    ).model_dump(mode="json")
    losses, _ = pool.call(2, bf16_losses, spec, pictures, cache, tmp_path)
    assert len(losses) == 3
    assert np.isfinite(losses).all()
