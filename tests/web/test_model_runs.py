"""Finished models at work, and what happens between the first list and the stream of events."""

import base64
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect

from service.client import WorkerClient
from service.protocol import QueryAnswer, SearchStart
from service.tasks.repository import searches
from service.wire.model_runs import NeighborEntry
from tests.support.busy_service import BusyService
from tests.support.polling import until
from tests.web.conftest import Watched, downloaded


def runs(page: Page) -> Locator:
    return page.get_by_role("region", name="Runs of the model")


def final_checkpoint(busy: BusyService, job: str) -> str:
    (final,) = [each.id for each in busy.client.jobs.checkpoints(busy.jobs[job]) if each.final]
    return final


@pytest.mark.slow
def test_runs_show_progress_results_files_and_errors(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['baseline']}/checkpoints")
    rows = runs(page).get_by_role("row")
    expect(rows.filter(has_text="features")).to_contain_text("45 %")
    expect(rows.filter(has_text="evaluation")).to_contain_text(
        "k-NN top-1 58.0 % (raw pixels 22.0 %), R@1 of views 52.0 % (raw pixels 47.0 %), effective rank 41.23"
    )
    expect(rows.filter(has_text="export")).to_contain_text("Choose onnx")
    embedding = rows.filter(has_text="640 images, 512 numbers each").get_by_role("link")
    assert downloaded(page, embedding).stat().st_size == 3000


@pytest.mark.slow
def test_embedding_and_export_are_requested_and_deleted(opened: Watched, busy: BusyService) -> None:
    opened.provoked = {422}
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/checkpoints")
    page.get_by_role("button", name="Embed").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Features").select_option("cls")
    dialog.get_by_role("button", name="Embed").click()
    expect(dialog.get_by_role("alert")).to_contain_text("class token")
    dialog.get_by_label("Features").select_option("pooled")
    dialog.get_by_label("Numbers").select_option("float16")
    dialog.get_by_label("Scale each vector").check()
    dialog.get_by_role("button", name="Embed").click()
    row = runs(page).get_by_role("row").filter(has_text="embedding")
    expect(row).to_contain_text("pooled, parquet, float16, normalized")
    expect(row).to_contain_text("queued")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_role("dialog").get_by_label("Also train a linear probe").check()
    page.get_by_role("dialog").get_by_role("button", name="Evaluate").click()
    expect(runs(page).get_by_role("row").filter(has_text="evaluation")).to_contain_text("birds v1")
    final = final_checkpoint(busy, "with-dar")
    (run,) = busy.client.checkpoints.runs(final, "evaluations")
    assert run.settings["linear"]["epochs"] == 100
    busy.client.model_runs.delete(run.id)


@pytest.mark.slow
def test_neighbors_need_an_embedding(opened: Watched, busy: BusyService) -> None:
    opened.provoked = {409}
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/checkpoints")
    page.get_by_role("button", name="Neighbors").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Or the key").fill("avocet/0000.png")
    dialog.get_by_role("button", name="Search").click()
    expect(dialog.get_by_role("alert")).to_contain_text("embed")
    dialog.get_by_role("button", name="Embed a data set").click()
    expect(page.get_by_role("dialog", name="Embed a data set")).to_be_visible()


@pytest.mark.slow
def test_neighbors_of_a_key_and_of_a_file(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    page = opened.open(f"jobs/{busy.jobs['baseline']}/checkpoints")
    page.get_by_role("button", name="Neighbors").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Or the key").fill("avocet/0000.png")
    dialog.get_by_role("button", name="Search").click()
    worker = search_of(busy)
    (query,) = until(lambda: worker.search_queries([]).queries or None, "the question")
    assert (query.key, query.k) == ("avocet/0000.png", 12)
    found = [("avocet/0009.png", "avocet", 0.93), ("elsewhere/1.png", None, 0.5)]
    neighbors = [NeighborEntry(key=key, label=label, similarity=near) for key, label, near in found]
    worker.search_queries([QueryAnswer(id=query.id, neighbors=neighbors)])
    rows = dialog.get_by_role("list", name="Neighbors").get_by_role("listitem")
    expect(rows).to_have_count(2)
    # This one is on the job's map.
    expect(rows.first.get_by_role("img")).to_be_visible()
    expect(rows.first).to_contain_text("0.93")
    expect(dialog).to_contain_text("The most similar first, with their cosine similarity")
    expect(rows.last.get_by_role("img")).to_have_count(0)
    Image.new("RGB", (9, 9), "red").save(tmp_path / "photo.png")
    dialog.get_by_label("An image of this machine").set_input_files(tmp_path / "photo.png")
    dialog.get_by_role("button", name="Search").click()
    (query,) = until(lambda: worker.search_queries([]).queries or None, "the question")
    assert query.image is not None
    assert base64.b64decode(query.image) == (tmp_path / "photo.png").read_bytes()
    worker.search_queries([QueryAnswer(id=query.id, neighbors=neighbors[1:])])
    expect(rows).to_have_count(1)


def search_of(busy: BusyService) -> WorkerClient:
    """Start the search that the question has added, once it is there."""

    def pending() -> str | None:
        with busy.service.database.read() as session:
            search = searches.pending(session, busy.embedding)
            return None if search is None else search.id

    worker = busy.service.start_task(searches, until(pending, "the search"))
    worker.task_start(SearchStart)
    return worker


@pytest.mark.slow
def test_nothing_between_the_first_list_and_the_stream_is_missed(
    opened: Watched, busy: BusyService
) -> None:
    held: list[Route] = []
    opened.page.route("**/v1/events*", lambda route: held.append(route))
    page = opened.open("jobs")
    expect(page.get_by_role("link", name="baseline")).to_be_visible()
    while not held:
        page.wait_for_timeout(20)
    job = busy.submit("meanwhile")
    held[0].continue_()
    expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
    busy.client.jobs.cancel(job)
