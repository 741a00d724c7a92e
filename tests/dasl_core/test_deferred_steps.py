"""Steps whose outcome the device decides, and views that are made ahead: both on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from timm.optim import create_optimizer_v2
from torch import Tensor, nn

from dasl_core.data.loader import Batch
from dasl_core.models.ema import Teacher
from dasl_core.spec import Clip
from dasl_core.train.outcomes import Outcomes
from dasl_core.train.prefetch import ViewPrefetcher
from dasl_core.train.timing import StepTimer
from dasl_core.train.update import Updater, restore_unless

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
        seen += [(step, o.step, o.updated, o.age) for o in outcomes.known(wait=False)]
    assert seen == [(2, 0, True, 2), (3, 1, False, 2)]
    assert [(o.step, o.age) for o in outcomes.known(wait=True)] == [(2, 1), (3, 0)]


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
