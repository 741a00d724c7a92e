"""The numbers that the page shows, as its modules compute them: without a service."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route

from dasl_core.headlines import TITLES
from service.web.endpoints import ROOT

ORIGIN = "http://page.test"
DASH = "–"

APART = (
    "The jobs are evaluated on different numbers of images, so their metrics cannot be compared."
)
NEAR = "k-NN top-1: differences below 4.47 points may be chance (1,000 held-out images)."
LOSS = {"id": "loss", "title": "Loss", "of": "metrics"}
TABLES: dict[str, list[tuple[list[Any], Any]]] = {
    "charts/panel smooth": [
        ([[3, 3, 3], 0.9], [3, 3, 3]),  # from the first value on
        ([[2, None, 4], 0.5], [2, None, 10 / 3]),
        ([[2, None, 4], 0], [2, None, 4]),
    ],
    "charts/panels panelsOf": [
        # A loss of one term is one line.
        ([["loss", "loss_simclr"], []], [LOSS | {"names": ["loss"]}]),
        (
            [["loss_dar", "loss", "loss_simclr"], []],
            [LOSS | {"names": ["loss", "loss_dar", "loss_simclr"]}],
        ),
    ],
    "compare/chance mayBeChance": [
        (["knn_top1", 0.5, 0.54, 1000], True),
        (["knn_top1", 0.5, 0.55, 1000], False),
        (["knn_top1", 0.5, 0.9, None], True),
        (["nmi", 0.1, 0.9, 1000], True),  # how much it varies is not known
        (["recall_at_1", 1, 0.9995, 1000], True),  # less than an image
        # At most 4,096 images are compared with their views.
        (["recall_at_1", 0.5, 0.52, 8192], False),
        (["instance_recall_at_1", 0.5, 0.52, 8192], True),
    ],
    "compare/chance remarks": [
        ([[["knn_top1", [0.5, 0.9]]], [1000, 1000]], []),
        ([[["knn_top1", [0.5, 0.52]]], [1000, 1000]], [NEAR]),
        ([[["knn_top1", [0.5, 0.9]]], [1000, 999]], [APART]),
    ],
    "core/format number": [
        ([None], DASH),
        ([0], "0"),
        ([1234.5], "1,235"),
        ([-2e6], "-2.00e6"),
        ([0.0000123], "1.23e-5"),
    ],
    "core/format figure": [(["recall_at_10", 0.12345], "12.3 %"), (["nmi", 0.12345], "0.1235")],
    "core/format bytes": [
        ([0], "0 B"),
        ([1000], "1.00 kB"),
        ([999_499], "999 kB"),
        ([999_500], "1.00 MB"),
        ([123_456_789_012], "123 GB"),
    ],
    "core/format duration": [
        ([59.4], "59 s"),
        ([601], "10 min"),
        ([3599.6], "1 h"),
        ([3660], "1 h 1 min"),
        ([49 * 3600], "2 d 1 h"),
    ],
}
"""By module and function: arguments, and what it returns."""


def answer(route: Route) -> None:
    """Answer with a file of the page, or with an empty document."""
    path = urlsplit(route.request.url).path
    if (file := ROOT / path.lstrip("/")).is_file():
        route.fulfill(path=file)
    else:
        route.fulfill(body="", content_type="text/html")


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    with chromium.new_context() as context:
        context.route("**/*", answer)
        page = context.new_page()
        page.goto(ORIGIN)
        page.evaluate(
            "async metrics => (await import('/js/core/session.js')).session.set({ metrics })",
            TITLES,
        )
        yield page


@pytest.mark.parametrize("name", TABLES)
def test_functions(page: Page, name: str) -> None:
    script = """async ([module, name, calls]) => {
        const found = await import(`/js/${module}.js`);
        return calls.map((each) => found[name](...each));
    }"""
    module, _, function = name.partition(" ")
    calls = [arguments for arguments, _ in TABLES[name]]
    results = page.evaluate(script, [module, function, calls])
    for (arguments, expected), result in zip(TABLES[name], results, strict=True):
        assert result == (pytest.approx(expected) if function == "smooth" else expected), arguments
