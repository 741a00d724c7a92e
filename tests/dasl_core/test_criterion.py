"""The training objective: every setting of DAR and SEC affects the loss, with its scheduled weight."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from dasl_core.data.index import DatasetIndex
from dasl_core.methods import Outputs, Step, build_method
from dasl_core.regularizers import (
    GradientShare,
    difference_alignment,
    gradient_shares,
    koleo_loss,
    negative_margin_loss,
    sigreg_loss,
    uniformity_loss,
    visreg_loss,
)
from dasl_core.seeds import stream
from dasl_core.spec import (
    DAR,
    REGULARIZERS,
    SEC,
    DatasetFacts,
    JobSpec,
    ResolvedClusters,
    ResolvedDAR,
    resolve,
)
from dasl_core.train.criterion import Criterion
from dasl_core.train.pseudo_labels import PseudoLabels
from tests.support.training_world import Recorder, open_trainer, resolved, tiny_spec

CPU = torch.device("cpu")
WEIGHT = 0.37
SEED = 3  # of `training_world.tiny_spec`
# DAR's settings that `difference_alignment` takes under the same names, with their defaults.
USUAL: dict[str, Any] = {
    "norm": "l1",
    "difference": "distance",
    "estimator": "full",
    "reduction": "mean",
    "normalize": True,
}
OTHERS = [
    (name, value)
    for name, usual in USUAL.items()
    for value in (get_args(ResolvedDAR.model_fields[name].annotation) or (True, False))
    if value != usual
]
SAMPLES = torch.tensor([7, 2, 11, 4, 0, 9])
# One class has so many samples that a chain cannot hold all views.
CLASSES = torch.tensor([0, 1, 0, 0, 0, 2])


def criterion(pseudo_labels: PseudoLabels | None = None, **changes: Any) -> Criterion:
    facts = DatasetFacts(num_images=27, num_classes=3, median_size=20)
    spec = resolve(JobSpec.model_validate(tiny_spec(**changes)), facts)
    method = build_method(spec, 3).double()
    return Criterion(
        spec.method.name, method, spec.active_regularizers(), spec.train.seed, CPU, pseudo_labels
    )


def outputs(seed: int = 0, scale: float = 1.0) -> Outputs:
    """Outputs for two views of `SAMPLES`, of very different norms, including those of SwAV."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(2, 6, 8, generator=generator, dtype=torch.float64)
    norms = scale * torch.linspace(0.5, 4, 12, dtype=torch.float64).view(2, 6, 1)
    return {
        "embeddings": (embeddings * norms).requires_grad_(),
        "scores": torch.rand(4, 6, 12, generator=generator, dtype=torch.float64),
        "assignments": torch.tensor([[5, 5, 8, 1, 5, 8]]),
    }


def at(index: int, total: int = 9) -> Step:
    return Step(index, total, 3, SAMPLES, CLASSES)


def alignment(
    embeddings: Tensor, labels: Tensor, index: int = 4, seed: int = SEED, **changes: Any
) -> Tensor:
    """Compute unweighted DAR of the views with the regularizer itself; `labels`: (B,) of the images."""
    return difference_alignment(
        embeddings.flatten(0, 1),
        torch.cat([labels] * len(embeddings)),
        generator=stream(seed, "dar", index),
        **(USUAL | changes),
    )


def assert_alike(term: Tensor, expected: Tensor, embeddings: Tensor) -> None:
    """Check that two loss terms have the same value and the same gradient."""
    torch.testing.assert_close(term, expected, rtol=1e-12, atol=0)
    ours, theirs = (torch.autograd.grad(each, embeddings)[0] for each in (term, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


# --- DAR


def test_every_regularizer_setting_has_a_test() -> None:
    """Require a test for each new setting that it changes the loss."""
    assert DAR.model_fields.keys() == {*USUAL, "weight", "share", "labels", "clusters", "schedule"}
    assert SEC.model_fields.keys() == {"weight", "share", "target", "momentum", "ramp"}
    defaults = {name: DAR.model_fields[name].default for name in USUAL}
    assert defaults == USUAL | {"estimator": "auto"}
    assert {name for name, _ in OTHERS} == USUAL.keys()


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_dar_setting_changes_loss(name: str, value: Any) -> None:
    output = outputs()
    embeddings = output["embeddings"]
    # Distances are single numbers, for which all norms agree.
    beside: dict[str, Any] = {"difference": "abs"} if name == "norm" else {}
    before = criterion(dar=USUAL | {"weight": WEIGHT, **beside})(output, at(4))
    assert before.keys() == {"loss_simclr", "loss_dar"}
    assert_alike(before["loss_dar"], WEIGHT * alignment(embeddings, SAMPLES, **beside), embeddings)
    changed = beside | {name: value}
    term = criterion(dar=USUAL | {"weight": WEIGHT, **changed})(output, at(4))["loss_dar"]
    assert term.item() != pytest.approx(before["loss_dar"].item(), rel=1e-3)
    assert_alike(term, WEIGHT * alignment(embeddings, SAMPLES, **changed), embeddings)


@pytest.mark.parametrize("kind", ["instance", "class", "kmeans", "prototypes"])
@pytest.mark.parametrize("estimator", ["chain", "full"])
def test_dar_labels_select_pairs(kind: str, estimator: str) -> None:
    output = outputs()
    dar: dict[str, Any] = {"weight": WEIGHT, "estimator": estimator}
    if kind in ("instance", "class"):
        this = criterion(dar=dar | {"labels": kind})
        labels = SAMPLES if kind == "instance" else CLASSES
    elif kind == "kmeans":
        clusters = PseudoLabels(
            ResolvedClusters(source="kmeans", k=3), torch.arange(27), steps=1, share=6, seed=SEED
        )
        clusters.observe(output["embeddings"], SAMPLES)
        clusters.end_epoch(1, None)
        labels = clusters.labels[SAMPLES]
        assert set(labels.tolist()) == {0, 1, 2}
        this = criterion(
            clusters, dar=dar | {"labels": "cluster", "clusters": {"source": kind, "k": 3}}
        )
    else:
        this = criterion(method={"name": "swav"}, dar=dar | {"labels": "cluster"})
        labels = output["assignments"][0]
    term = this(output, at(4))["loss_dar"]
    expected = {
        name: WEIGHT * alignment(output["embeddings"], values, estimator=estimator)
        for name, values in {"wanted": labels, "instance": SAMPLES}.items()
    }
    assert_alike(term, expected["wanted"], output["embeddings"])
    if kind != "instance":
        assert term.item() != pytest.approx(expected["instance"].item(), rel=1e-3)


def test_dar_chain_depends_on_seed_and_step() -> None:
    output = outputs()
    terms: list[float] = []
    for seed, index in ((3, 4), (3, 5), (8, 4)):
        chain = {"weight": WEIGHT, "estimator": "chain"}
        this = criterion(dar=chain, train={"seed": seed})
        torch.manual_seed(len(terms))  # the global stream must have no effect
        terms.append(this(output, at(index))["loss_dar"].item())
        expected = WEIGHT * alignment(output["embeddings"], SAMPLES, index, seed, estimator="chain")
        assert terms[-1] == pytest.approx(expected.item(), rel=1e-12)
    assert len({round(term, 6) for term in terms}) == 3


@pytest.mark.parametrize("labels", ["instance", "class"])
@pytest.mark.parametrize("estimator", get_args(ResolvedDAR.model_fields["estimator"].annotation))
def test_dar_columns_are_counted(labels: str, estimator: str) -> None:
    this = criterion(dar={"weight": WEIGHT, "labels": labels, "estimator": estimator})
    assert this.metrics() == {}
    this(outputs(), at(4))
    # Links of the longest chain through the 12 views, or all pairs of different labels.
    links, pairs = (11, 60) if labels == "instance" else (8, 36)
    columns = {name: float(value) for name, value in this.metrics().items()}
    assert columns == {"dar_columns": pairs if estimator == "full" else links}


# --- SEC


def naive_constraint(batches: list[Tensor], target: str, rho: float) -> list[float]:
    """Compute unweighted SEC of successive batches (V, B, h), one norm at a time."""
    terms: list[float] = []
    mu: float | None = None
    for batch in batches:
        norms = [math.sqrt(sum(x * x for x in row)) for row in batch.flatten(0, 1).tolist()]
        mean = sum(norms) / len(norms)
        mu = mean if mu is None else (1 - rho) * mu + rho * mean
        towards = 0.0 if target == "zero" else mu
        terms.append(sum((norm - towards) ** 2 for norm in norms) / len(norms))
    return terms


@pytest.mark.parametrize(("target", "rho"), [("mean", 1.0), ("mean", 0.25), ("zero", 1.0)])
def test_sec_target_and_momentum_change_loss(target: str, rho: float) -> None:
    batches = [outputs(0), outputs(1, scale=3.0)]
    embeddings = [batch["embeddings"].detach() for batch in batches]
    sec = {"weight": WEIGHT, "target": target, "momentum": rho, "ramp": False}
    this = criterion(sec=sec)
    step_terms = [this(batch, at(4 + number)) for number, batch in enumerate(batches)]
    assert all(terms.keys() == {"loss_simclr", "loss_sec"} for terms in step_terms)
    terms = [each["loss_sec"].item() for each in step_terms]
    expected = naive_constraint(embeddings, target, rho)
    assert terms == pytest.approx([WEIGHT * value for value in expected], rel=1e-12)
    for other in {("mean", 1.0), ("mean", 0.25), ("zero", 1.0)} - {(target, rho)}:
        another = naive_constraint(embeddings, *other)[1]
        assert terms[1] != pytest.approx(WEIGHT * another, rel=1e-3)


def test_sec_mean_is_saved_and_restored() -> None:
    sec = {"weight": WEIGHT, "momentum": 0.25, "ramp": False}
    whole, resumed = criterion(sec=sec), criterion(sec=sec)
    whole(outputs(0), at(4))
    resumed.load_state_dict(deepcopy(whole.state_dict()))
    kept = [buffer.clone() for buffer in whole.buffers()]
    after = [each(outputs(1, 3.0), at(5))["loss_sec"] for each in (whole, resumed)]
    assert torch.equal(*after)
    # A skipped step restores the mean.
    for buffer, value in zip(whole.buffers(), kept, strict=True):
        buffer.copy_(value)
    assert torch.equal(whole(outputs(1, 3.0), at(5))["loss_sec"], after[0])
    assert not torch.equal(criterion(sec=sec)(outputs(1, 3.0), at(5))["loss_sec"], after[0])


# --- weights over a run


def share(schedule: str, index: int, total: int) -> float:
    """The share of the full weight at a step: a growing one runs from 0 at the first to 1 at the last."""
    progress = index / (total - 1)
    return {"constant": 1.0, "linear": progress, "cosine": (1 - math.cos(math.pi * progress)) / 2}[
        schedule
    ]


@pytest.mark.parametrize(
    ("schedule", "ramp"), [("constant", False), ("linear", True), ("cosine", True)]
)
def test_weight_schedules_span_whole_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, schedule: str, ramp: bool
) -> None:
    """Compare a run's reported terms with the regularizers of its embeddings."""
    spec = resolved(
        pictures,
        dar={"weight": WEIGHT, "schedule": schedule},
        sec={"weight": WEIGHT, "ramp": ramp},
        train={"epochs": 2, "precision": "fp64"},
    )
    reporter = Recorder(tmp_path / "kept")
    this = open_trainer(spec, pictures, cache, tmp_path, reporter)
    seen_embeddings: list[Tensor] = []

    def keep(method: torch.nn.Module, _: Any, output: Outputs) -> None:
        if method.training:  # not for a metric
            seen_embeddings.append(output["embeddings"].detach())

    this.method.register_forward_hook(keep)
    samples = []
    try:
        for epoch in range(2):
            for batch in this.loader.epoch(epoch):
                samples.append(batch.indices)
                this.step(batch)
    finally:
        this.close()
    total = len(samples)
    assert total == len(seen_embeddings) == this.run.length.total_steps == 6
    shares = [share(schedule, index, total) for index in range(total)]
    assert (shares[0], shares[-1]) == (float(schedule == "constant"), 1)
    raw = [alignment(seen_embeddings[i], samples[i], i).item() for i in range(total)]
    assert all(value > 0 for value in raw)
    expected = [WEIGHT * factor * value for factor, value in zip(shares, raw, strict=True)]
    assert reporter.curve("loss_dar") == pytest.approx(expected, rel=1e-10)
    ramped = [index / (total - 1) if ramp else 1.0 for index in range(total)]
    raw = naive_constraint(seen_embeddings, "mean", 1.0)
    expected = [WEIGHT * factor * value for factor, value in zip(ramped, raw, strict=True)]
    assert reporter.curve("loss_sec") == pytest.approx(expected, rel=1e-9)


# --- other regularizers


def directions(index: int) -> torch.Generator:
    return stream(SEED, "rivals", index)


IDS, CLASS_IDS = SAMPLES.repeat(2), CLASSES.repeat(2)
OTHER_REGULARIZERS: list[tuple[str, dict[str, Any], Callable[[Tensor], Tensor]]] = [
    ("uniformity", {}, lambda x: uniformity_loss(x.flatten(0, 1), IDS)),
    ("uniformity", {"t": 3.0}, lambda x: uniformity_loss(x.flatten(0, 1), IDS, 3.0)),
    ("koleo", {"labels": "class"}, lambda x: koleo_loss(x.flatten(0, 1), CLASS_IDS)),
    ("negative_margin", {"margin": 1.1}, lambda x: negative_margin_loss(x.flatten(0, 1), IDS, 1.1)),
    ("sigreg", {}, lambda x: sigreg_loss(x, generator=directions(4))),
    ("visreg", {"slices": 9}, lambda x: visreg_loss(x, slices=9, generator=directions(4))),
]


@pytest.mark.parametrize(("name", "settings", "term"), OTHER_REGULARIZERS)
def test_regularizer_is_added_with_its_weight_and_settings(
    name: str, settings: dict[str, Any], term: Callable[[Tensor], Tensor]
) -> None:
    this = criterion(regularizers={name: {"weight": WEIGHT} | settings})
    output = outputs()
    terms = this(output, at(4))
    assert terms.keys() == {"loss_simclr", f"loss_{name}"}
    torch.testing.assert_close(terms[f"loss_{name}"], WEIGHT * term(output["embeddings"]))
    assert not this.is_mean


def test_all_regularizers_are_added_to_dar_and_sec() -> None:
    others = {name: {"weight": 1} for name in REGULARIZERS.keys() - {"dar", "sec", "uniformity"}}
    this = criterion(dar={}, sec={}, regularizers=others | {"uniformity": {"weight": 0}})
    names = ["simclr", "dar", "sec", *sorted(others)]
    assert list(this(outputs(), at(4))) == [f"loss_{name}" for name in names]


# --- gradient shares


def norms_at(output: Outputs, index: int) -> tuple[Tensor, Tensor]:
    """Gradients of SimCLR's loss and of unweighted DAR at the embeddings."""
    loss = criterion()(output, at(index))["loss_simclr"]
    term = alignment(output["embeddings"], SAMPLES, index)
    first, second = (torch.autograd.grad(each, output["embeddings"])[0] for each in (loss, term))
    return first, second


def measured(this: Criterion, output: Outputs, index: int) -> dict[str, Tensor]:
    """Terms of a step whose shares are measured at the embeddings; epochs have 3 steps."""
    return this(output, at(index, total=200), [output["embeddings"]])


def test_weight_by_share_is_measured_in_100_steps_and_then_constant() -> None:
    this = criterion(dar={"share": 0.25})
    of_loss = of_term = 0.0
    for index in (3, 12, 102, 103, 150):
        output = outputs(index)
        first, second = norms_at(output, index)
        if index < 103:
            of_loss += first.norm().item()
            of_term += second.norm().item()
        weight = 0.25 * of_loss / of_term
        term = measured(this, output, index)["loss_dar"]
        expected = weight * alignment(output["embeddings"], SAMPLES, index)
        assert_alike(term, expected, output["embeddings"])
        metrics = this.metrics()
        assert metrics["weight_dar"].item() == pytest.approx(weight, rel=1e-12)
        share = weight * second.norm() / first.norm()
        assert metrics["share_dar"].item() == pytest.approx(share.item(), rel=1e-12)
        cosine = torch.cosine_similarity(first.flatten(), second.flatten(), dim=0)
        assert metrics["share_cosine_dar"].item() == pytest.approx(cosine.item(), rel=1e-10)


def test_weight_by_share_is_saved_and_restored() -> None:
    whole, resumed = criterion(dar={}), criterion(dar={})
    measured(whole, outputs(0), 0)
    resumed.load_state_dict(deepcopy(whole.state_dict()))
    terms = [measured(each, outputs(1), 10)["loss_dar"] for each in (whole, resumed)]
    assert torch.equal(*terms)
    assert not torch.equal(measured(criterion(dar={}), outputs(1), 10)["loss_dar"], terms[0])


def test_term_by_share_is_zero_before_a_measurement() -> None:
    terms = criterion(dar={}, sec={})(outputs(), at(0))
    assert (terms["loss_dar"].item(), terms["loss_sec"].item()) == (0, 0)


def test_step_without_finite_gradient_is_not_measured() -> None:
    this = criterion(dar={})
    broken = outputs()
    with torch.no_grad():
        broken["embeddings"][0, 0] = math.nan
    measured(this, broken, 0)
    assert measured(this, outputs(1), 10)["loss_dar"].item() > 0
    assert int(this.regularizers["dar"].window_end) == 110


def test_loss_without_a_gradient_has_no_shares() -> None:
    features = torch.ones(3, 2, requires_grad=True)
    shares = gradient_shares(features.sum() * 0, {"term": features.square().sum()}, [features])
    assert (shares["term"].share.item(), shares["term"].cosine.item()) == (0, 0)
    assert features.grad is None


def test_term_that_overflows_in_float16_is_scaled_less() -> None:
    features = torch.ones(3, 2, requires_grad=True)
    half = features.half()
    loss, term = half.float().sum() * 1e-3, half.float().square().sum() * 1e3
    shares = gradient_shares(loss, {"term": term}, [half], scale=lambda value: value * 65536)
    exact = gradient_shares(loss, {"term": term}, [features])
    assert shares["term"].share.item() == pytest.approx(exact["term"].share.item(), rel=1e-3)


def test_measurement_waits_for_the_terms_gradient_and_weights_are_bounded() -> None:
    regularizer = criterion(dar={}).regularizers["dar"]

    def add(term: float, step: int) -> None:
        norms = [torch.tensor(value, dtype=torch.float64) for value in (1.0, term, 0.0)]
        regularizer.add_measurement(GradientShare(*norms), step, 100)

    add(0.0, 0)
    assert int(regularizer.window_end) == -1
    add(1e-12, 200)
    assert regularizer.weight_for_share(0.1).item() == 1e6


def test_share_that_was_never_measured_is_reported_at_the_end() -> None:
    this = criterion(dar={})
    assert this.share_warnings(8, 10, this.share_measurements()) == []
    ((message, _),) = this.share_warnings(9, 10, this.share_measurements())
    assert message.startswith("dar.share: no step had a finite gradient")


def test_share_of_a_ramp_is_reached_at_its_end() -> None:
    this = criterion(sec={"share": 0.5, "ramp": True})
    for index, ramp in ((0, 0.0), (199, 1.0)):
        output = outputs()
        terms = measured(this, output, index)
        gradients = [torch.autograd.grad(t, output["embeddings"])[0] for t in terms.values()]
        assert (gradients[1].norm() / gradients[0].norm()).item() == pytest.approx(0.5 * ramp)


@pytest.mark.parametrize(
    ("dar", "expected"),
    [
        ({"weight": 1e-3}, "hardly changes the training. Set dar.share: 0.1"),
        ({"weight": 1e3}, "outweighs the training"),
        ({"share": 0.9}, None),
    ],
)
def test_unusual_share_of_a_given_weight_is_reported_once(
    dar: dict[str, float], expected: str | None
) -> None:
    this = criterion(dar=dar)
    measured(this, outputs(), 0)
    assert this.share_warnings(9, 200, this.share_measurements()) == []
    together = this.share_measurements()  # of a report that arrives with the one before
    warnings = this.share_warnings(99, 200, this.share_measurements())
    assert this.share_warnings(100, 200, together) == []
    assert this.share_warnings(109, 200, this.share_measurements()) == []
    if expected is None:
        assert not warnings
    else:
        ((message, data),) = warnings
        assert expected in message
        assert message.startswith("dar.weight: at ")
        assert data["weight"] == dar["weight"]
    # At the end of a shorter run.
    other = criterion(dar=dar)
    measured(other, outputs(), 0)
    assert other.share_warnings(5, 6, other.share_measurements()) == warnings
