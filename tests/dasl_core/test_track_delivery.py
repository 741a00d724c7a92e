"""Delivery to a tracker: in the background, bounded, and without effect on the run."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dasl_core.track import delivery as module
from dasl_core.track.delivery import Delivery
from dasl_core.track.reporter import Thinner
from dasl_core.track.tracker import Ending, Point, TrackerUnusable
from tests.support.polling import wait_for
from tests.support.training_world import Recorder


class ListTracker:
    """Keeps points in a list; calls the functions of `faults`, by name of the method, before each call."""

    name, key = "List", "list"

    def __init__(self, **faults: Callable[[], object]) -> None:
        self._faults = faults
        self.steps: list[int] = []
        self.published = 0
        self.ending: Ending | None = None
        self.closed = False

    def start(self) -> str:
        self._faults.get("start", lambda: None)()
        return "here"

    def log(self, points: Sequence[Point]) -> None:
        self._faults.get("log", lambda: None)()
        self.steps += [point.step for point in points]

    def publish(self) -> None:
        self._faults.get("publish", lambda: None)()
        self.published = len(self.steps)

    def finish(self, ending: Ending) -> None:
        self._faults.get("finish", lambda: None)()
        self.ending = ending

    def close(self) -> None:
        self.closed = True


def points(*steps: int) -> list[Point]:
    return [Point(step, 0.0, {"loss": 1.0}) for step in steps]


def close(delivery: Delivery, seconds: float = 60.0) -> None:
    delivery.end("succeeded")
    delivery.wait(time.monotonic() + seconds)


def fails(times: int, error: Exception) -> Callable[[], None]:
    left = [error] * times

    def fault() -> None:
        if left:
            raise left.pop()

    return fault


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path)


def test_points_arrive_in_order_and_the_address_is_an_event(recorder: Recorder) -> None:
    tracker = ListTracker()
    delivery = Delivery(tracker, recorder)
    for step in range(2000):
        delivery.put(points(step))
    delivery.publish()
    close(delivery)
    assert tracker.steps == list(range(2000))
    assert (tracker.ending, tracker.closed) == ("succeeded", True)
    assert recorder.events == [("tracking", "List: here", {"tracker": "list", "address": "here"})]


@pytest.mark.parametrize("call", ["start", "log", "publish"])
def test_failed_call_is_repeated_and_reported_once(recorder: Recorder, call: str) -> None:
    tracker = ListTracker(**{call: fails(3, ConnectionError("no server"))})
    delivery = Delivery(tracker, recorder, retry_seconds=0.01)
    delivery.put(points(1, 2))
    delivery.publish()
    wait_for(lambda: tracker.published == 2)
    close(delivery)
    assert tracker.steps == [1, 2]
    reasons = [data["reason"] for kind, _, data in recorder.events if kind == "tracking_failed"]
    assert reasons == ["no server"]
    assert "tracking_incomplete" not in {kind for kind, _, _ in recorder.events}


def test_oldest_points_are_dropped_and_counted(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_POINTS", 10)
    answers = threading.Event()
    tracker = ListTracker(start=lambda: answers.wait(60))
    delivery = Delivery(tracker, recorder)
    for step in range(25):
        delivery.put(points(step))
    answers.set()
    close(delivery)
    assert tracker.steps == list(range(15, 25))
    assert recorder.events[-1] == (
        *("tracking_incomplete", "List lacks 15 points of this attempt"),
        {"tracker": "list", "points": 15},
    )


def test_hanging_tracker_delays_the_end_by_no_more_than_the_limit(recorder: Recorder) -> None:
    answers = threading.Event()
    tracker = ListTracker(log=lambda: answers.wait(60))
    delivery = Delivery(tracker, recorder)
    delivery.put(points(1, 2, 3))
    started = time.monotonic()
    close(delivery, seconds=0.3)
    assert time.monotonic() - started < 2
    kinds = {kind: data for kind, _, data in recorder.events}
    assert "did not answer before the end" in kinds["tracking_failed"]["reason"]
    assert kinds["tracking_incomplete"]["points"] == 3
    reported = len(recorder.events)
    answers.set()  # the run may be over: nothing may be reported any more
    wait_for(lambda: tracker.closed)
    assert len(recorder.events) == reported


@pytest.mark.parametrize(
    "error", [TrackerUnusable("refused"), KeyError("a bug of a library")], ids=["unusable", "bug"]
)
def test_unusable_tracker_is_given_up(recorder: Recorder, error: Exception) -> None:
    tracker = ListTracker(start=fails(1, error))
    delivery = Delivery(tracker, recorder, retry_seconds=0.01)
    wait_for(lambda: tracker.closed)
    delivery.put(points(1, 2))
    close(delivery)
    assert tracker.steps == []
    assert [kind for kind, _, _ in recorder.events] == ["tracking_failed", "tracking_incomplete"]
    assert recorder.events[1][2]["points"] == 2


def test_tracker_that_is_away_at_the_end_is_tried_once_more(recorder: Recorder) -> None:
    tracker = ListTracker(log=fails(1, ConnectionError("away")))
    delivery = Delivery(tracker, recorder, retry_seconds=3600)
    delivery.put(points(1))
    wait_for(lambda: len(recorder.events) == 2)
    close(delivery)
    assert (tracker.steps, tracker.ending) == ([1], "succeeded")


def test_tracker_that_is_away_at_the_end_is_tried_until_the_deadline(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_RETRY_SECONDS", 0.01)
    tracker = ListTracker(finish=fails(5, ConnectionError("away")))
    delivery = Delivery(tracker, recorder, retry_seconds=3600)
    delivery.put(points(1))
    close(delivery)
    assert (tracker.steps, tracker.ending) == ([1], "succeeded")


def test_tracker_that_stays_away_is_left_at_the_deadline(recorder: Recorder) -> None:
    tracker = ListTracker(finish=fails(1000, ConnectionError("away")))
    delivery = Delivery(tracker, recorder, retry_seconds=3600)
    close(delivery, seconds=0.3)
    wait_for(lambda: tracker.closed, 30)
    assert tracker.ending is None
    assert [kind for kind, _, _ in recorder.events] == ["tracking", "tracking_failed"]


def test_thinner_keeps_the_logarithm_of_a_long_run() -> None:
    thinner = Thinner()
    kept = [step for step in range(100_000) if thinner.take(Point(step, 0.0, {"loss": 1.0})).values]
    assert kept[:1000] == list(range(1000))
    assert kept[1000:2000] == list(range(1000, 3000, 2))
    assert 6000 < len(kept) < 8000


def test_thinner_drops_repeated_steps_and_what_is_not_finite() -> None:
    thinner = Thinner()
    assert thinner.take(Point(1, 0.0, {"loss": math.nan, "lr": 1.0})).values == {"lr": 1.0}
    # The last step is reported again with what an evaluation took.
    assert thinner.take(Point(1, 0.0, {"loss": 2.0, "lr": 3.0})).values == {"loss": 2.0}
