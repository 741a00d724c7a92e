"""`/v1/jobs/{id}/metrics` and `/v1/metrics`: metrics of a job, or of several in one answer."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from dasl_core.headlines import number_of
from dasl_core.vocabulary import TRAINED
from service import ids
from service.api.auth import Reader
from service.api.problems import field_problem, not_found
from service.api.transaction import HeavyRoute, ReadSession, WithContext
from service.db.models import Evaluation
from service.jobs import repository
from service.jobs.dependencies import OwnJob
from service.jobs.metrics import Columns
from service.metrics import repository as metrics
from service.wire.jobs import JobsMetrics, MetricColumns

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=HeavyRoute)

# A series of a job with a million steps has some 15,000 points, which take 20 ms to read.
_MAX_SERIES = 200
_MAX_VALUES = 1_000_000

Name = Annotated[str, Query(max_length=100, pattern=r"^[^\x00]+$")]
Step = Annotated[int, Query(ge=0, le=2**63 - 1)]


@router.get("/jobs/{job_id}/metrics", response_model=MetricColumns)
def show_job_metrics(
    job: OwnJob,
    context: WithContext,
    session: ReadSession,
    name: Annotated[
        list[Name] | None,
        Query(max_length=100, description="One or more; all series without it."),
    ] = None,
    from_step: Step = 0,
    to_step: Step | None = None,
    max_points: Annotated[int, Query(ge=2, le=1_000_000)] = 10_000,
) -> Response:
    """Show metrics as columns, downsampled to about `max_points` steps and at most a million values.

    Thinning keeps minima and maxima.
    """
    columns = Columns.from_points(
        metrics.points(session, job.id, name or (), from_step, max_points, to_step)
    )
    # Read everything first, so that neither the connection nor the transaction waits for a slow client.
    session.close()
    blocks = context.heavy_threads.iterate(columns.as_json())
    return StreamingResponse(blocks, media_type="application/json")


@router.get("/metrics", response_model=JobsMetrics)
def show_metrics(
    caller: Reader,
    context: WithContext,
    session: ReadSession,
    job: Annotated[
        list[Annotated[str, Query(max_length=40)]],
        Query(min_length=1, max_length=100, description="One or more ids."),
    ],
    name: Annotated[
        list[Name], Query(min_length=1, max_length=50, description="One or more series.")
    ],
    from_step: Step = 0,
    to_step: Step | None = None,
    max_points: Annotated[int, Query(ge=2, le=10_000)] = 1000,
) -> Response:
    """Show metrics of several jobs as columns, each downsampled to about `max_points` steps.

    Thinning keeps minima and maxima. An answer has at most 200 series and a million values.
    """
    job_ids, names = list(dict.fromkeys(job)), list(dict.fromkeys(name))
    series = len(job_ids) * len(names)
    if series > _MAX_SERIES:
        raise field_problem(
            "name",
            f"{len(job_ids)} jobs with {len(names)} names each are {series} series; request fewer",
            series,
            f"at most {_MAX_SERIES} series",
        )
    existing = repository.existing(
        session, caller.tenant, [id for id in job_ids if ids.is_id("job", id)]
    )
    for job_id in job_ids:
        if job_id not in existing:
            raise not_found("job", job_id)
    points = max(2, min(max_points, _MAX_VALUES // series))
    columns = [
        Columns.from_points(
            chain(
                metrics.points(session, job_id, names, from_step, points, to_step),
                _evaluated(repository.evaluations(session, job_id), names, from_step, to_step),
            )
        )
        for job_id in job_ids
    ]
    # Read everything first, so that neither the connection nor the transaction waits for a slow client.
    session.close()
    blocks = context.heavy_threads.iterate(_as_json(job_ids, columns))
    return StreamingResponse(blocks, media_type="application/json")


def _evaluated(
    evaluations: Iterable[Evaluation], names: Sequence[str], from_step: int, to_step: int | None
) -> Iterator[tuple[str, int, float, float]]:
    """Yield (name, step, time, value) of evaluations of the trained network, by name and step."""
    rows = [
        row
        for row in evaluations
        if row.subject in TRAINED
        and from_step <= row.step <= (row.step if to_step is None else to_step)
    ]
    if not rows:
        return
    # `evaluate.on` names the last subject of `TRAINED` with an evaluation.
    subject = max((row.subject for row in rows), key=[str(name) for name in TRAINED].index)
    for name in names:
        for row in rows:
            value = number_of(row.metrics, name)
            if row.subject == subject and value is not None:
                yield name, row.step, row.created_at.timestamp(), float(value)


def _as_json(job_ids: Sequence[str], columns: Sequence[Columns]) -> Generator[bytes, None, None]:
    """Encode a `JobsMetrics` as JSON, in blocks."""
    before = b'{"data":['
    for job_id, job_columns in zip(job_ids, columns, strict=True):
        blocks = job_columns.as_json()
        yield before + b'{"job_id":' + to_json(job_id) + b"," + next(blocks).removeprefix(b"{")
        yield from blocks
        before = b","
    yield b"]}"
