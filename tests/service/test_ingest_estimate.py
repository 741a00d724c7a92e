"""The estimate of the time that an ingest still takes."""

from datetime import timedelta

import pytest

from dasl_core.vocabulary import IngestPhase
from service.protocol import IngestProgress
from service.worker_api.ingest_estimate import IngestEstimate, next_estimate


def reports(*counts: tuple[int, int], seconds: float = 2) -> IngestEstimate:
    """Return the estimate after reports of (images read, images found), `seconds` apart."""
    estimate = None
    for read, total in counts:
        elapsed = None if estimate is None else timedelta(seconds=seconds)
        report = IngestProgress(images_read=read, images_total=total)
        estimate = next_estimate(estimate, report, elapsed)
    assert estimate is not None
    return IngestEstimate.model_validate(estimate.model_dump())


@pytest.mark.parametrize("counts", [[(0, 5)], [(3, 5)], [(0, 5), (0, 9), (0, 100)]])
def test_nothing_is_estimated_before_the_rate_is_known(counts: list[tuple[int, int]]) -> None:
    estimate = reports(*counts)
    assert (estimate.images_per_second, estimate.seconds_left) == (None, None)


def test_steady_ingest_is_estimated_at_its_rate() -> None:
    estimate = reports(*((20 * each, 1000) for each in range(10)))
    assert estimate.images_per_second == pytest.approx(10)
    assert estimate.seconds_left == 82


def test_rate_follows_what_is_read_now() -> None:
    """Images of the sample take longer than headers."""
    fast = [(1000 * each, 100_000) for each in range(30)]
    slow = [(29_000 + each, 100_000) for each in range(1, 61)]
    estimate = reports(*fast, *slow)
    assert estimate.images_per_second is not None
    assert 0.5 <= estimate.images_per_second < 500 * 0.02 + 0.5


def test_standstill_lets_the_estimate_grow() -> None:
    before = reports((0, 100), (10, 100))
    after = reports((0, 100), (10, 100), (10, 100))
    assert before.seconds_left is not None
    assert after.seconds_left is not None
    assert after.seconds_left > before.seconds_left


def test_progress_of_the_version_before_is_read() -> None:
    stored = IngestEstimate.model_validate({"images_read": 1, "images_total": 2})
    assert stored is not None
    assert stored.reported() == (1, 2, None)


def test_each_phase_has_its_own_rate() -> None:
    def report(read: int, phase: IngestPhase, before: IngestEstimate | None) -> IngestEstimate:
        progress = IngestProgress(images_read=read, images_total=100, phase=phase)
        return next_estimate(before, progress, timedelta(seconds=1))

    headers = report(80, "headers", report(40, "headers", None))
    assert (headers.images_per_second, headers.seconds_left) == (40, 0.5)
    sample = report(2, "sample", headers)
    assert (sample.phase, sample.images_per_second, sample.seconds_left) == ("sample", None, None)
    assert report(4, "sample", sample).seconds_left == 48
