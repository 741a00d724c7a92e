"""Connections of the page to the service: those of several tabs, of a session that has ended, and lost answers."""

import re

import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.support.busy_service import BusyService
from tests.web.conftest import Watched


def show(page: Page, visible: bool) -> None:
    """Bring the tab of a page to the front or into the background, as the page sees it."""
    page.evaluate(
        """(visible) => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => !visible });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        visible,
    )


@pytest.mark.slow
def test_tabs_in_the_background_leave_their_connections(opened: Watched, busy: BusyService) -> None:
    """Browsers have six connections to an origin: a seventh tab would wait for one that is never free."""
    tabs = [opened.page.context.new_page() for _ in range(6)]
    for tab in tabs:
        tab.goto(f"{opened.origin}/#/jobs")
        expect(tab.get_by_text("live", exact=True)).to_be_visible()
        show(tab, False)
        expect(tab.get_by_text("not live")).to_be_visible()
    page = opened.open(f"jobs/{busy.jobs['running']}/log")
    expect(page.get_by_label("Log", exact=True)).to_contain_text("INFO epoch 1")
    show(page, False)
    job = busy.submit("in-the-background")
    show(tabs[0], True)
    expect(tabs[0].get_by_role("link", name="in-the-background")).to_be_visible()
    busy.service.log(busy.jobs["running"], "INFO epoch 2\n")
    show(page, True)
    expect(page.get_by_label("Log", exact=True)).to_contain_text("INFO epoch 2")
    busy.client.jobs.cancel(job)


@pytest.mark.slow
def test_lost_answer_to_a_submission_makes_no_second_job(
    opened: Watched, busy: BusyService
) -> None:
    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    opened.provoked = {"ERR_FAILED"}
    page = opened.open("submit?dataset=birds")
    page.get_by_label("name", exact=True).fill("lost-answer")
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()
    page.route("**/v1/jobs", lose, times=1)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert").filter(has_text="does not answer").first).to_be_visible()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="lost-answer", level=1)).to_be_visible()
    (job,) = [each for each in busy.client.jobs.list() if each.name == "lost-answer"]
    busy.client.jobs.cancel(job.id)


@pytest.mark.slow
def test_many_jobs_that_change_at_once_are_all_shown(opened: Watched, busy: BusyService) -> None:
    request = {"name": "crowd", "spec": {"dataset": "birds"}, "variants": {"one": {}}}
    experiment = busy.client.experiments.submit({**request, "seeds": list(range(24))})
    page = opened.open("jobs?q=crowd")
    rows = page.get_by_role("table", name="Jobs").get_by_role("row")
    expect(rows.filter(has_text="queued")).to_have_count(24)
    busy.client.experiments.cancel(experiment.id)
    expect(rows.filter(has_text="cancelled")).to_have_count(24)
    busy.client.experiments.delete(experiment.id, jobs=True)


@pytest.mark.slow
def test_page_of_a_job_says_that_it_was_deleted_without_a_stream_of_events(
    opened: Watched, busy: BusyService
) -> None:
    """Some proxies block streams; then only the answers to later requests tell."""
    opened.provoked = {404, "ERR_FAILED"}
    job = busy.submit("deleted-elsewhere")
    opened.page.route("**/v1/events?*", lambda route: route.abort())
    opened.page.route("**/v1/events", lambda route: route.abort())
    opened.page.clock.install()
    page = opened.open(f"jobs/{job}")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    busy.client.jobs.cancel(job)
    busy.client.jobs.delete(job)
    page.clock.fast_forward(11_000)
    expect(page.get_by_role("alert").first).to_contain_text(job)
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


@pytest.mark.slow
def test_job_that_another_person_deletes_is_no_error(opened: Watched, busy: BusyService) -> None:
    job = busy.submit("gone-soon")
    page = opened.open("jobs?q=gone-soon")
    row = page.get_by_role("table", name="Jobs").get_by_role("row").filter(has_text="gone-soon")
    expect(row).to_contain_text("queued")
    asked: list[Request] = []

    def delete_first(route: Route) -> None:
        busy.client.jobs.delete(job)
        asked.append(route.request)
        route.continue_()

    page.route(re.compile(rf"/v1/jobs.*{job}"), delete_first, times=1)
    # The answer to an earlier request may come only now.
    with page.expect_response(lambda answer: answer.request in asked) as answer:
        busy.client.jobs.cancel(job)
    assert answer.value.json()["data"] == []
