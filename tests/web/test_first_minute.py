"""The page of a service without jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.client import Client
from service.client.models import DatasetRecord
from service.tokens import service as tokens
from tests.support.api_server import Service, running_service
from tests.support.uploads import dispatcher_of
from tests.web.conftest import PHONE, Watched, defects, log_in, watched


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


def begin_demo(page: Page, fresh: Service) -> DatasetRecord:
    """Press the button, and return the data set once the dispatcher has taken it; a worker then ingests it."""
    page.get_by_role("button", name="Run the demo").click()
    expect(page.get_by_text("Adding the images")).to_be_visible()
    dispatcher_of(fresh.settings, fresh.database).round()
    with Client(fresh.url, fresh.token) as client:
        (dataset,) = client.datasets.list()
    return dataset


def test_one_button_runs_the_demo(empty: Watched, fresh: Service) -> None:
    dataset = begin_demo(empty.page, fresh)
    fresh.ingest(dataset)
    heading = empty.page.get_by_role("heading", name="fonts-simclr-dar", level=1)
    expect(heading).to_be_visible()
    with Client(fresh.url, fresh.token) as client:
        (job,) = client.jobs.list()
    assert job.dataset is not None
    assert job.dataset.id == dataset.id
    assert job.id in empty.page.url


@pytest.mark.slow
def test_failed_demo_says_why(empty: Watched, fresh: Service) -> None:
    fresh.ingest(begin_demo(empty.page, fresh), error="the disk is gone")
    expect(empty.page.get_by_role("alert")).to_contain_text("the disk is gone")
    expect(empty.page.get_by_role("button", name="Run the demo")).to_be_enabled()


@pytest.mark.slow
def test_empty_page_says_how_to_start(empty: Watched) -> None:
    page = empty.page
    expect(page.get_by_text("dasl submit spec.yaml --watch")).to_be_visible()
    assert defects(page, also_minor=True) == []


@pytest.mark.slow
def test_reader_gets_no_button(chromium: Browser, fresh: Service) -> None:
    with fresh.database.write() as session:
        _, token = tokens.create(session, tenant="t", name="reader", scopes=["read"])
    with watched(chromium.new_context(), fresh.url) as watch:
        log_in(watch.page, fresh.url, token)
        expect(watch.page.get_by_text("No jobs yet")).to_be_visible()
        expect(watch.page.get_by_role("button", name="Run the demo")).to_have_count(0)
        expect(watch.page.get_by_text("dasl submit")).to_have_count(0)
