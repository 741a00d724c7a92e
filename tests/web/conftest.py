"""The page in Debian's Chromium, against a real API with jobs in every state."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    expect,
    sync_playwright,
)

from tests.support.api_server import running_service
from tests.support.busy_service import BusyService
from tests.support.running_service import write_images

CHROMIUM = shutil.which("chromium")
# No sandbox: tests also run as root. The rest keeps the browser from asking its maker for updates.
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    # The map of features is drawn with WebGL2, here by the processor.
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Machines are busy while tests run.
_MILLISECONDS = 60_000
expect.set_options(timeout=_MILLISECONDS)
PHONE = (375, 812)
DESKTOP = (1280, 860)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One browser, and one service: the tests run one after another in one process.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("web"))


@pytest.fixture(scope="package")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyService]:
    """An API with jobs in every state, for all tests of the page."""
    folder = tmp_path_factory.mktemp("web")
    write_images(folder / "birds", 16)
    with running_service(folder / "home") as service:
        busy = BusyService(service, folder / "birds")
        busy.fill()
        yield busy


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A browser for all tests of the page; closed with them, as its event loop hinders those of other tests."""
    if CHROMIUM is None:
        problem = "chromium is not installed: the page is tested with the Debian package chromium"
        if os.environ.get("CI") == "true":  # which must not pass because it has tested less
            pytest.fail(problem)
        pytest.skip(problem)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS)
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def cookies(chromium: Browser, busy: BusyService) -> dict[str, object]:
    """The state of a browser that has logged in."""
    context = chromium.new_context()
    page = context.new_page()
    log_in(page, busy.service.url, busy.service.token)
    state: dict[str, object] = dict(context.storage_state())
    context.close()
    return state


@dataclass
class Watched:
    """A page of the browser, and what it must not do."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)
    provoked: set[int | str] = field(default_factory=set)
    """Statuses, and words of errors, that the test provokes; browsers report them as errors."""

    def __post_init__(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: self._asked(request.url))

    def open(self, path: str) -> Page:
        """Open a view, such as `jobs`."""
        self.page.goto(f"{self.origin}/#/{path}")
        return self.page

    def _said(self, message: ConsoleMessage) -> None:
        expected = (f"status of {it}" if isinstance(it, int) else it for it in self.provoked)
        is_provoked = any(words in message.text for words in expected)
        if message.type == "error" and not is_provoked:
            self.problems.append(f"console: {message.text} {message.location}")

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws") and not url.startswith(f"{self.origin}/"):
            self.problems.append(f"request to another origin: {url}")


@pytest.fixture
def opened(
    chromium: Browser, busy: BusyService, cookies: dict[str, object], request: pytest.FixtureRequest
) -> Iterator[Watched]:
    """A page with a session; it fails the test if it logs an error or asks another origin.

    Parametrize it indirectly with (color scheme, (width, height)).
    """
    scheme, (width, height) = getattr(request, "param", ("light", DESKTOP))
    context = chromium.new_context(
        storage_state=cookies,  # type: ignore[arg-type]
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": height},
        accept_downloads=True,
        # Only scripts that a test injects need it; that the policy holds is tested apart.
        bypass_csp=request.node.get_closest_marker("injects") is not None,
    )
    with watched(context, busy.service.url) as watch:
        yield watch


@pytest.fixture
def stranger(chromium: Browser, busy: BusyService) -> Iterator[Watched]:
    """A page without a session."""
    with watched(chromium.new_context(), busy.service.url) as watch:
        yield watch


@contextmanager
def watched(context: BrowserContext, url: str) -> Iterator[Watched]:
    """Yield a watched page of a context, and close it."""
    context.set_default_timeout(_MILLISECONDS)
    watch = Watched(context.new_page(), url)
    try:
        yield watch
    finally:
        # While a page is being loaded Chromium may never answer: a test whose page loads last waits for "load".
        context.close()
    assert watch.problems == []


def downloaded(page: Page, link: Locator) -> Path:
    """Return the file that a click saves."""
    with page.expect_download() as download:
        link.click()
    return Path(download.value.path())


def defects(page: Page, *, also_minor: bool = False) -> list[str]:
    """Return what axe finds serious, and whether the page is wider than its window. It injects a script."""
    results = Axe().run(page, options={"resultTypes": ["violations"]})
    found = [
        f"{page.url}: {each['id']}: {each['nodes'][0]['html']} {each['nodes'][0]['any'][:1]}"
        for each in results.response["violations"]
        if also_minor or each["impact"] in ("serious", "critical")
    ]
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{page.url} is {width} pixels too wide"] if width > 0 else [])


def log_in(page: Page, url: str, token: str) -> None:
    """Log in with a token."""
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="DASL: jobs").wait_for()
