"""Runs of preparations: beside those of previews, run again when they are lost, and stopped when they hang."""

from __future__ import annotations

from datetime import timedelta

from service.db.models import Preparation, PreparationRun
from tests.support.dispatcher_world import World


def started(world: World) -> list[str]:
    """Return the preparations whose runs began, in order."""
    return [run.rsplit("-", 2)[0] for run in world.executor.submitted if run.startswith("prep_")]


def test_preparations_run_beside_previews(world: World) -> None:
    dataset = world.dataset_id()
    previews = [world.add_preview(dataset) for _ in range(3)]
    many = [world.add_preparation(dataset) for _ in range(3)]
    world.tick()
    assert started(world) == many[:2]
    assert world.preview(previews[1]).state == "running"


def test_lost_preparation_continues_twice(world: World) -> None:
    preparation = world.add_preparation(world.dataset_id())
    for number in (1, 2, 3):
        world.tick()
        world.tick()
        assert started(world) == [preparation] * number
        world.executor.lose_everything()
    world.tick()
    world.tick()
    ended = world.preparation(preparation)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["type"] == "preparation-lost"
    assert "Ray ended 3 times while the images were decoded" in ended.error["message"]


def test_preparation_that_reads_no_image_is_stopped(world: World) -> None:
    preparation = world.add_preparation(world.dataset_id())
    for number in (1, 2):
        world.tick()
        world.tick()
        run = world.run_id(preparation, number)
        with world.database.write() as session:
            row = session.get_one(PreparationRun, (preparation, number))
            row.progressed_at = world.now() - timedelta(days=1)
            row.progress_reported_at = world.now()
        world.tick(5)
        assert not world.executor.is_running(run)
    ended = world.preparation(preparation)
    assert ended.state == "failed"
    assert ended.error is not None
    assert ended.error["type"] == "hang"
    assert ended.error["message"].startswith("The preparation has read no image for")


def test_deleted_preparation_is_stopped_and_removed(world: World) -> None:
    preparation = world.add_preparation(world.dataset_id())
    world.tick()
    run = world.run_id(preparation)
    with world.database.write() as session:
        session.get_one(Preparation, preparation).deleted_at = world.now()
    world.tick()
    assert not world.executor.is_running(run)
    world.tick()
    with world.database.read() as session:
        assert session.get(Preparation, preparation) is None
