"""Runs of previews and preparations: tenants take turns, and ones that end without a report are repeated."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from service.db.models import Preparation, Preview, PreviewRun
from service.dispatcher.executor import ExecutorUnavailable
from service.protocol import UNDELIVERED_EXIT_CODE
from service.states import AttemptState, TaskState
from service.tasks.repository import previews
from tests.support.dispatcher_world import World, failure


def finish(world: World, preview: str, number: int = 1) -> None:
    with world.database.write() as session:
        assert previews.end(
            session,
            preview,
            number,
            TaskState.SUCCEEDED,
            run_state=AttemptState.SUCCEEDED,
            uri="file:///nowhere/x",
            files=[],
        )


def started(world: World, prefix: str = "prev_") -> list[str]:
    """Return the tasks of a kind whose runs began, in order."""
    return [run.rsplit("-", 2)[0] for run in world.executor.submitted if run.startswith(prefix)]


def test_tenants_take_turns_beside_ingests(world: World) -> None:
    dataset = world.dataset_id()
    for _ in range(3):
        world.add_dataset()
    many = [world.add_preview(dataset, "a") for _ in range(4)]
    world.tick()
    assert started(world) == many[:2]
    one = world.add_preview(dataset, "b")
    world.tick()
    assert started(world) == [*many[:2], one]
    finish(world, many[0])
    finish(world, many[1])
    finish(world, one)
    world.tick()
    assert started(world) == [*many[:2], one, *many[2:]]
    assert len(world.executor.submitted) == 5 + 2, "two ingests run beside them"


def test_preparations_run_beside_previews(world: World) -> None:
    dataset = world.dataset_id()
    drawn = [world.add_preview(dataset) for _ in range(3)]
    many = [world.add_preparation(dataset) for _ in range(3)]
    world.tick()
    assert started(world, "prep_") == many[:2]
    assert world.preview(drawn[1]).state == "running"


@pytest.mark.parametrize(
    ("add", "kind", "losses", "during"),
    [
        (World.add_preview, Preview, 2, "while the preview was drawn"),
        (World.add_preparation, Preparation, 3, "while the images were decoded"),
    ],
    ids=["preview", "preparation"],
)
def test_lost_task_is_repeated_a_few_times(
    world: World,
    add: Callable[[World, str], str],
    kind: type[Preview | Preparation],
    losses: int,
    during: str,
) -> None:
    task = add(world, world.dataset_id())
    for number in range(1, losses + 1):
        world.tick(times=2)
        assert started(world, task[:5]) == [task] * number
        world.executor.lose_everything()
    world.tick(times=2)
    with world.database.read() as session:
        ended = session.get_one(kind, task)
    assert ended.state == "failed"
    error = failure(ended)
    assert error["type"] == f"{kind.__name__.lower()}-lost"
    assert f"Ray ended {losses} times {during}" in error["message"]
    assert started(world, task[:5]) == [task] * losses


def test_preview_whose_process_ends_is_drawn_again_once(world: World) -> None:
    preview = world.add_preview(world.dataset_id())
    for number in (1, 2):
        world.tick(times=2)
        world.executor.end(world.run_id(preview, number), 1, "the reason")
    world.tick()
    ended = world.preview(preview)
    assert ended.state == "failed"
    assert failure(ended)["message"] == "The preview ended with exit code 1: the reason"


def test_end_of_an_earlier_run_of_a_task_is_discarded(world: World) -> None:
    preview = world.add_preview(world.dataset_id())
    world.tick(times=2)
    world.executor.end(world.run_id(preview), 1)
    world.tick(times=2)
    assert len(started(world)) == 2
    with world.database.write() as session:
        failed = AttemptState.FAILED
        assert not previews.end(session, preview, 1, TaskState.FAILED, run_state=failed)
    assert world.preview(preview).state == "running"


def test_preview_that_did_not_reach_the_api_waits_and_is_drawn_again(world: World) -> None:
    preview = world.add_preview(world.dataset_id())
    for number in (1, 2):
        world.tick()
        world.executor.end(world.run_id(preview, number), UNDELIVERED_EXIT_CODE)
        world.tick()
        assert world.preview(preview).state == "queued"
        assert len(started(world)) == number
        world.tick(130)
        assert len(started(world)) == number + 1


@pytest.mark.parametrize(("minutes", "state"), [(14, "running"), (16, "failed")])
def test_preview_has_a_time_limit(world: World, minutes: int, state: str) -> None:
    preview = world.add_preview(world.dataset_id())
    world.tick(times=2)
    world.tick(60, times=minutes)
    assert world.preview(preview).state == state
    assert world.executor.is_running(world.run_id(preview)) is (state == "running")


def test_task_is_not_ended_before_its_run_is_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose task has ended is stopped no more."""
    preview = world.add_preview(world.dataset_id())
    world.tick(times=2)

    def away(_: str) -> None:
        raise ExecutorUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(world.executor, "stop", away)
        world.tick(60, times=16)
    assert world.preview(preview).state == "running"
    world.tick()
    assert world.preview(preview).state == "failed"
    assert not world.executor.is_running(world.run_id(preview))


def test_deleted_preview_is_stopped_and_removed(world: World) -> None:
    preview = world.add_preview(world.dataset_id())
    world.tick()
    run = world.run_id(preview)
    with world.database.write() as session:
        session.get_one(Preview, preview).deleted_at = world.now()
    world.tick()
    assert not world.executor.is_running(run)
    world.tick()
    with world.database.read() as session:
        assert session.get(Preview, preview) is None
        ended = session.get_one(PreviewRun, (preview, 1))
        assert (ended.state, ended.settled) == ("cancelled", True)


def test_deleted_task_neither_waits_nor_begins(world: World) -> None:
    dataset = world.dataset_id()
    deleted = [world.add_preview(dataset) for _ in range(world.settings.runs_at_once)]
    with world.database.write() as session:
        for preview in deleted:
            session.get_one(Preview, preview).deleted_at = world.now()
        session.flush()
        assert previews.begin(session, deleted[0], "a hash") is None
    waiting = world.add_preview(dataset)
    world.main_round(2)
    assert started(world) == [waiting]


def test_deleted_task_keeps_its_place_until_it_is_stopped(world: World) -> None:
    dataset = world.dataset_id()
    for _ in range(world.settings.runs_at_once + 1):
        world.add_preview(dataset)
    world.main_round(2)
    before = started(world)
    with world.database.write() as session:
        session.get_one(Preview, before[0]).deleted_at = world.now()
    world.main_round(2)
    assert started(world) == before
    world.tick(times=3)
    assert not world.executor.is_running(world.run_id(before[0]))
    assert len(started(world)) == len(before) + 1


def test_old_previews_are_removed(world: World) -> None:
    old, waiting = (world.add_preview(world.dataset_id()) for _ in range(2))
    world.tick()
    finish(world, old)
    world.tick(timedelta(days=6.9).total_seconds())
    assert world.preview(old).state == "succeeded"
    world.tick(timedelta(days=0.2).total_seconds())
    with world.database.read() as session:
        assert session.get(Preview, old) is None
        assert session.get(Preview, waiting) is not None
