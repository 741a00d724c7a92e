"""Take the pictures of the page in the README and the docs: ``python -m tools.page_pictures``.

A service trains the demo's job on the images that come with DASL, without a regularizer, with DAR and with SEC, and
Chromium opens its page. It takes a quarter of an hour on two cores.
"""

import argparse
import io
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from service.client import Client
from service.client.sync.models import Job
from tests.support.running_service import serving

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SECONDS = 3600
# DAR and SEC have their default shares.
VARIANTS: dict[str, dict[str, Any]] = {
    "simclr": {"dar": None},
    "simclr-dar": {},
    "simclr-sec": {"dar": None, "sec": {}},
}
# They wait, run or have failed while the pictures are taken.
OTHERS: dict[str, dict[str, Any]] = {
    "byol": {"method": {"name": "byol"}, "dar": None},
    "vicreg": {"method": {"name": "vicreg"}, "dar": None},
    "dino": {"method": {"name": "dino"}, "dar": None},
}


def main() -> int:
    """Train, take the pictures, and write them to docs/images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("chromium is not installed: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, folder / "home") as (_, url, token), Client(url, token) as client:
            spec = _demo(url, token) | {"tags": {"study": "regularizers"}}
            spec["train"]["epochs"] = options.epochs
            jobs = [
                client.jobs.submit(spec | {"name": name} | changes)
                for name, changes in VARIANTS.items()
            ]
            jobs = [job.wait(timeout=SECONDS) for job in jobs]
            for name, changes in OTHERS.items():
                client.jobs.submit(spec | {"name": name, "tags": {}} | changes)
            _until_one_trains(client)
            _take(chromium, url, token, jobs)
            for job in client.jobs.list():
                if job.finished_at is None:
                    client.jobs.cancel(job.id)
    return 0


def _demo(url: str, token: str) -> dict[str, Any]:
    """Register the images that come with DASL; return the spec of the demo's job."""
    headers = {"Authorization": f"Bearer {token}"}
    while True:
        answer = httpx.post(f"{url}/v1/demo", headers=headers, timeout=60, trust_env=False)
        demo = answer.raise_for_status().json()
        if demo["dataset"]["state"] == "ready":
            spec: dict[str, Any] = demo["spec"]
            return spec
        time.sleep(1)


def _until_one_trains(client: Client) -> None:
    deadline = time.monotonic() + SECONDS
    while not any(job.progress and job.progress.step for job in client.jobs.list(status="running")):
        if time.monotonic() > deadline:
            raise TimeoutError("no job trains")
        time.sleep(0.5)


def _take(chromium: str, url: str, token: str, jobs: list[Job]) -> None:
    plain, dar, _ = jobs
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--use-angle=swiftshader",
                "--enable-unsafe-swiftshader",
            ],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="DASL: jobs").wait_for()
        for name, path, content, height in (
            ("page-jobs", "jobs", page.get_by_role("link", name="simclr-dar"), 430),
            ("page-job", f"jobs/{dar.id}", page.get_by_role("img", name="Recall at K:"), 860),
            (
                "page-compare",
                f"compare?jobs={plain.id},{dar.id}",
                page.get_by_role("img", name="loss:"),
                860,
            ),
            (
                "page-pictures",
                f"jobs/{dar.id}/pictures",
                page.locator(".neighbors .is-right").first,
                860,
            ),
        ):
            page.set_viewport_size({"width": 1280, "height": height})
            page.goto(f"{url}/#/{path}")
            content.wait_for()
            page.locator(".spinner").wait_for(state="hidden")
            _save(page, name)
        browser.close()


def _save(page: Page, name: str) -> None:
    """Write a picture of what is shown, in 256 colors."""
    shown = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    few = shown.quantize(256, dither=Image.Dither.NONE)
    few.save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    raise SystemExit(main())
