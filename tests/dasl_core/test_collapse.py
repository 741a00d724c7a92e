"""The collapse alarm: real collapses of small networks, healthy runs, and each rule."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dasl_core.evaluate import effective_rank
from dasl_core.methods.simclr import nt_xent
from dasl_core.regularizers import difference_alignment
from dasl_core.train.collapse import GRACE, PATIENCE, Alarm, CollapseAlarm

Figures = dict[str, float]
WIDTH = 16
OUTPUTS = 64


# --- real trainings: points in clusters, views with noise, and a small network


def views_of(step: int, noise: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Two views (64, 8) of points around 16 centers, and the points' own numbers."""
    centres = torch.randn(16, 8, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(step)
    y = torch.randint(16, (64,), generator=generator)
    points = centres[y] + 0.3 * torch.randn(64, 8, generator=generator)
    first, second = (points + noise * torch.randn(64, 8, generator=generator) for _ in range(2))
    return first, second, torch.arange(64)


def network(outputs: int = WIDTH) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
    )


def embedding_figures(embeddings: Tensor) -> Figures:
    directions = F.normalize(embeddings.detach(), dim=1)
    return {
        "embedding_norm": embeddings.detach().norm(dim=1).mean().item(),
        "embedding_std": directions.std(dim=0).mean().item(),
        "embedding_dim": float(embeddings.shape[1]),
        "effective_rank": effective_rank(directions),
    }


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def train(
    loss: Loss, steps: int = 300, lr: float = 0.01, optimizer: type[Any] = torch.optim.Adam
) -> Iterator[Figures]:
    """Train embeddings and return the metrics of every fifth step."""
    net = network()
    updates = optimizer(net.parameters(), lr=lr)
    for step in range(steps):
        first, second, names = views_of(step)
        a, b = net(first), net(second)
        updates.zero_grad()
        loss(a, b, names).backward()
        updates.step()
        if step % 5 == 0:
            yield embedding_figures(torch.cat([a, b]))


def train_assignments(
    teacher_temperature: float, centred: bool, noise: float = 0.1, steps: int = 300
) -> Iterator[Figures]:
    """Train a minimal DINO: softmax outputs, a slow teacher, sharpening, with or without centering."""
    student, teacher = network(OUTPUTS), network(OUTPUTS)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.003)
    centre = torch.zeros(OUTPUTS)
    for step in range(steps):
        first, second, _ = views_of(step, noise)
        with torch.no_grad():
            logits = teacher(first)
            target = ((logits - centre) / teacher_temperature).softmax(dim=1)
            if centred:
                centre = 0.9 * centre + 0.1 * logits.mean(dim=0)
        embeddings = student[:-1](second)
        predicted = (student[-1](embeddings) / 0.1).log_softmax(dim=1)
        loss = -(target * predicted).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
                own.lerp_(other, 0.1)
        if step % 5 == 0:
            yield embedding_figures(embeddings) | {
                "loss_dino": loss.item(),
                "num_outputs": float(OUTPUTS),
                "output_entropy": torch.special.entr(target).sum(dim=1).mean().item(),
                "output_usage": torch.special.entr(target.mean(dim=0)).sum().item(),
            }


def watch(figures: Iterator[Figures], total: int = 60) -> tuple[CollapseAlarm, list[Alarm]]:
    alarm, raised = CollapseAlarm(), []
    for number, point in enumerate(figures):
        raised += alarm.observe(point, number / (total - 1))
    assert number == total - 1
    return alarm, raised


def simclr(a: Tensor, b: Tensor, names: Tensor) -> Tensor:
    return nt_xent(torch.stack([a, b]), 0.2)


def with_heavy_alignment(a: Tensor, b: Tensor, names: Tensor) -> Tensor:
    """SimCLR under an elementwise DAR far heavier than its loss."""
    both = torch.cat([a, b])
    generator = torch.Generator().manual_seed(int(both.detach().abs().sum() * 1000))
    return simclr(a, b, names) + 100 * difference_alignment(
        both, names.repeat(2), generator=generator
    )


def two_dimensions(a: Tensor, b: Tensor, names: Tensor) -> Tensor:
    """Agreement of views, kept from collapsing only by the variance of two coordinates."""
    both = torch.cat([a, b])
    alive = F.relu(1 - both[:, :2].std(dim=0)).sum() + both.mean(dim=0).square().sum()
    agreement = (a - b).square().sum(dim=1).mean()
    width: Tensor = both[:, 2:].norm(dim=1).mean()
    return agreement + alive + width


def with_mild_alignment(a: Tensor, b: Tensor, names: Tensor) -> Tensor:
    both = torch.cat([a, b])
    return simclr(a, b, names) + 0.003 * difference_alignment(both, names.repeat(2))


@pytest.mark.parametrize("loss", [simclr, with_mild_alignment])
def test_healthy_training_raises_no_alarm(loss: Loss) -> None:
    alarm, raised = watch(train(loss))
    assert (raised, alarm.active) == ([], [])


def test_heavy_alignment_is_constant_output() -> None:
    alarm, raised = watch(train(with_heavy_alignment))
    assert [one.cause for one in raised] == ["constant_output"]
    assert alarm.active == ["constant_output"]
    assert "dar.weight" in raised[0].message
    assert raised[0].metrics["share_of_even_spread"] < 0.1


def test_few_dimensions_are_dimensional_collapse() -> None:
    _, raised = watch(train(two_dimensions))
    assert [one.cause for one in raised] == ["dimensional_collapse"]
    assert raised[0].metrics["effective_rank"] < 3


def test_exploding_norms_are_norm_explosion() -> None:
    # The gradient of a cosine loss is orthogonal to the embedding: every step makes it longer.
    _, raised = watch(train(simclr, lr=1e4, optimizer=torch.optim.SGD))
    (one,) = [one for one in raised if one.cause == "norm_explosion"]
    assert one.metrics["embedding_norm"] > 1e4 * one.metrics["embedding_norm_at_start"]


def only(names: str, points: Iterator[Figures]) -> Iterator[Figures]:
    return ({name: point[name] for name in names.split()} for point in points)


def test_sharp_targets_without_center_are_constant_output() -> None:
    points = list(train_assignments(0.02, centred=False, noise=3.0))
    _, raised = watch(iter(points))
    assert [one.cause for one in raised] == ["constant_output"]
    assert raised[0].metrics["output_usage"] < 0.1
    # The layer before the head stays spread: without the usage, only the loss shows the collapse.
    assert raised[0].metrics["share_of_even_spread"] > 0.2
    _, raised = watch(only("loss_dino num_outputs", iter(points)))
    assert [one.cause for one in raised] == ["constant_output"]


def test_center_without_sharp_targets_is_uniform_output() -> None:
    points = list(train_assignments(1.0, centred=True))
    for names in ("output_entropy output_usage num_outputs", "loss_dino num_outputs"):
        _, raised = watch(only(names, iter(points)))
        assert [one.cause for one in raised] == ["uniform_output"]
        assert raised[0].metrics["ln_outputs"] == pytest.approx(math.log(OUTPUTS))


def test_healthy_assignments_with_low_loss_raise_no_alarm() -> None:
    points = list(train_assignments(0.04, centred=True))
    assert points[-1]["loss_dino"] < 0.02 * math.log(OUTPUTS)
    assert watch(iter(points))[1] == []
    without_usage = only("loss_dino num_outputs embedding_std embedding_dim", iter(points))
    assert watch(without_usage)[1] == []


# --- the rules


def spread(share: float, dimensions: int = 64) -> Figures:
    return {"embedding_std": share / math.sqrt(dimensions), "embedding_dim": float(dimensions)}


def causes(alarm: CollapseAlarm, figures: Figures, times: int, progress: float = 0.5) -> list[str]:
    return [one.cause for _ in range(times) for one in alarm.observe(figures, progress)]


def test_alarm_needs_persistence_and_is_raised_once() -> None:
    alarm, patience = CollapseAlarm(), PATIENCE["constant_output"]
    for _ in range(3):  # a good report in between resets the count
        assert causes(alarm, spread(0.05), patience - 1) == []
        assert causes(alarm, spread(0.9), 1) == []
    assert causes(alarm, spread(0.05), 100) == ["constant_output"]


def test_alarm_is_raised_again_only_after_recovery() -> None:
    alarm, patience = CollapseAlarm(), PATIENCE["constant_output"]
    assert causes(alarm, spread(0.05), patience) == ["constant_output"]
    # Neither a value between bad and good nor a short improvement is a recovery.
    assert causes(alarm, spread(0.15), 50) == []
    assert causes(alarm, spread(0.9), patience - 1) == []
    assert alarm.active == ["constant_output"]
    assert causes(alarm, spread(0.05), 50) == []
    assert causes(alarm, spread(0.9), patience) == []
    assert alarm.active == []
    assert causes(alarm, spread(0.05), patience) == ["constant_output"]


def test_collapsed_start_has_grace_period() -> None:
    uniform = {"loss_dino": math.log(1024), "num_outputs": 1024.0}
    for figures, cause in ((spread(0.02), "constant_output"), (uniform, "uniform_output")):
        alarm = CollapseAlarm()
        assert causes(alarm, figures, 100, progress=0.9 * GRACE) == []
        assert causes(alarm, figures, 100, progress=GRACE) == [cause]


def test_healthy_run_has_no_grace_period() -> None:
    alarm = CollapseAlarm()
    assert causes(alarm, spread(0.9), 1, progress=0.01) == []
    assert causes(alarm, spread(0.02), 10, progress=0.02) == ["constant_output"]


def test_low_loss_with_spread_embeddings_raises_no_alarm() -> None:
    met = {"loss_dino": 0.001, "num_outputs": 1024.0}
    assert causes(CollapseAlarm(), met, 20) == ["constant_output"]
    assert causes(CollapseAlarm(), met | spread(0.9), 20) == []
    used = met | spread(0.9) | {"output_usage": 0.9 * math.log(1024), "output_entropy": 0.01}
    assert causes(CollapseAlarm(), used, 20) == []
    unused = used | {"output_usage": 0.01}
    assert causes(CollapseAlarm(), unused, 20) == ["constant_output"]


def test_high_loss_with_sharp_targets_is_not_uniform_output() -> None:
    figures = {"loss_dino": 12.0, "num_outputs": 1024.0, "output_entropy": 2.0}
    assert causes(CollapseAlarm(), figures, 20) == []
    assert causes(CollapseAlarm(), {"loss_swav": 3.0445, "num_outputs": 21.0}, 20) == [
        "uniform_output"
    ]
    assert causes(CollapseAlarm(), {"loss_swav": 3.0054, "num_outputs": 21.0}, 20) == []
    assert causes(CollapseAlarm(), {"loss_simclr": 3.0445, "num_outputs": 21.0}, 20) == []


def test_rank_is_judged_by_its_fall_and_number_of_classes() -> None:
    def rank(value: float, **more: float) -> Figures:
        return {"effective_rank": value, "embedding_dim": 512.0} | more

    fallen = CollapseAlarm()
    assert causes(fallen, rank(200), 5) == []
    assert causes(fallen, rank(60), 5) == []  # less, but more than a quarter
    assert causes(fallen, rank(40), 5) == ["dimensional_collapse"]
    always_low = CollapseAlarm()
    assert causes(always_low, rank(12), 20) == []
    assert causes(always_low, rank(2), 5) == ["dimensional_collapse"]
    from_the_start = CollapseAlarm()  # as with many untrained networks: the rank has not fallen
    assert causes(from_the_start, rank(2.3), 1) == []
    assert causes(from_the_start, rank(1.3), 20) == []
    assert causes(from_the_start, rank(1.1), 5) == ["dimensional_collapse"]
    supervised = CollapseAlarm()  # ten classes become ten points, as intended
    assert causes(supervised, rank(100, num_classes=10), 5) == []
    assert causes(supervised, rank(8.5, num_classes=10), 5) == []
    assert causes(supervised, rank(1.1, num_classes=10), 5) == ["dimensional_collapse"]
    assert causes(CollapseAlarm(), {"effective_rank": 1.9, "embedding_dim": 2.0}, 20) == []


def test_norms_may_grow_only_at_start() -> None:
    def norm(value: float) -> Figures:
        return {"embedding_norm": value}

    alarm = CollapseAlarm()
    assert causes(alarm, norm(0.05), 5, progress=0.0) == []
    assert causes(alarm, norm(30), 20, progress=0.05) == []
    assert causes(alarm, norm(200), 20, progress=0.5) == []
    assert causes(alarm, norm(4000), 20, progress=0.6) == ["norm_explosion"]
    early = CollapseAlarm()
    assert causes(early, norm(2), 5, progress=0.0) == []
    (alarm_,) = [one for _ in range(20) for one in early.observe(norm(math.inf), 0.05)]
    assert alarm_.cause == "norm_explosion"
    assert json.dumps(alarm_.metrics, allow_nan=False)  # events must be strict JSON
    late = CollapseAlarm()  # started in mid-training: it has no earlier values to compare with
    assert causes(late, norm(1e5), 20, progress=0.5) == []


def test_missing_or_nan_metrics_are_not_judged() -> None:
    alarm = CollapseAlarm()
    assert causes(alarm, {}, 20) == []
    assert causes(alarm, {"loss": 1.0, "embedding_std": 0.0}, 20) == []
    assert causes(alarm, dict.fromkeys(spread(1) | {"embedding_norm": 1.0}, math.nan), 20) == []


def test_alarm_state_is_json_and_restores_counts() -> None:
    points = [spread(0.9) | {"embedding_norm": 3.0, "effective_rank": 50.0}] * 3
    points += [spread(0.02) | {"embedding_norm": 1e4, "effective_rank": 4.0}] * 12
    straight, through = CollapseAlarm(), CollapseAlarm()
    expected, actual = [], []
    for number, point in enumerate(points):
        expected.append(straight.observe(point, number / 20))
        resumed = CollapseAlarm()
        resumed.load_state_dict(json.loads(json.dumps(through.state_dict(), allow_nan=False)))
        actual.append(resumed.observe(point, number / 20))
        through = resumed
    assert actual == expected
    assert any(expected)
    assert through.active == straight.active
