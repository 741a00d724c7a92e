"""Data sets that are added on the page: by a path, or sent from the computer of the browser."""

import os
import random
import re
import tarfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Dialog, Locator, Page, Route, expect

from service.client.models import DatasetRecord
from service.client.packing import FolderContent
from tests.support.busy_service import BusyService
from tests.web.conftest import Watched

SMALL = {
    "Bittern/1.JPG": 700,
    f"avocet/{'ü' * 60}.png": 512,
    f"avocet/{'long-' * 20}.png": 1,
    "avocet/empty.png": 0,
    "cover.png": 1500,
}
STORAGE_FULL = {"type": "storage-full", "title": "Full", "status": 507, "detail": "No room."}
# Two chunks.
LARGE = {"a/0.png": 5_000_000, "b/0.png": 4_000_000}


def write(folder: Path, sizes: dict[str, int]) -> dict[str, bytes]:
    """Write files with other bytes each, and return them."""
    files = {name: random.Random(name).randbytes(size) for name, size in sizes.items()}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def choose(
    opened: Watched, *, folder: Path | None = None, files: list[Path] | None = None
) -> Locator:
    """Open the dialog and choose images of this computer."""
    page = opened.open("datasets?add=1")
    dialog = page.get_by_role("dialog", name="Add a data set")
    dialog.get_by_role("button", name="On this computer").click()
    if folder is not None:
        dialog.get_by_label("Choose a folder").set_input_files(folder)
    else:
        dialog.get_by_label("Choose files").set_input_files(files or [])
    return dialog


def upload(opened: Watched, folder: Path) -> Page:
    """Upload a folder under its name, and see its page."""
    choose(opened, folder=folder).get_by_role("button", name="Upload").click()
    expect(opened.page.get_by_role("heading", name=folder.name, level=1)).to_be_visible()
    return opened.page


def expect_whole(page: Page, busy: BusyService, name: str) -> DatasetRecord:
    """Wait until the service has all of an upload."""
    expect(page.get_by_text("Its images will be checked and read.")).to_be_visible()
    dataset = busy.client.datasets.get(name)
    assert dataset.upload is not None
    assert dataset.upload.received == dataset.upload.size
    return dataset


def stored(dataset: DatasetRecord) -> Path:
    """The file that the service has, before its dispatcher gives it its name."""
    (file,) = Path(unquote(urlsplit(dataset.uri).path)).parent.iterdir()
    return file


def sent(dataset: DatasetRecord) -> dict[str, bytes]:
    """The images that the service has, in their order."""
    with tarfile.open(stored(dataset)) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]


@pytest.mark.slow
def test_folder_is_sent_as_the_command_sends_it(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    folder = tmp_path / "my birds"
    files = write(folder, SMALL)
    write(folder, {"notes.txt": 10, "png": 10, ".cache/0.png": 10, "avocet/.0.png": 10})
    dialog = choose(opened, folder=folder)
    expect(dialog.get_by_role("status")).to_have_text(
        re.compile(r"^my birds: 5 images, .* left out\.$")
    )
    dialog.get_by_role("button", name="Upload").click()
    found = sent(expect_whole(opened.page, busy, "my birds"))
    assert found == files
    command = FolderContent(folder)
    assert command.num_images == len(found)
    (tmp_path / "command.tar").write_bytes(command.read(0, command.size))
    with tarfile.open(tmp_path / "command.tar") as tar:
        assert tar.getnames() == list(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(0, "", id="lost answer"),
        pytest.param(503, "Retrying after an error: No room.", id="retried"),
        pytest.param(507, "The upload stopped", id="stopped"),
    ],
)
def test_interrupted_upload_says_why_and_is_completed(
    opened: Watched, busy: BusyService, tmp_path: Path, status: int, words: str
) -> None:
    opened.provoked = {503, 507, "ERR_FAILED"}
    folder = tmp_path / f"interrupted-{status}"
    files = write(folder, LARGE)

    def interrupt(route: Route) -> None:
        if status:
            route.fulfill(status=status, json={**STORAGE_FULL, "status": status})
        else:
            route.fetch()
            route.abort()

    opened.page.route("**/content", interrupt, times=None if status == 503 else 1)
    page = upload(opened, folder)
    if words:
        expect(page.get_by_text(words)).to_be_visible()
        expect(page.get_by_text("No room.")).to_be_visible()
    if status == 503:
        page.unroute("**/content")
    if status == 507:
        page.get_by_role("alert").get_by_role("button", name="Resume").click()
    assert sent(expect_whole(page, busy, folder.name)) == files


@pytest.mark.slow
def test_upload_resumes_when_the_same_files_are_chosen(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    folder = tmp_path / "continued"
    write(folder, LARGE)
    asked: list[str] = []

    def leave(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    opened.page.on("dialog", leave)
    first = 8 << 20

    def only_the_first(route: Route) -> None:
        if route.request.headers["content-range"].startswith("bytes 0-"):
            route.continue_()

    opened.page.route("**/content", only_the_first)
    page = upload(opened, folder)
    expect(page.get_by_text("8.39 MB of 9.00 MB")).to_be_visible()
    expect(page.get_by_text("Keep this page open")).to_be_visible()
    page.reload()
    assert asked == ["beforeunload"]
    expect(page.get_by_text("This tab is not uploading.")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "93")
    page.unroute("**/content")

    # Other files are not mixed with these.
    opened.provoked = {409}
    write(folder, {"c/0.png": 1})
    dialog = choose(opened, folder=folder)
    dialog.get_by_role("button", name="Upload").click()
    expect(dialog.get_by_role("alert")).to_contain_text("unfinished upload of continued has other")
    (folder / "c/0.png").unlink()

    with page.expect_request("**/content") as request:
        upload(opened, folder)
        expect(page.get_by_text("with its original split and labels")).to_be_visible()
    assert request.value.headers["content-range"].startswith(f"bytes {first}-")
    expect_whole(page, busy, "continued")


@pytest.mark.slow
def test_file_that_changes_ends_the_upload(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    folder = tmp_path / "changing"
    write(folder, LARGE)

    def change(route: Route) -> None:
        with (folder / "b/0.png").open("ab") as file:
            file.write(b"more")
        route.continue_()

    opened.page.route("**/content", change, times=1)
    page = upload(opened, folder)
    stopped = page.get_by_role("alert").filter(has_text="The upload stopped")
    expect(stopped).to_contain_text("A file has changed or is gone")


@pytest.mark.slow
@pytest.mark.parametrize("is_removed", [True, False])
def test_upload_ends_only_if_its_data_set_is_removed(
    opened: Watched, busy: BusyService, tmp_path: Path, is_removed: bool
) -> None:
    opened.provoked = {"ERR_FAILED"}
    name = "removed" if is_removed else "kept"
    write(tmp_path / name, SMALL)
    opened.page.route("**/content", lambda route: None)
    page = upload(opened, tmp_path / name)
    page.unroute("**/content")
    if not is_removed:
        page.route("**/v1/datasets/*", lambda route: route.abort(), times=1)
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    if is_removed:
        expect(page.get_by_role("heading", name="Data sets", level=1)).to_be_visible()
        assert list(busy.client.datasets.list(name=name)) == []
    else:
        expect_whole(page, busy, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        pytest.param({"größe 1.ZIP": 700}, "gr__e_1.ZIP, 700 B.", id="archive"),
        pytest.param({"2.png": 10, "1.png": 20}, "2 images, 3.07 kB.", id="images"),
    ],
)
def test_chosen_files_are_sent(
    opened: Watched, busy: BusyService, tmp_path: Path, sizes: dict[str, int], says: str
) -> None:
    files, name = write(tmp_path, sizes), f"{len(sizes)} chosen"
    dialog = choose(opened, files=[tmp_path / name for name in files])
    expect(dialog.get_by_role("status")).to_have_text(says)
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_role("button", name="Upload").click()
    dataset = expect_whole(opened.page, busy, name)
    if len(files) > 1:
        assert list(sent(dataset)) == sorted(files)
    else:
        assert [stored(dataset).read_bytes()] == list(files.values())


@pytest.mark.slow
def test_upload_of_an_archive_does_not_resume_with_another_one(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    opened.provoked = {409, 507}
    for name in ("a.npy", "b.npy"):
        write(tmp_path, {name: 100})
        os.utime(tmp_path / name, (1e9, 1e9))
        opened.page.route("**/content", lambda route: route.fulfill(status=507, json=STORAGE_FULL))
        dialog = choose(opened, files=[tmp_path / name])
        dialog.get_by_label("Name").fill("one array")
        dialog.get_by_role("button", name="Upload").click()
        if name == "a.npy":
            expect(opened.page.get_by_text("The upload stopped")).to_be_visible()
    expect(dialog.get_by_role("alert")).to_contain_text("unfinished upload of one array has other")


@pytest.mark.slow
def test_choice_without_images_is_refused(opened: Watched, tmp_path: Path) -> None:
    write(tmp_path / "texts", {"notes.txt": 1, ".0.png": 1})
    dialog = choose(opened, folder=tmp_path / "texts")
    expect(dialog.get_by_role("alert")).to_contain_text("No images")
    expect(dialog.get_by_role("alert")).to_contain_text("2 files, none of which is an image")
    expect(dialog.get_by_role("button", name="Upload")).to_be_disabled()
    dialog.get_by_role("button", name="Where jobs run").click()
    expect(dialog.get_by_role("alert")).to_have_count(0)
