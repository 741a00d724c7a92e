"""The service under load: ``python -m benchmarks.load --database postgresql --minutes 60``.

The API (uvicorn as `dasl` runs it), the dispatcher and the database are real, each in its own process. Two
more processes simulate the cluster of 50 CPUs and the requests of the training drivers. The database
contains 100,000 finished and about 1,000 waiting jobs (`--jobs`, `--queued`).

1. `submit`: bursts of 10 s with 100 jobs per second (`--submits-per-second`). Jobs of a burst are canceled before
   the next one, so that the queue keeps about 1,000 jobs.
2. `listing`: 10 lists per second with every kind of filter, first pages and later pages.

3. `scrapes`: `/metrics` each second.

Then the dispatcher starts 50 jobs (`starts`). Their drivers and ranks send 50 heartbeats and 5,000 metric points
per second (a point is one value of one series at one step), and end after about a minute, when the next ones start.

4. `heartbeats`: no metrics are sent.
5. `steady`: only the drivers and ranks.
6. `submit together` and `listing together`: 1 and 2 again, during 5. They have no limit: two cores that
   also simulate drivers and clients cannot serve all of it.
7. `mixed`: for `--minutes`, jobs are submitted as fast as they end, listed, watched, and some canceled. No
   response may be a 5xx and no log may report a lock.

Requests are sent at a fixed rate and their latency counts from the time at which they were due. The first
seconds of each phase are not counted. Limits apply to the 99th percentile.

The processor time of API, dispatcher and database is measured in each phase. From that of 3 to 5 follows what a
scrape, a start, a heartbeat and a report take, and what a number of running jobs needs (`costs`).
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import func, select

from benchmarks.load.cluster import CPUS_PER_NODE, NODES
from benchmarks.load.drivers import HEARTBEATS_PER_SECOND, POINTS_PER_REPORT, REPORT_SECONDS
from benchmarks.load.history import TENANT, write_history
from benchmarks.load.people import People
from benchmarks.load.servers import Servers, database_of, database_version, serving
from benchmarks.load.traffic import Sender, Tallies, Tally, at_rate, percentiles
from benchmarks.machine import machine, write_results
from service import lifecycle
from service.db.migrate import upgrade
from service.db.models import Job
from service.db.session import Database
from service.server.tuning import freeze_garbage_collection
from service.settings import Settings

RESULTS = Path(__file__).parent.parent / "results"
RUNNING = NODES * CPUS_PER_NODE
BURSTS, BURST_SECONDS = 4, 10.0
LISTS_PER_SECOND, LISTING_SECONDS = 10.0, 60.0
SCRAPES_SECONDS = STEADY_SECONDS = 30.0
SIZES = (10, 50, 100, 200, 500)
STARTS_PER_JOB_SECOND = 1 / 3600  # a job, or a restart, each hour
WARM_UP_SECONDS = 5.0
SUBMIT_LIMIT_MS, LISTING_LIMIT_MS, POINTS_LIMIT = 50.0, 100.0, 5000.0
COUNT_EVERY_SECONDS = 5.0

Request = Callable[[int, float], Awaitable[object]]


class Load:
    """Runs the phases, one after the other, on servers that run throughout."""

    def __init__(
        self,
        servers: Servers,
        people: People,
        tallies: Tallies,
        job_seconds: float,
        queued: int,
        submits_per_second: float,
    ) -> None:
        self._queued, self._submits_per_second = queued, submits_per_second
        self._servers, self._people, self._tallies = servers, people, tallies
        self._job_seconds = job_seconds
        self.phases: dict[str, dict[str, Any]] = {}

    async def starts(self) -> None:
        """Start dispatcher and drivers, and wait until all CPUs are in use."""
        before = self._servers.processor_seconds()
        self._servers.start_cluster()
        deadline = time.monotonic() + 300
        while self._counts()["running"] < RUNNING:
            if time.monotonic() > deadline:
                raise TimeoutError(f"of {RUNNING} jobs run only {self._counts()}")
            await asyncio.sleep(1)
        used = _difference(self._servers.processor_seconds(), before)
        self.phases["starts"] = {"processor_seconds": used, "requests": {}}

    async def scrapes(self, phase: str) -> None:
        """Request the metrics each second."""
        await at_rate(1, WARM_UP_SECONDS, self._people.scrape)
        self._keep(phase, [await self._measure({self._people.scrape: 1.0}, SCRAPES_SECONDS)])

    async def submits(self, phase: str) -> None:
        """Send bursts of submissions."""
        await self._trim()
        await at_rate(20, WARM_UP_SECONDS, self._people.submit)
        parts = []
        for _ in range(BURSTS):
            await self._trim()
            await at_rate(
                20, 1, self._people.submit
            )  # reopen connections that were closed meanwhile
            parts.append(
                await self._measure({self._people.submit: self._submits_per_second}, BURST_SECONDS)
            )
        self._keep(phase, parts)
        await self._trim()

    async def lists(self, phase: str) -> None:
        """Request lists with filters and pages."""
        await at_rate(LISTS_PER_SECOND, WARM_UP_SECONDS, self._people.list)
        part = await self._measure({self._people.list: LISTS_PER_SECOND}, LISTING_SECONDS)
        self._keep(phase, [part])

    async def steady(self, phase: str, *, reporting: bool) -> None:
        """Run drivers and dispatcher alone."""
        self._servers.take_tallies(reporting=reporting)
        await asyncio.sleep(WARM_UP_SECONDS)
        part = await self._measure({}, STEADY_SECONDS, reporting=reporting)
        self._keep(phase, [part])
        self._servers.take_tallies()

    async def mixed(self, minutes: float) -> None:
        """Run everything at rates that can be sustained."""
        ends = RUNNING / self._job_seconds
        people = self._people
        rates: dict[Request, float] = {
            people.submit: ends + 0.3,
            people.cancel: 0.3,
            people.list: 1.0,
            people.watch: 5.0,
        }
        self._keep("mixed", [await self._measure(rates, 60 * minutes)])

    def _keep(self, phase: str, parts: list[dict[str, Any]]) -> None:
        self.phases[phase] = _joined(parts)
        print(f"{phase}: {json.dumps(self.phases[phase])}", flush=True)

    async def _measure(
        self, rates: Mapping[Request, float], seconds: float, *, reporting: bool = True
    ) -> dict[str, Any]:
        self._tallies.take()
        self._servers.take_tallies(reporting=reporting)
        self._servers.take_rounds()
        began, before = time.monotonic(), self._servers.processor_seconds()
        counting = asyncio.ensure_future(self._count_jobs(began + seconds))
        await asyncio.gather(*(at_rate(rate, seconds, request) for request, rate in rates.items()))
        counts = await counting
        took = time.monotonic() - began
        used = _difference(self._servers.processor_seconds(), before)
        tallies = Tallies(self._tallies.take() | self._servers.take_tallies(reporting=reporting))
        return {
            "seconds": took,
            "processor_seconds": used,
            "tallies": tallies,
            "rounds": self._servers.take_rounds(),
            "counts": counts,
        }

    async def _count_jobs(self, until: float) -> list[dict[str, int]]:
        """Count waiting and running jobs every few seconds."""
        counts = []
        while (left := until - time.monotonic()) > 0:
            counts.append(await asyncio.to_thread(self._counts))
            if ended := self._servers.ended():
                raise RuntimeError(f"ended by themselves: {', '.join(ended)}")
            await asyncio.sleep(min(COUNT_EVERY_SECONDS, left))
        return counts

    def _counts(self) -> dict[str, int]:
        waiting = func.count().filter(Job.status == "queued")
        busy = func.count().filter(Job.status == "running")
        with self._servers.database.read() as session:
            live = Job.status.in_(("queued", "running"))
            row = session.execute(select(waiting, busy).where(live)).one()
        return {"queued": row[0], "running": row[1]}

    async def _trim(self) -> None:
        """Cancel the newest waiting jobs, down to the size of the queue plus the free CPUs."""
        free = RUNNING - self._counts()["running"]
        await asyncio.to_thread(_cancel_newest, self._servers.database, self._queued + free)
        await asyncio.sleep(2)


def _cancel_newest(database: Database, most: int) -> None:
    with database.read() as session:
        waiting = session.scalars(
            select(Job.id).where(Job.status == "queued", Job.tenant == TENANT).order_by(Job.id)
        ).all()
    surplus = list(waiting[most:])
    while surplus:
        with database.write() as session:
            for job_id in surplus[:50]:
                lifecycle.request_cancel(session, job_id)
        del surplus[:50]


def _difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value - before.get(name, 0.0), 3) for name, value in after.items()}


def costs(phases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the processor seconds of a scrape, start, heartbeat and report, and what numbers of running jobs need.

    The dispatcher works in rounds, whatever arrives: of it the processor time per second and per start.
    """

    def used(phase: str, process: str) -> float:
        return float(phases[phase]["processor_seconds"].get(process, 0.0))

    def count(phase: str, kind: str) -> int:
        return int(phases[phase]["requests"][kind]["count"])

    found: dict[str, Any] = {}
    for process in ("api", "database"):
        beat = used("heartbeats", process) / count("heartbeats", "worker heartbeat")
        reports = used("steady", process) - beat * count("steady", "worker heartbeat")
        found[process] = {
            "scrape": used("scrapes", process) / count("scrapes", "watch: prometheus"),
            "start": used("starts", process) / RUNNING,
            "heartbeat": beat,
            "report": reports / count("steady", "worker metrics"),
        }
    found["cores"] = {
        jobs: {
            process: round(
                jobs
                * (
                    each["heartbeat"] * HEARTBEATS_PER_SECOND
                    + each["report"] / REPORT_SECONDS
                    + each["start"] * STARTS_PER_JOB_SECOND
                ),
                2,
            )
            for process, each in found.items()
        }
        for jobs in SIZES
    }
    found["dispatcher"] = {
        "start": used("starts", "dispatcher") / RUNNING,
        "second": used("steady", "dispatcher") / float(phases["steady"]["seconds"]),
    }
    return found


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a phase combined, ready for JSON."""
    seconds = sum(part["seconds"] for part in parts)
    tallies: dict[str, Tally] = {}
    for part in parts:
        for kind, tally in part["tallies"].items():
            whole = tallies.setdefault(kind, Tally())
            whole.seconds += tally.seconds
            whole.statuses += tally.statuses
    lists = [tally for kind, tally in tallies.items() if kind.startswith("list: ")]
    if lists:
        every = Tally()
        for tally in lists:
            every.seconds += tally.seconds
            every.statuses += tally.statuses
        tallies["list"] = every
    stored = tallies["worker metrics"].statuses["204"] if "worker metrics" in tallies else 0
    rounds = [seconds for part in parts for seconds in part["rounds"]]
    counts = [one for part in parts for one in part["counts"]]
    used = Counter[str]()
    for part in parts:
        used.update(part["processor_seconds"])
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": dict(used),
        "points_per_second": round(stored * POINTS_PER_REPORT / seconds, 1),
        "requests": {kind: tally.summary() for kind, tally in sorted(tallies.items())},
        "dispatcher_rounds": {"count": len(rounds), **percentiles(rounds)},
        **{
            state: {"least": min(x[state] for x in counts), "most": max(x[state] for x in counts)}
            for state in ("queued", "running")
        },
    }


def verdict(phases: dict[str, dict[str, Any]], trouble: dict[str, Any]) -> dict[str, bool]:
    """Return for each limit whether it is met."""
    statuses = {
        status
        for phase in phases.values()
        for kind in phase["requests"].values()
        for status in kind["statuses"]
    }
    submit = phases["submit"]["requests"]["submit"]
    lists = [
        kind for name, kind in phases["listing"]["requests"].items() if name.startswith("list")
    ]
    return {
        f"submit_p99_at_most_{SUBMIT_LIMIT_MS:g}_ms": submit["p99_ms"] <= SUBMIT_LIMIT_MS
        and submit["statuses"].keys() == {"201"},
        f"every_list_p99_at_most_{LISTING_LIMIT_MS:g}_ms": all(
            kind["p99_ms"] <= LISTING_LIMIT_MS and kind["statuses"].keys() == {"200"}
            for kind in lists
        ),
        # Nearly all that are sent: jobs end and start, so slightly fewer than 100 for each of 50.
        "points_as_sent": phases["steady"]["points_per_second"] >= 0.95 * POINTS_LIMIT
        and phases["steady"]["requests"]["worker metrics"]["statuses"].keys() == {"204"},
        "no_5xx": all(status.isdigit() and not status.startswith("5") for status in statuses),
        "no_lock_error": trouble["lock_errors"] == 0 and trouble["error_lines"] == 0,
    }


async def run(
    servers: Servers, token: str, job_ids: list[str], options: argparse.Namespace
) -> Load:
    """Run all phases."""
    tallies = Tallies()
    async with Sender(servers.url, tallies) as sender:
        people = People(sender, token, job_ids, first=options.jobs + 10 * options.queued)
        load = Load(
            servers,
            people,
            tallies,
            options.job_seconds,
            options.queued,
            options.submits_per_second,
        )
        await load.submits("submit")
        await load.lists("listing")
        await load.scrapes("scrapes")
        await load.starts()
        await load.steady("heartbeats", reporting=False)
        await load.steady("steady", reporting=True)
        await load.submits("submit together")
        await load.lists("listing together")
        if options.minutes:
            await load.mixed(options.minutes)
        return load


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), required=True)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="duration of the mixed phase; 0: skip it"
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="number of finished jobs")
    parser.add_argument("--queued", type=int, default=1000, help="number of waiting jobs")
    parser.add_argument(
        "--submits-per-second", type=float, default=100.0, help="rate of each burst of submissions"
    )
    parser.add_argument("--job-seconds", type=float, default=60.0, help="duration of a job")
    parser.add_argument(
        "--beside", default="nothing", help="what else runs on the machine, for the results"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # Otherwise the servers would outlive this process and disturb the next measurement.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    output = options.output or RESULTS / f"load-{options.database}.json"
    facts = machine("sqlalchemy", "fastapi", "uvicorn", "pydantic", "psycopg")
    with (
        tempfile.TemporaryDirectory(prefix="dasl-bench-") as name,
        database_of(options.database, Path(name)) as (url, server_logs, server),
    ):
        upgrade(url)
        home = Path(name) / "home"  # Images below it would be refused.
        home.mkdir()
        settings = Settings(home=home, database_url=url, port=0)
        database = Database(url)
        facts["database"] = database_version(database)
        began = time.monotonic()
        token, job_ids = write_history(
            database, Path(name) / "images", options.jobs, options.queued + RUNNING
        )
        print(f"History written in {time.monotonic() - began:.0f} s", flush=True)
        with serving(settings, database, server_logs, server, options.job_seconds) as servers:
            # Pauses of this process would be charged to the service.
            freeze_garbage_collection()
            load = asyncio.run(run(servers, token, job_ids, options))
            trouble = servers.trouble()
        database.dispose()
    limits = verdict(load.phases, trouble)
    result = {
        "jobs": options.jobs,
        "queued": options.queued,
        "submits_per_second": options.submits_per_second,
        "costs": costs(load.phases),
        "phases": load.phases,
        "logs": trouble,
        "limits": limits,
        "within_limits": all(limits.values()),
    }
    show(result)
    write_results(output, {"machine": facts | {"beside": options.beside}, "result": result})
    return 0 if result["within_limits"] else 1


def show(result: dict[str, Any]) -> None:
    """Print a table."""
    table = Table(title="Milliseconds from when a request was due to its answer")
    for heading in ("phase", "request", "count", "p50", "p99", "max", "statuses"):
        table.add_column(heading, justify="left" if heading in ("phase", "request") else "right")
    measured = {name: each for name, each in result["phases"].items() if name != "starts"}
    for phase, figures in measured.items():
        rows = {**figures["requests"], "dispatcher's round": figures["dispatcher_rounds"]}
        for kind, row in rows.items():
            times = [str(row.get(f"{which}_ms", "")) for which in ("p50", "p99", "max")]
            statuses = " ".join(f"{s}: {n}" for s, n in row.get("statuses", {}).items())
            table.add_row(phase, kind, str(row["count"]), *times, statuses)
    Console(width=140).print(table)
    for phase, figures in measured.items():
        counts = {name: figures[name] for name in ("points_per_second", "queued", "running")}
        print(phase, counts)
    print(result["logs"], result["limits"])
    print(json.dumps(result["costs"], indent=2))


if __name__ == "__main__":
    raise SystemExit(main())
