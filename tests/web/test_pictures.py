"""The pictures of a job: neighbors, map and histograms at each evaluation."""

import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from tests.support.busy_service import BusyService
from tests.support.pictures import CLASSES
from tests.support.polling import wait_for
from tests.web.conftest import Watched, downloaded


def content(busy: BusyService, name: str) -> Any:
    path = f"/v1/jobs/{busy.jobs['with-dar']}/artifacts/{name}"
    return json.loads(busy.client._transport.text(path))


def opened_map(opened: Watched, busy: BusyService) -> tuple[Page, Locator]:
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/pictures")
    shown = page.get_by_role("group", name="Map:")
    shown.scroll_into_view_if_needed()
    # Moves from the first places, where there is a map before, are over.
    expect(shown.locator("canvas")).to_have_attribute("data-renderer", re.compile("webgl2|2d"))
    return page, shown


def places(busy: BusyService, shown: Locator) -> list[tuple[float, float]]:
    """Return where the images of the newest map are on the screen: all of it fits."""
    newest = content(busy, "map.json")["evaluations"][-1]
    box = shown.bounding_box()
    assert box is not None
    # Without the border.
    width, height = box["width"] - 2, box["height"] - 2
    xs, ys = newest["x"], newest["y"]
    scale = 0.92 * min(width / (max(xs) - min(xs)), height / (max(ys) - min(ys)))
    middle = (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2
    left, top = box["x"] + 1 + width / 2, box["y"] + 1 + height / 2
    return [
        (left + (x - middle[0]) * scale, top - (y - middle[1]) * scale)
        for x, y in zip(xs, ys, strict=True)
    ]


@pytest.mark.slow
def test_neighbors_without_a_label_are_not_counted_as_wrong(
    opened: Watched, busy: BusyService
) -> None:
    """The training images of a job may have no labels, and those of `evaluate.dataset` some."""
    data = content(busy, "neighbours.json")
    images = data["images"]
    for image in images:
        image["label"] = image["label"] if image["held_out"] else None
    opened.page.route("**/neighbours.json*", lambda route: route.fulfill(json=data))
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/pictures")
    rows = zip(data["queries"], data["evaluations"][-1]["neighbors"], strict=True)
    for row, (query, found) in enumerate(rows):
        labels = [images[each]["label"] for each in found if images[each]["held_out"]]
        right = labels.count(images[query]["label"])
        shown = page.locator(".neighbors > li").nth(row).locator(".found").last
        expect(shown).to_contain_text(f"{right} of {len(labels)} with a label")


@pytest.mark.slow
def test_neighbors_at_the_start_stand_beside_those_of_the_chosen_evaluation(
    opened: Watched, busy: BusyService
) -> None:
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/pictures")
    data = content(busy, "neighbours.json")
    row = page.locator(".neighbors > li").first
    images, query = data["images"], data["queries"][0]
    for number in (0, 3, 6):
        shown = data["evaluations"][number]
        page.get_by_role("slider", name="Evaluation").fill(str(number))
        found = row.locator(".found").last
        right = sum(
            images[each]["label"] == images[query]["label"] for each in shown["neighbors"][0]
        )
        title = "Start" if number == 0 else f"Epoch {number * 10}"
        expect(found).to_contain_text(f"{title} · {right} of 7")
        expect(found.locator(".is-right")).to_have_count(right)
        nearest = found.get_by_role("img").first
        expect(nearest).to_have_accessible_name(
            re.compile(re.escape(images[shown["neighbors"][0][0]]["key"]))
        )
        expect(found.locator(".distance").first).to_have_text(f"{shown['distances'][0][0]:.2f}")
        expect(row.locator(".found")).to_have_count(1 if number == 0 else 2)
    page.get_by_role("slider", name="Evaluation").fill("3")
    assert "at=600" in page.url
    page.reload()
    expect(page.get_by_role("slider", name="Evaluation")).to_have_value("3")


@pytest.mark.slow
@pytest.mark.parametrize("renderer", ["webgl2", pytest.param("2d", marks=pytest.mark.slow)])
def test_map_is_drawn_with_and_without_webgl(
    opened: Watched, busy: BusyService, renderer: str
) -> None:
    if renderer == "2d":
        opened.page.add_init_script(
            "const get = HTMLCanvasElement.prototype.getContext;"
            "HTMLCanvasElement.prototype.getContext = function (kind, ...more) {"
            "  return kind === 'webgl2' ? null : get.call(this, kind, ...more); };"
        )
    page, shown = opened_map(opened, busy)
    expect(shown.locator("canvas")).to_have_attribute("data-renderer", renderer)
    for x, y in places(busy, shown)[:3]:
        page.mouse.move(x, y)
        expect(shown.locator(".map-tip")).to_be_visible()
    expect_colors(page, shown)


def expect_colors(page: Page, shown: Locator) -> None:
    """Wait until the map is drawn in colors."""
    page.mouse.move(0, 0)

    def is_colored() -> bool:
        picture = Image.open(io.BytesIO(shown.locator("canvas").screenshot())).convert("RGB")
        pixels = np.asarray(picture).astype(int)
        return bool((pixels.max(axis=2) - pixels.min(axis=2) > 60).sum() > 2000)

    wait_for(is_colored)


@pytest.mark.slow
def test_line_around_images_chooses_them(opened: Watched, busy: BusyService) -> None:
    page, shown = opened_map(opened, busy)
    page.get_by_role("button", name="Choose", exact=True).click()
    shown.scroll_into_view_if_needed()
    box = shown.bounding_box()
    assert box is not None
    xs = sorted(x for x, _ in places(busy, shown))
    # Between two images that are well apart.
    number = max(range(150, 300), key=lambda each: xs[each] - xs[each - 1])
    middle, expected = (xs[number] + xs[number - 1]) / 2, number
    top, bottom = box["y"] + 3, box["y"] + box["height"] - 3
    page.mouse.move(middle, top)
    page.mouse.down()
    for x, y in ((middle, bottom), (box["x"] + 3, bottom), (box["x"] + 3, top)):
        page.mouse.move(x, y)
    page.mouse.up()
    chosen = page.get_by_role("region", name="Chosen images")
    expect(chosen).to_contain_text(f"{expected} images inside the line")
    expect(chosen.get_by_role("group").get_by_role("img")).to_have_count(min(240, expected))
    # Without a pointer: a class by its button.
    page.get_by_role("button", name="bittern").press("Enter")
    expect(chosen).to_contain_text("54 images of bittern")
    page.get_by_role("button", name="Choose none").click()
    expect(chosen).to_have_count(0)


@pytest.mark.slow
def test_map_is_moved_and_zoomed_by_keys(opened: Watched, busy: BusyService) -> None:
    page, shown = opened_map(opened, busy)
    at = places(busy, shown)
    box = shown.bounding_box()
    assert box is not None
    center = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    # The image near the middle that is farthest from all others.
    number = max(
        (number for number, it in enumerate(at) if math.dist(it, center) < box["height"] / 4),
        key=lambda number: min(math.dist(at[number], it) for it in at if it != at[number]),
    )
    (x, y), key = at[number], content(busy, "thumbnails.json")["keys"][number]
    for keys, expected in (
        (["+"], (center[0] + 1.4 * (x - center[0]), center[1] + 1.4 * (y - center[1]))),
        (["0", "ArrowLeft", "ArrowDown"], (x + 50, y - 50)),
        (["+", "-", "0"], (x, y)),
    ):
        for each in keys:
            shown.press(each)
        page.mouse.move(0, 0)
        page.mouse.move(*expected)
        expect(shown.locator(".map-tip")).to_contain_text(key)


@pytest.mark.slow
def test_map_is_drawn_again_after_the_browser_has_lost_it(
    opened: Watched, busy: BusyService
) -> None:
    page, shown = opened_map(opened, busy)
    shown.locator("canvas").evaluate(
        "(it) => { it.dataset.renderer = 'lost';"
        " it.getContext('webgl2').getExtension('WEBGL_lose_context').loseContext(); }"
    )
    expect(shown.locator("canvas")).to_have_attribute("data-renderer", "webgl2")
    expect_colors(page, shown)


@pytest.mark.slow
def test_histograms_say_their_means_and_the_report_is_downloaded(
    opened: Watched, busy: BusyService
) -> None:
    page = opened.open(f"jobs/{busy.jobs['with-dar']}/pictures")
    norms = content(busy, "histograms.json")["norms"]["evaluations"]
    expect(page.get_by_role("img", name="Norms of embeddings:")).to_have_accessible_name(
        re.compile(f"mean {norms[0]['mean']:.4g} at the start, {norms[-1]['mean']:.4g} at epoch 60")
    )
    expect(page.get_by_role("img", name="Distances of embeddings:")).to_be_visible()
    rows = page.get_by_role("region", name="Norms of embeddings by class").get_by_role("row")
    expect(rows).to_have_count(1 + len(CLASSES))
    report = downloaded(page, page.get_by_role("link", name="Report"))
    assert report.read_bytes() == b"<h1>A report</h1>"
