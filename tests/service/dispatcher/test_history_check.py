"""The history check of `tests.chaos.crashes`: it accepts a valid history and detects violations."""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from service.db.models import Attempt, Checkpoint, Event, Job, Metric
from tests.chaos.history import FINAL_WEIGHTS, violations, weight_differences
from tests.support.dispatcher_world import World

STEPS = 4


class History:
    """A job that was killed once, resumed from its checkpoint and succeeded."""

    def __init__(self, world: World) -> None:
        self.world, self.folder = world, world.settings.home / "files"
        self.job = world.add_job()
        world.tick()
        self.train(1, steps=(1, 2, 3))
        self.save(1, step=2)
        world.executor.kill(world.run_id(self.job))
        world.tick(times=5)
        self.train(2, steps=(3, 4))
        self.save(2, step=4, final=True)
        world.worker_finishes(self.job, "succeeded", 2)

    def train(self, number: int, steps: tuple[int, ...]) -> None:
        self.world.worker_starts(self.job, number)
        now = self.world.now().timestamp()
        with self.world.database.write() as session:
            for step in steps:
                session.add(
                    Metric(
                        job_id=self.job, attempt=number, name="loss", step=step, time=now, value=1.0
                    )
                )

    def save(self, number: int, step: int, final: bool = False) -> None:
        folder = self.folder / f"{number}-{step}"
        folder.mkdir(parents=True)
        content = f"weights of step {step}".encode()
        (folder / FINAL_WEIGHTS).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        id = self.world.add_checkpoint(self.job, number, step, uri=f"file://{folder}")
        with self.world.database.write() as session:
            saved = session.get_one(Checkpoint, id)
            saved.files = [{"name": FINAL_WEIGHTS, "size": len(content), "sha256": sha256}]
            saved.final = final

    def violations(self, **accepted: str) -> list[str]:
        return violations(self.world.database, accepted or {"key": self.job}, {self.job: STEPS})


@pytest.fixture
def history(world: World) -> History:
    history = History(world)
    assert history.violations() == []
    return history


def change(history: History, statement: object) -> None:
    with history.world.database.write() as session:
        session.execute(statement)  # type: ignore[call-overload]


def lose_an_event(history: History) -> None:
    change(history, delete(Event).where(Event.seq == 3))


def end_twice(history: History) -> None:
    change(
        history, update(Event).where(Event.seq == 2).values(data={"from": "queued", "to": "failed"})
    )


def begin_too_early(history: History) -> None:
    early = history.world.began - timedelta(hours=1)
    change(history, update(Attempt).where(Attempt.number == 2).values(created_at=early))


def stay_alive(history: History) -> None:
    change(history, update(Attempt).where(Attempt.number == 1).values(state="running"))


def train_on(history: History) -> None:
    late = history.world.now().timestamp() + 3600
    change(history, update(Metric).where(Metric.attempt == 1, Metric.step == 3).values(time=late))


def skip_a_step(history: History) -> None:
    change(history, delete(Metric).where(Metric.step == 4))


def restart_from_scratch(history: History) -> None:
    change(history, update(Attempt).where(Attempt.number == 2).values(resume_checkpoint_id=None))


def damage_a_file(history: History) -> None:
    (history.folder / "1-2" / FINAL_WEIGHTS).write_bytes(b"weights of step 3")


def remove_a_file(history: History) -> None:
    (history.folder / "2-4" / FINAL_WEIGHTS).unlink()


def fail(history: History) -> None:
    change(history, update(Job).values(status="failed"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "violation"),
    [
        (lose_an_event, "have gaps"),
        (end_twice, "2 terminal transitions"),
        (begin_too_early, "began before attempt 1 was over"),
        (stay_alive, "attempt 1 is still running"),
        (train_on, "trained step 3 after the next one began"),
        (skip_a_step, "missing for some of its 4 steps"),
        (restart_from_scratch, "did not resume from the newest checkpoint"),
        (damage_a_file, "differs from the registered file"),
        (remove_a_file, "is missing"),
        (fail, "ended as failed"),
    ],
)
def test_every_violation_is_found(
    history: History, damage: Callable[[History], None], violation: str
) -> None:
    damage(history)
    assert any(violation in text for text in history.violations()), history.violations()


def test_losses_of_a_replaced_database_may_be_missing_in_one_gap(history: History) -> None:
    def found(forgotten: range) -> list[str]:
        jobs, accepted = {history.job: STEPS}, {"key": history.job}
        return violations(history.world.database, accepted, jobs, {history.job: forgotten})

    change(history, delete(Metric).where(Metric.step == 2))
    assert found(range(2, 3)) == []
    assert any("missing" in text for text in found(range(3, 4)))
    change(history, delete(Metric).where(Metric.step == 4))
    assert any("missing" in text for text in found(range(2, 5)))


def test_lost_and_unknown_jobs_are_found(history: History) -> None:
    assert history.violations(one=history.job, two="job_x") == ["job_x: accepted as two, and lost"]
    assert any("was never submitted" in text for text in history.violations(two="job_x"))


def test_different_final_weights_of_one_kind_are_found(
    history: History, world: World, tmp_path: Path
) -> None:
    first = history.job
    history.folder = tmp_path / "others"
    history.job = world.add_job()
    world.tick()
    history.save(1, step=4, final=True)
    kinds = {first: "a", history.job: "a"}
    assert weight_differences(world.database, kinds) == []
    with world.database.write() as session:
        entry = {"name": FINAL_WEIGHTS, "size": 1, "sha256": "0" * 64}
        session.execute(
            update(Checkpoint).where(Checkpoint.job_id == history.job).values(files=[entry])
        )
    [violation] = weight_differences(world.database, kinds)
    assert "final weights differ" in violation
    assert weight_differences(world.database, kinds | {first: "b"}) == []
