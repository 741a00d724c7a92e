"""First paint of the page: ``python -m benchmarks.page``.

Chromium opens the list with very many jobs, and a job with very many metric points, with an empty cache and then again:
seconds until the first row, or the first curve, is drawn, bytes that went over the network, and the largest number of
points of a series that the page holds. The database is SQLite, and the API runs in this process.
"""

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from playwright.sync_api import BrowserContext, Response, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine, write_results
from tests.support.api_server import running_service
from tests.support.busy_service import BusyService, add_jobs, add_points
from tests.support.running_service import write_images

RESULTS = Path(__file__).parent / "results" / "page.json"
LIMIT_SECONDS = 3.0
"""Of the list; the curves of a job wait for one pass over all of its points."""
LIMIT_POINTS = 5000
SERIES = ("loss", *(f"series_{number:02}" for number in range(1, 18)))
CURVE = ".u-over"
ROW = ".tbody [role=row]"


@dataclass
class Paint:
    """A view that was opened once."""

    view: str
    cache: str
    seconds: float
    bytes: int
    points: int
    """The largest number of steps of an answer with metrics."""


def main() -> int:
    """Run, print a table and write the results; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "birds", 16)
        with running_service(Path(folder) / "home") as service:
            busy = BusyService(service, Path(folder) / "birds")
            busy.finished("long", seed=0, gain=0)
            job = busy.jobs["long"]
            add_jobs(service.database, job, options.jobs)
            add_points(service.database, job, options.points // len(SERIES), SERIES)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
                )
                paints = []
                for view, path, drawn in (
                    (f"list of {options.jobs:,} jobs", "jobs", ROW),
                    (f"job with {options.points:,} points", f"jobs/{job}", CURVE),
                ):
                    # A context each, for an empty cache.
                    context = browser.new_context(viewport={"width": 1280, "height": 860})
                    token = {"token": service.token}
                    csrf = context.request.post(f"{service.url}/v1/session", data=token).json()
                    context.add_init_script("localStorage.setItem('dasl-session', '1')")
                    assert csrf["csrf"]
                    address = f"{service.url}/#/{path}"
                    paints += [
                        paint(context, view, cache, address, drawn) for cache in ("empty", "full")
                    ]
                    context.close()
                browser.close()
    table = Table("view", "cache", "seconds", "kB", "points of a series")
    for each in paints:
        table.add_row(
            each.view,
            each.cache,
            f"{each.seconds:.2f}",
            f"{each.bytes / 1000:,.0f}",
            f"{each.points:,}",
        )
    Console().print(table)
    write_results(RESULTS, {"machine": machine(), "paints": [asdict(each) for each in paints]})
    is_slow = any(each.seconds > LIMIT_SECONDS for each in paints if "list" in each.view)
    return int(is_slow or any(each.points > LIMIT_POINTS for each in paints))


def paint(context: BrowserContext, view: str, cache: str, address: str, drawn: str) -> Paint:
    """Open a view and wait until it is drawn."""
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    sizes: list[int] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    metrics: list[Response] = []
    page.on("response", lambda answer: metrics.append(answer) if "/metrics" in answer.url else None)
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(drawn)
    seconds = time.perf_counter() - began
    page.wait_for_timeout(1000)
    points = max((len(json.loads(each.body())["step"]) for each in metrics), default=0)
    page.close()
    return Paint(view, cache, round(seconds, 3), int(sum(sizes)), points)


if __name__ == "__main__":
    raise SystemExit(main())
