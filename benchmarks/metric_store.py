"""Time of `GET /v1/jobs/{id}/metrics` for a long job: ``python -m benchmarks.metric_store``.

The default answer of 18 series, on SQLite and on PostgreSQL, is timed for a short job of which every point is stored, and for a
long one. Most old points of the long job are stored as thinning leaves them, two in each bucket; then it reports
more steps, and the dispatcher's code thins as many. The time of its answer must be below a limit, and the minimum and the maximum of
each series must be the true ones.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import delete, func, select, text, update

from benchmarks.machine import machine, write_results
from dasl_core.spec import versions
from service import ids
from service.artifacts.storage import Storage
from service.db import migrate
from service.db.models import Dataset, Job, Metric
from service.db.session import Database
from service.dispatcher.context import DispatcherContext, Entrypoints, utc_now
from service.dispatcher.metric_thinner import STRIDE, MetricThinner
from service.jobs.metrics import Columns
from service.metrics import repository
from service.metrics.thinning import sections_due
from service.settings import Settings
from tests.support.databases import database_folder, postgres_server
from tests.support.fake_executor import FakeExecutor

RESULTS = Path(__file__).parent / "results" / "metric_store.json"
LIMIT_SECONDS = 5.0
SERIES = ("loss", *(f"series_{number:02}" for number in range(1, 18)))
MAX_POINTS = 10_000
_INSERT = {
    "sqlite": (
        "INSERT INTO metrics (job_id, name, step, attempt, time, value) "
        "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + :every FROM n WHERE i + :every <= :last) "
        "SELECT :job, :name, i, 1, i, (random() % 1000000) / 1e6 FROM n"
    ),
    "postgresql": (
        "INSERT INTO metrics (job_id, name, step, attempt, time, value) "
        "SELECT :job, :name, i, 1, i, random() FROM generate_series(CAST(:first AS bigint), :last, :every) i"
    ),
}


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument(
        "--complete",
        type=int,
        default=20_000,
        help="steps of the short job, and those that the long one thins",
    )
    parser.add_argument("--database", choices=_INSERT, help="measure one; write no results")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kinds = [arguments.database] if arguments.database else list(_INSERT)
    results = [measure(kind, arguments.steps, arguments.complete) for kind in kinds]
    show(results)
    if not arguments.database:
        document = {"machine": machine("sqlalchemy"), "results": results}
        write_results(arguments.output, document)
    return 0 if all(result["within_limits"] for result in results) else 1


@contextmanager
def opened(kind: str) -> Iterator[Database]:
    """Open a migrated database of a kind."""
    if kind == "sqlite":
        folder = database_folder(kind)
        url = f"sqlite:///{folder}/dasl.db"
        migrate.upgrade(url)
        database = Database(url)
        yield database
        database.dispose()
        shutil.rmtree(folder)
        return
    with postgres_server(database_folder(kind)) as server:
        migrate.upgrade(server.url)
        database = Database(server.url)
        yield database
        database.dispose()


def measure(kind: str, steps: int, complete: int) -> dict[str, Any]:
    """Measure one database.

    Args:
        kind: "sqlite" or "postgresql".
        steps: number of steps of the long job.
        complete: number of steps of the short job, and of those that the long job reports and thins.
    """
    with opened(kind) as database:
        job_id = add_job(database)
        report(database, job_id, 1, complete)
        rows, (seconds_complete, cpu_complete) = count(database, job_id), timed(database, job_id)
        expected = report_thinned(database, job_id, steps - complete)
        report(database, job_id, steps - complete + 1, steps)
        for name, (least, greatest) in extremes(database, job_id, steps - complete).items():
            others = expected[name]
            expected[name] = (min(least, others[0]), max(greatest, others[1]))
        begin, rounds = time.perf_counter(), 0
        context = context_of(database)
        thinner = MetricThinner(context)
        while thinned_step(database, job_id) + STRIDE <= steps:
            assert context.take_lease()
            assert thinner.round()
            rounds += 1
        busy = time.perf_counter() - begin
        seconds, cpu = timed(database, job_id)
        return {
            "database": kind,
            "series": len(SERIES),
            "steps_complete": complete,
            "rows_complete": rows,
            "seconds_complete": seconds_complete,
            "cpu_seconds_complete": cpu_complete,
            "steps": steps,
            "rows": count(database, job_id),
            "seconds": seconds,
            "cpu_seconds": cpu,
            "limit_seconds": LIMIT_SECONDS,
            "thinning_seconds": round(busy, 1),
            "thinning_rounds": rounds,
            "within_limits": seconds < LIMIT_SECONDS and extremes(database, job_id) == expected,
        }


def add_job(database: Database) -> str:
    """Add a running job."""
    now, job_id = datetime.now(UTC), ids.new_id("job")
    dataset = Dataset(
        id=ids.new_id("ds"),
        tenant="t",
        name="d",
        uri="/x",
        state="ready",
        created_at=now,
        ingest_requested_at=now,
    )
    with database.write() as session:
        session.add(dataset)
        session.flush()
        session.add(
            Job(
                id=job_id,
                tenant="t",
                name="long",
                method="simclr",
                status="running",
                desired="run",
                spec={},
                resolved={},
                spec_version=versions.current(),
                account_id=ids.new_id("tok"),
                tags={},
                dataset_id=dataset.id,
                created_at=now,
                attempt=1,
            )
        )
    return job_id


def report(database: Database, job_id: str, first: int, last: int, *, every: int = 1) -> None:
    """Store points of all series."""
    insert = text(_INSERT[database.engine.dialect.name])
    for name in SERIES:
        with database.write() as session:
            values = {"job": job_id, "name": name, "first": first, "last": last, "every": every}
            session.execute(insert, values)


def report_thinned(database: Database, job_id: str, last: int) -> dict[str, tuple[float, float]]:
    """Store points up to `last` as thinning leaves them; return the extremes of all series."""
    with database.write() as session:
        session.execute(delete(Metric).where(Metric.job_id == job_id))
        session.execute(update(Job).where(Job.id == job_id).values(thinned_step=last))
    sections = sections_due(0, last)
    begins = [*(section.stop for section in sections[1:]), 0]
    for section, begin in zip(sections, begins, strict=True):
        begin = begin // section.width * section.width
        report(database, job_id, max(1, begin), section.stop - 1, every=section.width // 2)
    report(database, job_id, sections[0].stop, last)
    return extremes(database, job_id)


def count(database: Database, job_id: str) -> int:
    """Return the number of points."""
    with database.read() as session:
        return session.scalar(select(func.count()).where(Metric.job_id == job_id)) or 0


def extremes(database: Database, job_id: str, first: int = 0) -> dict[str, tuple[float, float]]:
    """Return each series' minimum and maximum, from a step on."""
    query = (
        select(Metric.name, func.min(Metric.value), func.max(Metric.value))
        .where(Metric.job_id == job_id, Metric.step >= first)
        .group_by(Metric.name)
    )
    with database.read() as session:
        return {name: (least, greatest) for name, least, greatest in session.execute(query)}


def thinned_step(database: Database, job_id: str) -> int:
    """Return the step up to which the job is thinned."""
    with database.read() as session:
        return session.get_one(Job, job_id).thinned_step


def timed(database: Database, job_id: str) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, of the default answer, read and encoded."""
    begin, busy = time.perf_counter(), time.process_time()
    with database.read() as session:
        columns = Columns.from_points(repository.points(session, job_id, (), 0, MAX_POINTS))
    assert sum(len(block) for block in columns.as_json()) > 100_000
    busy = time.process_time() - busy
    return round(time.perf_counter() - begin, 2), round(busy, 2)


def context_of(database: Database) -> DispatcherContext:
    """Return the context of a dispatcher."""
    settings = Settings(home=Path(tempfile.gettempdir()) / "dasl-benchmark")
    return DispatcherContext(
        settings=settings,
        database=database,
        storage=Storage(settings.artifacts_uri),
        executor=FakeExecutor(cpus=1),  # not used
        clock=utc_now,
        holder="benchmark",
        entrypoints=Entrypoints(),
    )


def show(results: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(title=f"Default answer of {len(SERIES)} series")
    for heading in ("database", "steps", "rows", "seconds", "CPU seconds", "limit", ""):
        table.add_column(heading, justify="left" if heading == "database" else "right")
    for result in results:
        for suffix in ("_complete", ""):
            values = (
                f"{result[key + suffix]:,}" for key in ("steps", "rows", "seconds", "cpu_seconds")
            )
            limit = "" if suffix else f"{result['limit_seconds']:.0f}"
            verdict = "" if suffix else "ok" if result["within_limits"] else "TOO LONG"
            table.add_row(result["database"], *values, limit, verdict)
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
