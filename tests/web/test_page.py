"""What a person does on the page."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from service.client import Client
from service.tokens import service as tokens
from tests.support.api_server import BELOW, REPORT
from tests.support.busy_service import BusyService
from tests.support.training_reports import FINAL_STEP
from tests.web.conftest import Watched, downloaded, log_in, watched
from workers.rank import job_page


def test_wrong_token_is_refused_in_words(stranger: Watched) -> None:
    stranger.provoked = {401}
    page = stranger.page
    page.goto(stranger.origin)
    page.get_by_label("Token").fill("dasl_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("token")


def test_log_in_and_out(stranger: Watched, busy: BusyService) -> None:
    page = stranger.page
    log_in(page, busy.service.url, busy.service.token)
    # The secret is nowhere that scripts can read.
    kept = page.evaluate(
        "JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie"
    )
    assert busy.service.token not in kept
    page.reload()
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    # A request that is under way would be refused after the end of the session.
    page.wait_for_load_state("networkidle")
    page.get_by_role("button", name="Session").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.slow
def test_page_works_below_a_path(chromium: Browser, busy: BusyService) -> None:
    """Each request that leaves the path is a problem of `Watched`."""
    with watched(chromium.new_context(), f"{busy.service.url}{BELOW}") as watch:
        log_in(watch.page, f"{watch.origin}/", busy.service.token)
        page = watch.open(f"jobs/{busy.jobs['with-dar']}/checkpoints")
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        page.get_by_role("row").nth(1).get_by_role("button", name="Files").click()
        link = page.get_by_role("dialog").get_by_role("link", name="backbone.safetensors")
        assert downloaded(page, link).stat().st_size == 2000
        addressed = (
            "() => [...document.querySelectorAll('a[download], img')].map(x => x.href ?? x.src)"
        )
        for view in ("files", "log", "pictures"):
            watch.open(f"jobs/{busy.jobs['with-dar']}/{view}")
            page.wait_for_load_state("networkidle")
            addresses = page.evaluate(addressed)
            assert all(address.startswith(f"{watch.origin}/v1/") for address in addresses)
        page.reload()
        expect(page.get_by_role("button", name="Session")).to_be_visible()
        assert [it["path"] for it in page.context.cookies()] == [f"{BELOW}/v1"]


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True], ids=["new page", "open page"])
def test_login_code_opens_a_session_and_leaves_the_address(
    stranger: Watched, busy: BusyService, is_open: bool
) -> None:
    code = busy.client._transport.json("POST", "/v1/session/codes", body={})["code"]
    page = stranger.page
    if is_open:
        page.goto(stranger.origin)
        expect(page.get_by_label("Token")).to_be_visible()
    # In an open page, only the hash changes: the document is not loaded again.
    page.goto(f"{stranger.origin}/#login={code}")
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
    assert code not in page.url


@pytest.mark.slow
def test_link_of_another_token_asks_first(opened: Watched, busy: BusyService) -> None:
    page = opened.page
    address = f"{opened.origin}/#login="
    with busy.service.database.write() as session:
        _, text = tokens.create(session, tenant="mallory", name="theirs", scopes=["submit"])
    with Client(busy.service.url, text) as client:
        code = client._transport.json("POST", "/v1/session/codes", body={})["code"]
    page.goto(address + code)
    dialog = page.get_by_role("dialog", name="Log in as somebody else?")
    expect(dialog).to_contain_text("theirs of the tenant mallory")
    dialog.get_by_role("button", name="Keep").click()
    expect(page.locator(".top-bar")).not_to_contain_text("mallory")
    page.goto(address + code)
    with page.expect_event("load"):
        dialog.get_by_role("button", name="Log in").click()
    expect(page.locator(".top-bar")).to_contain_text("mallory")
    # The browser reports the two refusals.
    assert all("409" in opened.problems.pop() for _ in range(2))


def test_policy_blocks_inline_scripts(opened: Watched) -> None:
    opened.provoked = {"Content Security Policy"}
    page = opened.open("jobs")
    page.evaluate(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = true'; document.body.append(s)"
    )
    assert page.evaluate("window.hacked") is None


def test_jobs_are_listed_and_filtered(opened: Watched) -> None:
    page = opened.open("jobs")
    rows = page.get_by_role("table", name="Jobs").get_by_role("row")
    expect(rows.filter(has_text="baseline")).to_contain_text("healthy")
    page.get_by_role("button", name="Failed").click()
    expect(rows.filter(has_text="baseline")).to_have_count(0)
    expect(rows.filter(has_text="failed")).not_to_have_count(0)
    assert "status=failed" in page.url
    # The link reopens the view.
    page.reload()
    expect(page.get_by_role("button", name="Failed")).to_have_attribute("aria-pressed", "true")
    expect(rows.filter(has_text="baseline")).to_have_count(0)


@pytest.mark.slow
def test_first_key_of_a_visit_opens_no_view(opened: Watched) -> None:
    """`g` and a letter within 1.5 s open a view; a visit begins without a `g`."""
    page = opened.open("cluster")
    page.evaluate(
        """() => {
            performance.now = () => 300;
            dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
        }"""
    )
    expect(page.get_by_role("heading", name="Cluster", level=1)).to_be_visible()
    assert page.url.endswith("#/cluster")


@pytest.mark.slow
def test_rows_are_chosen_and_opened_by_keys(opened: Watched) -> None:
    page = opened.open("jobs")
    page.get_by_role("link", name="baseline").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_role("toolbar", name="Selected jobs")).to_contain_text("1 selected")
    page.keyboard.press("Escape")
    expect(page.get_by_role("toolbar", name="Selected jobs")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/jobs/job_"))
    page.keyboard.press("g")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="Cluster", level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


@pytest.mark.slow
def test_views_show_what_they_are_for(opened: Watched, busy: BusyService) -> None:
    views: list[tuple[str, Any, str | None, list[str]]] = [
        ("jobs/{collapsed}", "alert", None, ["Collapse: uniform output", "output entropy 11.09"]),
        ("jobs/{failed}/attempts", "alert", None, ["Lower train.batch_size"]),
        ("jobs/{failed}/attempts", "heading", "Attempt 1", []),
        ("queue", "row", "queued-next", ["CPU"]),
        ("cluster", "region", "Nodes", ["trainer-1"]),
        ("cluster", "heading", "Storage", []),
        ("cluster", "heading", "Use of the cluster", []),
        ("jobs/{running}/pictures", "heading", "No pictures yet", []),
    ]
    for path, role, name, texts in views:
        shown = opened.open(path.format(**busy.jobs)).get_by_role(role, name=name)
        expect(shown).to_be_visible()
        for text in texts:
            expect(shown).to_contain_text(text)


def test_job_shows_verdict_curves_and_baselines(opened: Watched, busy: BusyService) -> None:
    page = opened.page
    page.goto(job_page(busy.service.url, busy.jobs["baseline"]))  # The address that trackers get.
    # The chip has the first word.
    expect(page.locator(".verdict")).to_have_text(
        re.compile(r"^healthy\s*k-NN [\d.]+ % \(28.6 % at")
    )
    expect(page.get_by_role("img", name="Loss:")).to_be_visible()
    expect(page.get_by_role("img", name="k-NN and linear accuracy:")).to_have_accessible_name(
        # The newest value, and the baselines.
        re.compile(r"k-NN top-1 0\.\d+, raw pixels 0.221, untrained 0.286")
    )


def drag(page: Page, chart: Locator, start: float, stop: float) -> None:
    """Choose the steps of a chart between two shares of its width."""
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * start, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * stop, box["y"] + 60, steps=4)
    page.mouse.up()


@pytest.mark.slow
def test_drag_zooms_all_curves_and_the_link_keeps_it(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['baseline']}/curves?smooth=0.6")
    drag(page, page.get_by_role("img", name="Loss:"), 0.25, 0.75)
    expect(page).to_have_url(re.compile("smooth=0.6.*range="))
    page.get_by_role("button", name="All steps").click()
    expect(page).to_have_url(re.compile("smooth=0.6$"))


@pytest.mark.slow
def test_curves_of_a_running_job_show_its_new_steps(opened: Watched, busy: BusyService) -> None:
    worker = busy.running("growing", 0.1)
    page = opened.open(f"jobs/{busy.jobs['growing']}")
    loss = page.get_by_role("img", name="Loss:")
    loss.wait_for()
    now = datetime.now(UTC).timestamp()
    worker.metrics([{"step": FINAL_STEP, "time": now, "values": {"loss": 0.5}}])
    worker.heartbeat({"step": FINAL_STEP, "total_steps": FINAL_STEP, "loss": 0.5})
    expect(loss).to_have_accessible_name(re.compile(r"loss 0\.5,"))
    drag(page, loss, 0.5, 0.99)
    expect(page).to_have_url(re.compile("range="))
    # The right half of the chart has the second half of all steps.
    first, last = page.url.split("range=")[1].split("-")
    assert int(first) >= FINAL_STEP * 0.4
    assert int(last) >= FINAL_STEP * 0.9
    worker.finish("failed", {"type": "Test", "message": "It ends."}, retryable=False)


@pytest.mark.slow
def test_curves_are_saved_as_csv(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['baseline']}")
    saved = downloaded(page, page.get_by_role("button", name="CSV"))
    header, first, *_ = saved.read_text().splitlines()
    assert header.startswith("step,time,")
    assert "loss_dar" in header
    assert first.startswith("10,")


@pytest.mark.slow
def test_settings_mark_what_auto_chose(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['baseline']}/settings")
    row = page.locator(".settings dl > div", has_text="epochs").filter(has_text="60")
    expect(row.first).to_contain_text("set")
    expect(
        page.locator(".settings dt").filter(has_text=re.compile("^dataset$")).first
    ).to_be_visible()
    # Also where the spec does not mention it.
    size = page.locator(".settings dl > div").filter(has_text="image_size")
    expect(size.first).to_contain_text("auto")
    page.get_by_label("Search settings").fill("crop_scale")
    expect(page.locator(".settings dl > div")).not_to_have_count(0)


@pytest.mark.slow
def test_log_is_searched(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['failed']}/log")
    expect(page.get_by_label("Log", exact=True)).to_contain_text("INFO epoch 1")
    page.get_by_label("Search the log").fill("cache")
    expect(page.get_by_label("Log", exact=True)).to_have_text("WARNING the cache is small")


@pytest.mark.slow
def test_checkpoint_is_pinned_and_loaded(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/checkpoints")
    newest = page.get_by_role("row").nth(1)
    expect(newest).to_contain_text("final")
    expect(newest).to_contain_text("best")
    newest.get_by_role("button", name="Pin").click()
    expect(newest.get_by_role("button", name="Unpin")).to_be_visible()
    newest.get_by_role("button", name="Files").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("timm.create_model")
    saved = downloaded(page, dialog.get_by_role("link", name="backbone.safetensors"))
    assert saved.stat().st_size == 2000
    dialog.get_by_role("button", name="Close").click()
    newest.get_by_role("button", name="Unpin").click()
    expect(newest.get_by_role("button", name="Pin: keep")).to_be_visible()


@pytest.mark.slow
def test_pictures_are_shown(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"jobs/{busy.jobs['baseline']}/files")
    picture = page.get_by_role("img", name="curves")
    expect(picture).to_have_js_property("naturalWidth", 420)


@pytest.mark.slow
def test_jobs_are_compared(opened: Watched, busy: BusyService) -> None:
    page = opened.open("jobs")
    page.get_by_label("Select baseline").check()
    page.get_by_label("Select with-dar").check()
    page.get_by_role("toolbar", name="Selected jobs").get_by_role("link", name="Compare").click()
    differing = page.get_by_role("region", name="Settings that differ")
    expect(differing.get_by_role("row").filter(has_text="dar.weight")).to_contain_text("0.5")
    expect(page.get_by_role("region", name="Newest evaluation")).to_contain_text("k-NN top-1")
    expect(page.get_by_role("img", name="loss:")).to_be_visible()


def test_job_is_paused_resumed_and_cancelled(opened: Watched, busy: BusyService) -> None:
    worker = busy.running("to-pause", 0.2)
    job = busy.jobs["to-pause"]
    page = opened.open(f"jobs/{job}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".title-line .chip")).to_have_text("pausing")
    worker.finish("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".title-line .chip")).to_have_text("queued")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator(".title-line .chip")).to_have_text("cancelled")
    assert busy.client.jobs.get(job).status == "cancelled"


@pytest.mark.slow
def test_several_jobs_are_deleted_after_a_question(opened: Watched, busy: BusyService) -> None:
    for name in ("useless-a", "useless-b"):
        busy.client.jobs.cancel(busy.submit(name))
    page = opened.open("jobs?status=cancelled")
    page.get_by_label("Select useless-a").check()
    page.get_by_label("Select useless-b").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(page.get_by_label("Select useless-a")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 2 jobs").click()
    expect(page.get_by_label("Select useless-a")).to_have_count(0)
    expect(page.get_by_label("Select useless-b")).to_have_count(0)


@pytest.mark.slow
def test_name_tags_and_priority_are_edited(opened: Watched, busy: BusyService) -> None:
    job = busy.submit("to-edit")
    page = opened.open(f"jobs/{job}")
    page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("edited")
    dialog.get_by_label("Tags").fill("run: 7")
    dialog.get_by_label("Priority").fill("3")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="edited", level=1)).to_be_visible()
    changed = busy.client.jobs.get(job)
    assert (changed.name, changed.tags, changed.priority) == ("edited", {"run": "7"}, 3)
    busy.client.jobs.cancel(job)


def test_form_shows_the_servers_validation_at_the_field(opened: Watched, busy: BusyService) -> None:
    opened.provoked = {422}
    page = opened.open("submit?dataset=birds")
    page.get_by_label("epochs").first.fill("0")
    problem = page.locator(".field", has=page.get_by_label("epochs")).get_by_role("alert")
    expect(problem.first).to_contain_text("1")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_label("epochs").first.fill("7")
    page.get_by_label("name", exact=True).fill("by-form")
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="by-form", level=1)).to_be_visible()
    (job,) = [each for each in busy.client.jobs.list() if each.name == "by-form"]
    assert job.spec["train"] == {"epochs": 7}
    busy.client.jobs.cancel(job.id)


def test_form_begins_with_the_advice_on_the_images(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    scans = busy.client.datasets.add(str(tmp_path), "scans")
    busy.service.ingest(scans, num_images=200, has_dicom=True)
    page = opened.open("submit?dataset=scans")
    advice = page.locator("section.advice")
    expect(advice).to_contain_text("There are DICOM files")
    expect(advice).to_contain_text("The default holds out 20 images")
    titles = [re.compile("^Augment"), re.compile("^Evaluate")]
    sections = [page.locator("summary", has_text=title) for title in titles]
    for section in sections:
        expect(section).to_contain_text("1 set")
    advice.get_by_role("button", name="Undo").first.click()
    expect(sections[0]).not_to_contain_text("set")
    advice.get_by_role("button", name="Use").click()
    expect(sections[0]).to_contain_text("1 set")
    # Other images, other advice.
    dataset = page.get_by_label("dataset", exact=True).first
    dataset.select_option("birds")
    expect(advice).to_have_count(0)
    for section in sections:
        expect(section).not_to_contain_text("set")
    dataset.select_option("scans")
    expect(sections[1]).to_contain_text("1 set")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/job_"))
    job = next(iter(busy.client.jobs.list()))
    assert job.spec == {
        "dataset": "scans",
        "augment": {"flip": 0},
        "evaluate": {"holdout": {"fraction": 0.15}},
    }
    page.close()  # It would ask for the job that is deleted now.
    busy.client.jobs.cancel(job.id)
    busy.client.jobs.delete(job.id)
    busy.client.datasets.delete(scans.id)


@pytest.mark.slow
def test_form_shows_the_defaults_that_will_be_used(opened: Watched) -> None:
    page = opened.open("submit?dataset=birds")
    page.locator("summary", has_text="Evaluate").click()
    states = {"Holdout": "on", "Knn": "on", "DAR": "off", "Clip": "auto"}
    for name, state in states.items():
        summary = page.locator("summary", has_text=re.compile(f"^{name}"))
        expect(summary.locator(".muted")).to_have_text(f" {state}")
    page.locator("summary", has_text="Holdout").click()
    page.locator("details", has_text="Holdout").last.get_by_label("Use it").first.uncheck()
    page.get_by_role("button", name="YAML").click()
    expect(page.get_by_label("Settings as YAML")).to_have_value(re.compile(r"holdout: null"))


@pytest.mark.slow
def test_spec_is_edited_as_yaml(opened: Watched) -> None:
    page = opened.open("submit?dataset=birds")
    page.get_by_role("button", name="YAML").click()
    page.get_by_label("Settings as YAML").fill("dataset: birds\ntrain: {epochs: 9}\n")
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()
    # What cannot be read is not submitted, nor is what stood there before.
    page.get_by_label("Settings as YAML").fill("dataset: birds\ntrain: {epochs: 90\n")
    expect(page.get_by_role("alert")).to_contain_text("indentation")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_label("epochs").first).to_have_value("9")
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()


@pytest.mark.slow
def test_clone_sends_only_what_was_changed(opened: Watched, busy: BusyService) -> None:
    page = opened.open(f"submit?clone={busy.jobs['with-dar']}")
    page.get_by_label("epochs").first.fill("80")
    page.get_by_role("button", name="Submit").click()
    expect(page).to_have_url(re.compile("/jobs/job_"))
    clone = next(iter(busy.client.jobs.list()))
    assert clone.spec["train"]["epochs"] == 80
    assert clone.spec["dar"]["weight"] == 0.5
    assert clone.start_checkpoint_id is not None
    busy.client.jobs.cancel(clone.id)


@pytest.mark.slow
def test_data_set_shows_what_was_skipped_and_why(opened: Watched, busy: BusyService) -> None:
    opened.provoked = {404}  # This data set was ingested without a contact sheet.
    page = opened.open(f"datasets/{busy.dataset}")
    expect(page.get_by_text("is empty")).to_be_visible()
    for sentence in REPORT["unused"]:
        expect(page.get_by_text(sentence)).to_be_visible()
    expect(page.get_by_role("region", name="Versions")).to_contain_text("640")
    page.get_by_role("button", name="Draw").click()
    expect(page.get_by_text("Waits for its turn")).to_be_visible()
    group = page.locator("details", has_text="Equal images")
    group.locator("summary").click()
    expect(group).to_contain_text("1 group, 1 more than needed, of 640 compared")
    expect(group.get_by_role("listitem")).to_have_text("a/my photo.png = a/your photo.png")


@pytest.mark.slow
def test_data_set_is_added(opened: Watched, busy: BusyService, tmp_path: Path) -> None:
    opened.provoked = {422, 404}
    (tmp_path / "more").mkdir()
    page = opened.open("datasets?add=1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_have_text(
        ["Is empty. Expected: at least 1 character."] * 2
    )
    # The name is that of the folder, as of `dasl datasets add`.
    dialog.get_by_label("Path or URI").fill("relative/more")
    expect(dialog.get_by_label("Name")).to_have_attribute("placeholder", "more")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.get_by_role("alert")).to_have_text([re.compile("absolute")])
    dialog.get_by_label("Path or URI").fill(str(tmp_path / "more"))
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("heading", name="more", level=1)).to_be_visible()
    dataset = busy.client.datasets.get("more")
    assert (dataset.uri, dataset.upload) == (f"{tmp_path}/more", None)


def test_data_set_that_was_never_read_has_no_version(
    opened: Watched, busy: BusyService, tmp_path: Path
) -> None:
    dataset = busy.client.datasets.add(str(tmp_path), "unread")
    try:
        busy.service.ingest(dataset, error="no usable image")
        page = opened.open("datasets")
        row = page.get_by_role("row").filter(has_text="unread")
        expect(row).to_be_visible()
        version = page.get_by_role("columnheader").all_text_contents().index("Version")
        expect(row.get_by_role("cell").nth(version)).to_have_text("–")
        row.get_by_role("link", name="unread").click()
        expect(page.get_by_role("heading", name="unread", level=1)).to_be_visible()
        expect(page.locator(".title-line")).not_to_contain_text("version")
    finally:
        busy.client.datasets.delete(dataset.id)
