"""The page of a service without jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from service.client import Client
from service.tokens import service as tokens
from tests.support.api_server import Service, running_service
from tests.support.uploads import dispatcher_of
from tests.web.conftest import PHONE, Watched, log_in, watched


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Service]:
    """An API without data sets and jobs."""
    with running_service(tmp_path / "home") as service:
        yield service


@pytest.fixture
def empty(chromium: Browser, fresh: Service) -> Iterator[Watched]:
    """The page of `fresh`, logged in; on a phone, and with rights to inject scripts into it."""
    width, height = PHONE
    viewport = {"width": width, "height": height}
    context = chromium.new_context(viewport=viewport, bypass_csp=True)  # type: ignore[arg-type]
    with watched(context, fresh.url) as watch:
        log_in(watch.page, fresh.url, fresh.token)
        yield watch


def test_one_button_runs_the_demo(empty: Watched, fresh: Service) -> None:
    page = empty.page
    page.get_by_role("button", name="Run the demo").click()
    expect(page.get_by_text("Adding the images")).to_be_visible()
    # What the dispatcher and a worker do.
    dispatcher_of(fresh.settings, fresh.database).round()
    with Client(fresh.url, fresh.token) as client:
        (dataset,) = client.datasets.list()
        fresh.ingest(dataset)
        expect(page.get_by_role("heading", name="emoji-simclr-dar", level=1)).to_be_visible()
        (job,) = client.jobs.list()
    assert job.dataset is not None
    assert job.dataset.id == dataset.id
    assert job.id in page.url


@pytest.mark.slow
def test_failed_demo_says_why(empty: Watched, fresh: Service) -> None:
    page = empty.page
    page.get_by_role("button", name="Run the demo").click()
    expect(page.get_by_text("Adding the images")).to_be_visible()
    dispatcher_of(fresh.settings, fresh.database).round()
    with Client(fresh.url, fresh.token) as client:
        (dataset,) = client.datasets.list()
    fresh.ingest(dataset, error="the disk is gone")
    expect(page.get_by_role("alert")).to_contain_text("the disk is gone")
    expect(page.get_by_role("button", name="Run the demo")).to_be_enabled()


@pytest.mark.slow
def test_empty_page_says_how_to_start(empty: Watched) -> None:
    page = empty.page
    expect(page.get_by_text("dasl submit spec.yaml --watch")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    results = Axe().run(page, options={"resultTypes": ["violations"]})
    assert [each["id"] for each in results.response["violations"]] == []


@pytest.mark.slow
def test_reader_gets_no_button(chromium: Browser, fresh: Service) -> None:
    with fresh.database.write() as session:
        _, token = tokens.create(session, tenant="t", name="reader", scopes=["read"])
    with watched(chromium.new_context(), fresh.url) as watch:
        log_in(watch.page, fresh.url, token)
        expect(watch.page.get_by_text("No jobs yet")).to_be_visible()
        expect(watch.page.get_by_role("button", name="Run the demo")).to_have_count(0)
        expect(watch.page.get_by_text("dasl submit")).to_have_count(0)
