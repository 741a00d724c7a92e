"""What a person does on the page in the first hour, on a real `dasl serve` that really trains."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import timm
from playwright.sync_api import Browser, Locator, Page, Response, expect
from safetensors.torch import load_file

from service.client import Client
from tests.support.polling import PATIENCE_SECONDS, until
from tests.support.running_service import serving, write_images
from tests.web.conftest import PHONE, Watched, defects, downloaded, watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# A process of Ray that imports torch takes half a minute on a busy machine.
_PATIENCE = PATIENCE_SECONDS * 1000
# Of 10 steps each. The job that is watched and paused would take longer than that on any machine.
LONG, SHORT = 5000, 10


@dataclass(frozen=True)
class Terminal:
    """A service that was started on a terminal: what it printed, and a client."""

    url: str
    address: str
    """Of the page, with a code that logs in."""
    client: Client


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A service without data sets and jobs."""
    home = tmp_path / "home"
    with (
        serving(tmp_path, home, on_terminal=True) as (_, url, token),
        Client(url, token, patience=60) as client,
    ):

        def printed() -> str | None:
            text = (tmp_path / "serve.out").read_text()
            match = re.search(r"^Page: (\S+) \(logs in once", text, flags=re.M)
            return match and match[1]

        yield Terminal(url, until(printed, "the address of the page"), client)


def test_first_hour_of_a_person(chromium: Browser, terminal: Terminal, tmp_path: Path) -> None:
    write_images(tmp_path / "shapes", 180)
    client = terminal.client
    with watched(chromium.new_context(accept_downloads=True), terminal.url) as watch:
        page = watch.page
        page.goto(terminal.address)
        run_demo(page, client)
        add_dataset(page, tmp_path / "shapes")
        submit_by_form(page)
        watch_curves(page)
        pause_and_resume(page)
        first = job_of(page)
        jobs = [clone(page, terminal, first, seed) for seed in range(2)]
        for job in jobs:
            assert client.jobs.wait(job, timeout=PATIENCE_SECONDS).status == "succeeded"
        download(page, terminal, jobs[0], tmp_path)
        look_at_pictures(page, terminal, jobs[0])
        state = page.context.storage_state()
    width, height = PHONE
    phone = chromium.new_context(
        storage_state=state,
        color_scheme="dark",
        viewport={"width": width, "height": height},
        bypass_csp=True,  # for axe
    )
    with watched(phone, terminal.url) as watch:
        check_on_a_phone(watch, jobs)


def run_demo(page: Page, client: Client) -> None:
    """Let the button of the empty page read the shipped images and submit the demo's job; cancel it."""
    page.get_by_role("button", name="Run the demo").click()
    heading = page.get_by_role("heading", name="fonts-simclr-dar", level=1)
    expect(heading).to_be_visible(timeout=_PATIENCE)
    (dataset,) = client.datasets.list()
    assert dataset.facts is not None
    assert (dataset.facts["num_images"], dataset.facts["num_classes"]) == (4080, 170)
    # Its training takes minutes.
    cancel(page)


def add_dataset(page: Page, images: Path) -> None:
    """Send a folder of images from the computer of the browser, and see it read."""
    page.get_by_role("link", name="Data sets").click()
    page.get_by_role("button", name="Add a data set").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="On this computer").click()
    dialog.get_by_label("Choose a folder").set_input_files(images)
    dialog.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("heading", name="shapes", level=1)).to_be_visible()
    expect(state_of(page)).to_have_text("ready", timeout=_PATIENCE)


def submit_by_form(page: Page) -> None:
    """Fill in the form, look at the views that the training will draw, and submit."""
    page.locator(".title-line").get_by_role("link", name="New job").click()
    essential = page.locator(".form-grid").first
    settings = {
        "name": "first",
        "backbone": "test_resnet",
        "image size": "16",
        "epochs": str(LONG),
        "batch size": "16",
        "seed": "0",
        "workers": "1",
    }
    for label, value in settings.items():
        essential.get_by_label(label, exact=True).fill(value)
    page.locator("summary", has_text=re.compile("^Job$")).click()
    page.get_by_label("tags", exact=True).fill('{"study": "seeds"}')
    page.get_by_role("button", name="Draw").click()
    views = page.get_by_role("img", name="Images, each with its views")
    expect(views).to_be_visible(timeout=_PATIENCE)
    expect(views).not_to_have_js_property("naturalWidth", 0)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="first", level=1)).to_be_visible()


def watch_curves(page: Page) -> None:
    """See the curves of a job that runs move."""
    points = [0]

    def count(response: Response) -> None:
        if re.search(r"/v1/jobs/[^/]+/metrics", response.url) and response.ok:
            points.append(points[-1] + len(response.json()["step"]))

    page.on("response", count)
    loss = page.get_by_role("img", name="Loss:")
    expect(loss).to_be_visible(timeout=_PATIENCE)
    expect(state_of(page)).to_have_text("running")
    first, shown = points[-1], loss.get_attribute("aria-label")
    drawn = page.evaluate("document.querySelector('.chart canvas').toDataURL()")
    assert first > 0
    assert shown is not None
    expect(loss).not_to_have_accessible_name(shown)
    page.wait_for_function(
        "drawn => document.querySelector('.chart canvas').toDataURL() !== drawn", arg=drawn
    )
    assert points[-1] > first
    page.remove_listener("response", count)


def pause_and_resume(page: Page) -> None:
    """Pause the job that runs, let it continue where it was, and cancel it."""
    page.get_by_role("button", name="Pause").click()
    expect(state_of(page)).to_have_text("paused", timeout=_PATIENCE)
    page.get_by_role("button", name="Resume").click()
    expect(state_of(page)).to_have_text("running", timeout=_PATIENCE)
    views = page.get_by_role("navigation", name="Views")
    expect(views.get_by_role("link", name="Attempts")).to_contain_text("2")
    views.get_by_role("link", name="Events").click()
    expect(page.get_by_text("Training resumes after step")).to_be_visible(timeout=_PATIENCE)
    cancel(page)


def cancel(page: Page) -> None:
    """Cancel the job that is shown, after the question."""
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(state_of(page)).to_have_text("cancelled", timeout=_PATIENCE)


def clone(page: Page, terminal: Terminal, job: str, seed: int) -> str:
    """Submit the job again with another seed and fewer epochs, from scratch; return the new one."""
    page.goto(f"{terminal.url}/#/jobs/{job}")
    page.get_by_role("button", name="Clone").click()
    page.get_by_label("Start from").select_option("scratch")
    essential = page.locator(".form-grid").first
    essential.get_by_label("name", exact=True).fill(f"seed-{seed}")
    essential.get_by_label("seed", exact=True).fill(str(seed))
    essential.get_by_label("epochs", exact=True).fill(str(SHORT))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name=f"seed-{seed}", level=1)).to_be_visible()
    made = terminal.client.jobs.get(job_of(page))
    assert made.spec["train"] == {"epochs": SHORT, "batch_size": 16, "seed": seed}
    assert made.spec["tags"] == {"study": "seeds"}
    return made.id


def download(page: Page, terminal: Terminal, job: str, folder: Path) -> None:
    """Download all files of the final checkpoint; they are those of its manifest, and timm loads them."""
    page.goto(f"{terminal.url}/#/jobs/{job}/checkpoints")
    final = page.get_by_role("row").filter(has_text="final")
    final.get_by_role("button", name="Files").click()
    dialog = page.get_by_role("dialog")
    (checkpoint,) = [each for each in terminal.client.jobs.checkpoints(job) if each.final]
    for file in checkpoint.files:
        saved = downloaded(page, dialog.get_by_role("link", name=file.name, exact=True))
        content = saved.read_bytes()
        (folder / file.name).write_bytes(content)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.size, file.sha256)
    model = timm.create_model("test_resnet", num_classes=0)
    model.load_state_dict(load_file(folder / "backbone.safetensors"))
    dialog.get_by_role("button", name="Close").click()


def look_at_pictures(page: Page, terminal: Terminal, job: str) -> None:
    """See neighbors, map and histograms, also of an earlier evaluation."""
    page.goto(f"{terminal.url}/#/jobs/{job}/pictures")
    found = page.locator(".neighbors > li").first.locator(".found").last
    expect(found).to_contain_text(f"Epoch {SHORT}")
    slider = page.get_by_role("slider", name="Evaluation")
    slider.fill("1")
    expect(found).to_contain_text(f"Epoch {SHORT // 10}")
    assert "at=" in page.url
    canvas = page.get_by_role("group", name="Map:").locator("canvas")
    expect(canvas).to_have_attribute("data-renderer", re.compile("webgl2|2d"))
    expect(page.get_by_role("heading", name="Distances of embeddings")).to_be_visible()


def check_on_a_phone(watch: Watched, jobs: list[str]) -> None:
    """Open the main views in the dark: nothing is cut off, and axe finds nothing serious."""
    views = {
        "jobs": "seed-0",
        f"jobs/{jobs[0]}": "Loss",
        f"jobs/{jobs[0]}/pictures": "Nearest neighbors",
        f"jobs/{jobs[0]}/checkpoints": "final",
        f"compare?jobs={','.join(jobs)}": "Newest evaluation",
        "submit": "What will run",
        "datasets": "shapes",
    }
    found: list[str] = []
    for path, text in views.items():
        page = watch.open(path)
        page.get_by_text(text).first.wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        found += defects(page)
    assert found == []


def state_of(page: Page) -> Locator:
    """Return the chip with the state of what is shown."""
    return page.locator(".title-line .chip")


def job_of(page: Page) -> str:
    """Return the id of the job that is shown."""
    match = re.search(r"#/jobs/(job_\w+)", page.url)
    assert match is not None
    return match[1]
