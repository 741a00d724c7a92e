"""Steps whose outcome the device decides, and views that are made ahead: both on the CPU."""

from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from benchmarks import own_run
from dasl_core.data.index import DatasetIndex
from dasl_core.data.loader import Batch
from dasl_core.data.views import rendering
from dasl_core.models.ema import Teacher
from dasl_core.spec import METHODS, REGULARIZERS, Clip
from dasl_core.tensors import to_device
from dasl_core.train.build import RunFiles, build_trainer, open_run
from dasl_core.train.collapse import Alarm, CollapseAlarm, CollapsedError
from dasl_core.train.input_bound import InputWatch, Reading
from dasl_core.train.outcomes import Outcomes
from dasl_core.train.prefetch import ViewPrefetcher
from dasl_core.train.progress import Progress, RunLength
from dasl_core.train.reporter import NullReporter
from dasl_core.train.step_metrics import StepMetrics
from dasl_core.train.timing import StepTimer
from dasl_core.train.update import Updater, restore_unless
from tests.support.device_waits import DeviceWaits
from tests.support.training_world import (
    Recorder,
    families_first,
    open_trainer,
    resolved,
    supported,
)

CPU = torch.device("cpu")
BAD_STEPS = {0: float("nan"), 3: float("inf"), 4: float("nan")}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=0.1, fused=True),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.1, fused=True),
    "lars": lambda m: create_optimizer_v2(m, opt="lars", lr=0.1, weight_decay=0.1, momentum=0.9),
}


def trained(name: str, *, deferred: bool) -> list[Tensor]:
    """Train a network with BatchNorm, with NaN or infinite images in some steps."""
    torch.manual_seed(0)
    # Without a bias whose gradient BatchNorm makes 0: Adam would amplify its rounding errors.
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2))
    teacher = Teacher(model[:2], model[2:])
    optimizer = OPTIMIZERS[name](model)
    buffers = [*model.buffers(), *teacher.buffers()]
    updater = Updater(optimizer, Clip(norm=1.0), buffers, CPU, scaled=False, deferred=deferred)
    for step in range(7):
        updater.snapshot_buffers()
        images = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        images[0, 0] = BAD_STEPS.get(step, images[0, 0])
        target = teacher(images)
        (model(images) - target - 1).square().mean().backward()
        _, updated = updater.apply()
        assert bool(updated) == (step not in BAD_STEPS)
        where = updated if isinstance(updated, Tensor) else None
        if updated is not False:
            teacher.update(model[:2], model[2:], momentum=0.9, where=where)
    return [*model.state_dict().values(), *teacher.state_dict().values()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_deferred_updates_equal_immediate_ones(name: str) -> None:
    torch.testing.assert_close(trained(name, deferred=True), trained(name, deferred=False))


@pytest.mark.parametrize("updated", [True, False])
def test_restore_unless_is_exact(updated: bool) -> None:
    before = [torch.tensor([-2.5, 3.0]), torch.tensor(False), torch.tensor(2**62)]
    now = [torch.tensor([float("nan"), 1.0]), torch.tensor(True), torch.tensor(-5)]
    expected = [tensor.clone() for tensor in (now if updated else before)]
    restore_unless(torch.tensor(updated), now, before)
    torch.testing.assert_close(now, expected, rtol=0, atol=0, equal_nan=True)


def test_outcomes_are_known_in_order_and_late() -> None:
    outcomes, seen = Outcomes(2), []
    for step in range(4):
        outcomes.record(step, torch.arange(2), torch.tensor(step != 1), overflowed=False)
        seen += [(step, o.step, o.updated, o.age) for o in outcomes.take_due(wait=False)]
    assert seen == [(2, 0, True, 2), (3, 1, False, 2)]
    assert [(o.step, o.age) for o in outcomes.take_due(wait=True)] == [(2, 1), (3, 0)]


class _Maker:
    """Makes views that name their step; fails for step 2."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def make(self, batch: Batch, step: int) -> list[Tensor]:
        self.made.append(step)
        if step == 2:
            raise RuntimeError("no view of step 2")
        return [torch.full((2,), step)]


@pytest.mark.parametrize("ahead", [False, True])
def test_views_and_errors_belong_to_their_steps(ahead: bool) -> None:
    batches = [
        Batch(torch.zeros(2, 3, 4, 4), torch.ones(2, 2), torch.arange(2), step) for step in range(4)
    ]
    maker = _Maker()
    prefetcher = ViewPrefetcher(maker, CPU, StepTimer(CPU), ahead=ahead)  # type: ignore[arg-type]
    results: list[int | str] = []
    for step, batch in enumerate(prefetcher.batches(batches, 0)):
        assert maker.made == list(range(min(step + 2, 4) if ahead else step))
        try:
            results.append(int(prefetcher.views(batch, step)[0][0]))
        except RuntimeError as error:
            results.append(str(error))
    assert results == [0, 1, "no view of step 2", 3]


# --- what the host reads

# The waits of losses of pytorch_metric_learning, which chooses pairs on the host.
WAITS = {"multi_similarity": 5, "npair": 4, "proxy_anchor": 5}
# What is beside the method in its step.
OTHER_REGULARIZERS = [name for name, config in REGULARIZERS.items() if not config.top_level]
BESIDE: dict[str, dict[str, Any]] = {
    "byol": {"regularizers": {name: {"weight": 0.1} for name in OTHER_REGULARIZERS}},
    "simclr": {"dar": {}, "sec": {}},
    "swav": {"method": {"queue_length": 64, "queue_start_epoch": 0}},
    "ibot": {"train": {"clip": {"norm": 1.0, "each": True}}},
}


@pytest.mark.parametrize("name", METHODS)
def test_no_step_waits_for_the_device(
    name: str, pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "render_on_cpu", rendering.render_batch)  # as on a GPU
    beside = BESIDE.get(name, {})
    method = {"name": name} | beside.get("method", {})
    changes = beside | {"method": method, "evaluate": {"holdout": None}}
    spec = resolved(pictures, **changes)
    trainer = open_trainer(spec, pictures, cache, tmp_path)
    # The step reports, and measures its update and the shares of the regularizers.
    for measured in ("is_due", "is_probed"):
        monkeypatch.setattr(trainer.metrics, measured, lambda step: step == 1)
    updater = trainer.updater
    updater.deferred, trainer.outcomes.in_flight = True, 2
    for group in updater.optimizer.param_groups:
        if "fused" in group:
            group["fused"] = True
    with closing(trainer), closing(own_run.batches(trainer, 3)) as batches:
        trainer.step(next(batches))
        batch = next(batches)
        state = [value for each in updater.optimizer.state.values() for value in each.values()]
        waits = DeviceWaits(
            [*trainer.method.state_dict().values(), *trainer.criterion.buffers(), *state]
        )
        with waits:
            trainer.step(batch)
    assert len(waits.found) == WAITS.get(name, 0), waits.found


def test_late_reports_tell_what_immediate_ones_tell(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    """With reports, entries of the chain and a checkpoint within steps whose reports are held."""
    recorders = []
    for in_flight in (0, 2):
        recorder = Recorder(tmp_path / str(in_flight))
        train = {"batch_size": 2, "epochs": 2, "collapse": "warn"}
        spec = resolved(pictures, train=train, dar={"weight": 1e6}, evaluate={"holdout": None})
        trainer = open_trainer(spec, pictures, cache, tmp_path, recorder)
        trainer.outcomes.in_flight = in_flight
        seen, steps = [], trainer.run.length.total_steps
        with closing(trainer), closing(own_run.batches(trainer, steps)) as batches:
            for batch in batches:
                if trainer.run.progress.step == 6:
                    trainer._report()  # as for a checkpoint
                trainer.step(batch)
                seen.append(len(recorder.points))
        told = {0: [*[0] * 4, 5, 5, 6, 6, 6, *[10] * 3], 2: [*[0] * 6, *[6] * 5, 10]}
        assert seen[:12] == told[in_flight]
        assert len(recorder.points) == steps
        recorders.append((recorder, trainer.run.progress))
    (at_once, progress), (late, late_progress) = recorders
    of_machine = ("images_per_second", "time_", "memory", "cpu_utilization")
    for one, other in zip(at_once.points, late.points, strict=True):
        assert one["step"] == other["step"]
        values, others = (
            {n: v for n, v in point["values"].items() if not n.startswith(of_machine)}
            for point in (one, other)
        )
        assert values == others
    assert "embedding_rank" in at_once.points[4]["values"]
    assert [event[0] for event in at_once.events] == ["gradient_share"]
    assert at_once.events == late.events
    assert progress.saved() == late_progress.saved()


def test_reports_that_arrive_together_have_one_time(tmp_path: Path) -> None:
    """The second would have no time of its own, and so any speed."""
    recorder, progress = Recorder(tmp_path), Progress()
    watch = InputWatch(Reading(threads=1, decodes=False, on_cpu=True, not_cached=None))
    length, timer = RunLength(1, 8, 4), StepTimer(CPU)
    metrics = StepMetrics(length, progress, recorder, CPU, "ignore", timer, watch)
    for step in range(1, 8):
        progress.step = step
        metrics.add({"loss": torch.tensor(1.0)}, torch.ones(2, 4, 3), spread=False)
        if step in (5, 7):
            metrics.hold()
    metrics.deliver()
    values = [point["values"] for point in recorder.points]
    assert len({each["images_per_second"] for each in values}) == 1
    assert ["time_views" in each for each in values] == [False] * 6 + [True]
    assert len(recorder.progresses) == 1


def test_collapsed_run_keeps_the_steps_in_flight(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "reports")
    train = {"batch_size": 2, "epochs": 2, "collapse": "stop"}
    spec = resolved(pictures, train=train, evaluate={"holdout": None})
    trainer = open_trainer(spec, pictures, cache, tmp_path, recorder)
    trainer.outcomes.in_flight = 2
    alarm = Alarm("norm_explosion", "the norms explode", {})
    monkeypatch.setattr(CollapseAlarm, "observe", lambda *_: [alarm])
    with closing(trainer), pytest.raises(CollapsedError):
        trainer.train()
    step = trainer.run.progress.step
    assert step == 7, "two after the fifth, which is reported"
    assert len(recorder.points) == len(trainer.run.progress.recent_losses) == step
    assert [each[0] for each in recorder.checkpoints] == [step]


# Not on meta: AdamW's kernel that takes the flag of a skipped step; SwAV's read of the queue in its first step.
ON_META: dict[str, dict[str, Any]] = {
    "ibot": {"train": {"optimizer": {"name": "sgd"}}},
    "swav": {"method": {"queue_length": 0}},
}


@pytest.mark.parametrize("name", families_first(sorted(METHODS.keys() - WAITS.keys())))
def test_step_runs_on_tensors_without_data(
    name: str, pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device "meta", what reads a tensor raises, and most that mixes it with a CPU's."""
    # There is no autocast for meta tensors.
    monkeypatch.setattr(torch, "autocast", lambda *arguments, **options: nullcontext())
    regularizers = supported(name, dar={"labels": "instance"}, sec={})
    changes = regularizers | ON_META.get(name, {}) | {"evaluate": {"holdout": None}}
    method = {"name": name} | changes.pop("method", {})
    spec = resolved(pictures, method=method, **changes)
    files = RunFiles(cache, tmp_path)
    run = open_run(spec, pictures, NullReporter(), files, device=torch.device("meta"))
    trainer = build_trainer(run)
    trainer.updater.deferred, trainer.outcomes.in_flight = True, 2
    # The first step also measures the shares of the regularizers.
    with closing(trainer), closing(own_run.batches(trainer, 2)) as batches:
        for batch in batches:
            trainer.step(batch)
    assert trainer.run.progress.step == 2
    assert all(weight.is_meta for weight in trainer.updater.weights)


def test_reads_of_what_is_on_the_device_are_found() -> None:
    weights, labels = torch.arange(3.0), torch.tensor([True, False, True])
    reads: list[Callable[[Tensor], object]] = [
        Tensor.item,
        Tensor.tolist,
        Tensor.cpu,
        bool,
        lambda x: x.repeat(3)[labels],
        lambda x: x.repeat(3).masked_fill_(labels, 1).nonzero(),
        lambda x: x.new_zeros(3).index_put_((labels,), x),
        lambda x: x + labels.to(CPU),
        lambda x: torch.unique(x),
        lambda x: torch.linalg.eigvalsh(x.expand(3, 3)),
    ]
    for read in reads:
        with DeviceWaits([weights]) as waits:
            read(weights.sum())
        assert waits.found
    with DeviceWaits([weights]) as waits:
        places = labels.nonzero().squeeze(1)
        assert labels.tolist() == [True, False, True]
        weights.square()[to_device(places, CPU)].sum()
    assert not waits.found
