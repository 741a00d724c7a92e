"""What the page does while its service is away, starts, or has ended its session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.api_server import Service
from tests.web.conftest import Watched, log_in, watched


class Restarted:
    """A service that a test stops and starts again at the same address."""

    def __init__(self, home: Path) -> None:
        self._home = home
        # A stream notices at its heartbeat that its session has ended.
        self.service = Service(home, stream_heartbeat_seconds=0.5)

    def stop(self) -> None:
        self.service.close()

    def start(self) -> None:
        self.service = Service(self._home, port=urlsplit(self.service.url).port or 0)


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restarted]:
    restarted = Restarted(tmp_path / "home")
    try:
        yield restarted
    finally:
        restarted.stop()


@pytest.fixture
def idle(chromium: Browser, restarted: Restarted) -> Iterator[Watched]:
    """The page of a service without jobs, logged in: nothing on it asks the service again and again."""
    with watched(chromium.new_context(), restarted.service.url) as watch:
        log_in(watch.page, restarted.service.url, restarted.service.token)
        expect(watch.page.get_by_text("No jobs yet")).to_be_visible()
        expect(watch.page.get_by_text("live", exact=True)).to_be_visible()
        watch.provoked = {"net::ERR_"}
        yield watch


@pytest.mark.slow
def test_idle_page_says_that_the_service_is_away(idle: Watched, restarted: Restarted) -> None:
    restarted.stop()
    expect(idle.page.get_by_role("alert")).to_contain_text("does not answer")
    restarted.start()
    expect(idle.page.get_by_text("live", exact=True)).to_be_visible()
    expect(idle.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.slow
def test_view_that_is_not_loaded_yet_waits_for_the_service(
    idle: Watched, restarted: Restarted
) -> None:
    restarted.stop()
    idle.page.get_by_role("link", name="Experiments", exact=True).click()
    expect(idle.page.get_by_role("alert").filter(has_text="Not loaded")).to_contain_text(
        "The service does not answer."
    )
    restarted.start()
    expect(idle.page.get_by_role("heading", name="Experiments", level=1)).to_be_visible()


@pytest.mark.slow
def test_idle_page_asks_to_log_in_when_its_session_ends(
    idle: Watched, restarted: Restarted
) -> None:
    idle.provoked.add(401)
    cookies = {each["name"]: each["value"] for each in idle.page.context.cookies()}
    with httpx.Client(base_url=restarted.service.url, cookies=cookies) as client:
        csrf = client.get("/v1/session").json()["csrf"]
        assert client.delete("/v1/session", headers={"X-CSRF-Token": csrf}).status_code == 204
    expect(idle.page.get_by_label("Token")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": 502, "body": "Bad gateway"}, "does not answer"),
        (
            {"status": 503, "json": {"type": "storage-full", "detail": "disk is full"}},
            "disk is full",
        ),
    ],
)
def test_session_outlives_an_answer_that_does_not_refuse_it(
    idle: Watched, answer: dict[str, Any], words: str
) -> None:
    idle.provoked.add(answer["status"])
    page = idle.page
    page.route("**/v1/session", lambda route: route.fulfill(**answer))
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text(words)
    page.unroute("**/v1/session")
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
