"""Data sets that are added on the page: by a path, or sent from the computer of the browser."""

from __future__ import annotations

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
STORAGE_FULL = {
    "type": "storage-full",
    "title": "Storage full",
    "status": 507,
    "detail": "No room.",
}
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
    dataset = expect_whole(opened.page, busy, "my birds")
    with tarfile.open(stored(dataset)) as tar:
        found = {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    assert found == files
    command = FolderContent(folder)
    assert command.num_images == len(found)
    (tmp_path / "command.tar").write_bytes(command.read(0, command.size))
    with tarfile.open(tmp_path / "command.tar") as tar:
        assert tar.getnames() == list(found)


@pytest.mark.slow
def test_lost_connection_is_restored(opened: Watched, busy: BusyService, tmp_path: Path) -> None:
    folder = tmp_path / "restored"
    files = write(folder, LARGE)

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    opened.page.route("**/content", lose_the_answer, times=1)
    dataset = expect_whole(upload(opened, folder), busy, "restored")
    with tarfile.open(stored(dataset)) as tar:
        assert {each.name: tar.extractfile(each).read() for each in tar} == files  # type: ignore[union-attr]
    opened.problems = [each for each in opened.problems if "ERR_FAILED" not in each]


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
    opened.refused = {409}
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
def test_upload_stopped_by_a_full_disk_says_why(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    opened.refused = {507}
    folder = tmp_path / "no-room"
    write(folder, SMALL)
    opened.page.route(
        "**/content", lambda route: route.fulfill(status=507, json=STORAGE_FULL), times=1
    )
    page = upload(opened, folder)
    stopped = page.get_by_role("alert").filter(has_text="The upload stopped")
    expect(stopped).to_contain_text("No room.")
    stopped.get_by_role("button", name="Resume").click()
    expect_whole(page, busy, "no-room")


@pytest.mark.slow
def test_retried_chunk_says_why(opened: Watched, busy: BusyService, tmp_path: Path) -> None:
    opened.refused = {503}
    write(tmp_path / "store-away", SMALL)
    detail = "The artifact store does not answer."
    problem = {"type": "store-unavailable", "title": "Store", "status": 503, "detail": detail}
    opened.page.route("**/content", lambda route: route.fulfill(status=503, json=problem))
    page = upload(opened, tmp_path / "store-away")
    expect(page.get_by_text(f"Retrying after an error: {detail}")).to_be_visible()
    page.unroute("**/content")
    expect_whole(page, busy, "store-away")


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
def test_upload_resumes_if_its_data_set_was_not_removed(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    write(tmp_path / "kept", SMALL)
    opened.page.route("**/content", lambda route: None)
    page = upload(opened, tmp_path / "kept")
    page.unroute("**/content")
    page.route("**/v1/datasets/*", lambda route: route.abort(), times=1)
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect_whole(page, busy, "kept")
    opened.problems = [each for each in opened.problems if "ERR_FAILED" not in each]


@pytest.mark.slow
def test_removed_data_set_is_not_sent_any_more(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    write(tmp_path / "removed", SMALL)
    opened.page.route("**/content", lambda route: None)
    page = upload(opened, tmp_path / "removed")
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", name="Data sets", level=1)).to_be_visible()
    assert list(busy.client.datasets.list(name="removed")) == []


@pytest.mark.slow
def test_archive_is_sent_as_it_is(opened: Watched, busy: BusyService, tmp_path: Path) -> None:
    (content,) = write(tmp_path, {"größe 1.ZIP": 700}).values()
    dialog = choose(opened, files=[tmp_path / "größe 1.ZIP"])
    expect(dialog.get_by_role("status")).to_have_text("gr__e_1.ZIP, 700 B.")
    dialog.get_by_label("Name").fill("zipped")
    dialog.get_by_role("button", name="Upload").click()
    dataset = expect_whole(opened.page, busy, "zipped")
    assert stored(dataset).read_bytes() == content


@pytest.mark.slow
def test_upload_of_an_archive_does_not_resume_with_another_one(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    opened.refused = {409, 507}
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
def test_several_images_are_sent(opened: Watched, busy: BusyService, tmp_path: Path) -> None:
    write(tmp_path, {"2.png": 10, "1.png": 20})
    dialog = choose(opened, files=[tmp_path / "2.png", tmp_path / "1.png"])
    dialog.get_by_label("Name").fill("two images")
    dialog.get_by_role("button", name="Upload").click()
    with tarfile.open(stored(expect_whole(opened.page, busy, "two images"))) as tar:
        assert tar.getnames() == ["1.png", "2.png"]


@pytest.mark.slow
def test_choice_without_images_is_refused(opened: Watched, tmp_path: Path) -> None:
    write(tmp_path / "texts", {"notes.txt": 1, ".0.png": 1})
    dialog = choose(opened, folder=tmp_path / "texts")
    expect(dialog.get_by_role("alert")).to_contain_text("No images")
    expect(dialog.get_by_role("alert")).to_contain_text("2 files, none of which is an image")
    expect(dialog.get_by_role("button", name="Upload")).to_be_disabled()
    dialog.get_by_role("button", name="Where jobs run").click()
    expect(dialog.get_by_role("alert")).to_have_count(0)


def test_folder_of_the_service_is_read_in_its_place(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    write(tmp_path / "there", SMALL)
    page = opened.open("datasets?add=1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Path or URI").fill(f"{tmp_path}/there")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("heading", name="there", level=1)).to_be_visible()
    dataset = busy.client.datasets.get("there")
    assert (dataset.uri, dataset.upload) == (f"{tmp_path}/there", None)
