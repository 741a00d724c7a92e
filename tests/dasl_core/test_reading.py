"""Reading of the images before a run: reported by all ranks together, and stopped on request."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from dasl_core.data.cache_build import OnRead
from dasl_core.data.canvases import Canvases
from dasl_core.data.drawing import Drawer
from dasl_core.data.index import DatasetIndex
from dasl_core.distributed import rank
from dasl_core.train import preparing
from dasl_core.train.interruption import Interruption
from dasl_core.train.preparing import read_together
from dasl_core.train.progress import Progress
from dasl_core.train.reporter import NullReporter
from dasl_core.vocabulary import Desired
from tests.support.gloo_pool import GlooPool
from tests.support.polling import wait_for
from tests.support.small_shards import make_eager
from tests.support.training_world import Recorder, resolved, run

pytestmark = pytest.mark.usefixtures("without_plots")
DEADLINE = 20
IMAGES = 27


class Watcher(Recorder):
    """A reporter that calls `on_report` when images are reported as read, and requests `wanted` then."""

    def __init__(
        self, folder: Path, on_report: Callable[[], None], wanted: Desired = "run"
    ) -> None:
        super().__init__(folder)
        self.on_report, self.wanted, self.reported = on_report, wanted, False

    def progress(self, progress: dict[str, Any]) -> None:
        super().progress(progress)
        if progress.get("images_read", 0) >= 10:
            self.on_report()
            self.reported = True

    def desired(self) -> Desired:
        return self.wanted if self.reported else super().desired()


def hold(patch: pytest.MonkeyPatch, wait: Callable[[], None], position: int = 10) -> list[int]:
    """Hold back the decoding from the image of a position on; return the list of the decoded images."""
    make_eager(patch)
    patch.setattr(preparing, "_EXCHANGE_SECONDS", 0.01)
    drawn: list[int] = []
    draw = Drawer.draw_valid

    def held(drawer: Drawer, number: int) -> Any:
        if number >= position:
            wait()
        drawn.append(number)
        return draw(drawer, number)

    patch.setattr(Drawer, "draw_valid", held)
    return drawn


def test_read_images_are_reported_until_all_are(
    pictures: DatasetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = threading.Event()
    hold(monkeypatch, lambda: assert_set(reported))
    reporter = Watcher(tmp_path / "out", reported.set)
    assert run(resolved(pictures), pictures, tmp_path / "cache", reporter) == "succeeded"
    numbers = [progress["images_read"] for progress in reporter.reading]
    assert 10 in numbers
    assert numbers == sorted(numbers)
    assert reporter.reading[-1] == {"images_read": IMAGES, "images_total": IMAGES}
    assert reporter.progresses


def assert_set(event: threading.Event) -> None:
    assert event.wait(DEADLINE)


@pytest.mark.parametrize(("wanted", "outcome"), [("pause", "paused"), ("cancel", "cancelled")])
def test_request_ends_reading_and_next_run_continues(
    pictures: DatasetIndex, tmp_path: Path, wanted: Desired, outcome: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        reported = threading.Event()
        drawn = hold(patch, lambda: assert_set(reported))
        reporter = Watcher(tmp_path / "out", reported.set, wanted)
        assert run(resolved(pictures), pictures, tmp_path / "cache", reporter) == outcome
        assert (reporter.points, reporter.checkpoints) == ([], [])
        assert 10 <= len(drawn) < IMAGES
    with pytest.MonkeyPatch.context() as patch:
        rest = hold(patch, lambda: None)
        assert run(resolved(pictures), pictures, tmp_path / "cache", None) == "succeeded"
        assert IMAGES - len(drawn) <= len(rest) <= IMAGES - 10


def read_on_two_nodes(index: DatasetIndex, folder: Path) -> list[int]:
    """Read into a cache for each rank, of which that of rank 0 is complete; return what rank 0 reports."""
    control, seen = dist.new_group(backend="gloo"), folder / "seen"
    assert isinstance(control, dist.ProcessGroup)

    def open_data(on_read: OnRead) -> None:
        cache = folder / f"cache-{rank()}"
        Canvases(index, 16, 3, cache=cache, threads=1, on_read=on_read).close()

    with pytest.MonkeyPatch.context() as patch:
        hold(patch, lambda: wait_for(seen.exists))
        reporter = Watcher(folder / "out", seen.touch) if rank() == 0 else None
        interruption = Interruption(reporter or NullReporter(), Progress(), control)
        read_together(open_data, IMAGES, interruption)
    return [] if reporter is None else [each["images_read"] for each in reporter.reading]


def test_rank_0_reports_what_slowest_rank_has_read(
    pool: GlooPool, pictures: DatasetIndex, tmp_path: Path
) -> None:
    Canvases(pictures, 16, 3, cache=tmp_path / "cache-0", threads=1).close()
    numbers, _ = pool.call(2, read_on_two_nodes, pictures, tmp_path)
    assert 10 in numbers
    assert numbers[-1] == IMAGES
