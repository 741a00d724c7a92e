"""Plots of a run: pictures and data for any job name and for little data, and the report."""

import builtins
import errno
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from PIL import Image

from dasl_core.data.canvases import Canvases
from dasl_core.data.image_set import ImageSet
from dasl_core.data.index import DatasetIndex
from dasl_core.plots.curves import curves
from dasl_core.plots.data import aligned, principal_components, thumbnails
from dasl_core.plots.facts import RunFacts
from dasl_core.plots.histograms import norms_by_group
from dasl_core.plots.history import MOST_EVALUATIONS, GroupNorms, Histogram, History, Shown
from dasl_core.plots.images import ShownImages
from dasl_core.plots.style import label_lines, new_figure, to_svg, write_png
from dasl_core.spec import Holdout
from dasl_core.train.plotting import Plotter
from dasl_core.train.serialization import load_state
from dasl_core.verdict import Anchors
from tests.support.training_world import Recorder, image_folder, ingest, recorded, resolved, run

# One worker makes the run that most of these tests look at.
pytestmark = pytest.mark.xdist_group("plots")
DATA = {"neighbours.json", "map.json", "histograms.json", "thumbnails.json"}
SHEETS = {"neighbours.webp", "thumbnails.webp"}
PNGS = {"curves.png", "neighbours.png", "map.png", "distances.png", "norms.png"}
BY_GROUP = "norms_by_group.png"
FAST = {"epochs": 1}


def content(reporter: Recorder, name: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{name} holds {constant}")

    return json.loads(reporter.artifacts[name], parse_constant=refuse)


@pytest.fixture(scope="module")
def drawn(
    pictures: DatasetIndex, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Recorder:
    """A run of three epochs on labeled images, a third of them held out, evaluated after the second epoch."""
    # A name that the plotting library could parse as a formula, and a browser as a tag, but that is neither.
    spec = resolved(
        pictures,
        name="costs $5 {and $_{6 <script>alert(1)",
        evaluate={"holdout": {"fraction": 0.3}},
        dar={"weight": 0.1},
    )
    reporter = recorded(spec, pictures, cache, tmp_path_factory.mktemp("drawn"))
    return reporter


def test_finished_run_has_pictures_data_and_report(drawn: Recorder) -> None:
    assert drawn.artifacts.keys() == {*DATA, *SHEETS, *PNGS, BY_GROUP, "report.html"}
    assert not [event for event in drawn.events if event[0] == "pictures_missing"]
    for name in (*PNGS, BY_GROUP):
        picture = Image.open(io.BytesIO(drawn.artifacts[name]))
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10


def test_neighbors_are_of_training_and_held_out_images(drawn: Recorder) -> None:
    neighbors, images = content(drawn, "neighbours.json"), content(drawn, "thumbnails.json")
    assert neighbors["searched"] == {"held_out": 8, "train": 19, "of_train": 19}
    assert [each["step"] for each in neighbors["evaluations"]] == [0, 4, 6]
    assert [each["subject"] for each in neighbors["evaluations"]] == [
        "untrained",
        *["backbone"] * 2,
    ]
    keys = [image["key"] for image in neighbors["images"]]
    assert len(keys) == len(set(keys))
    assert {image["held_out"] for image in neighbors["images"]} == {False, True}
    assert all(image["key"].startswith(image["label"]) for image in neighbors["images"])
    assert len(neighbors["queries"]) == 8
    for evaluation in neighbors["evaluations"]:
        for query, found, distances in zip(
            neighbors["queries"], evaluation["neighbors"], evaluation["distances"], strict=True
        ):
            assert len(found) == len(set(found)) == 7
            assert query not in found
            assert distances == sorted(distances)
    sheet = Image.open(io.BytesIO(drawn.artifacts["neighbours.webp"]))
    assert sheet.size == (32 * 64, 64 * -(-len(keys) // 32))
    assert images["held_out"] == 8
    assert len(images["keys"]) == len(images["labels"]) == 27
    sheet = Image.open(io.BytesIO(drawn.artifacts["thumbnails.webp"]))
    assert sheet.size == (64 * images["columns"], 64 * -(-27 // images["columns"]))


def test_images_of_the_map_without_labels_have_none(pictures: DatasetIndex, cache: Path) -> None:
    """Held-out images of another data set, which has no labels, stand before the others."""
    held_out, train = (
        ImageSet(Canvases(index, 16, 3, cache=cache, threads=1), np.arange(len(index)))
        for index in (replace(pictures, labels=None, class_names=[]), pictures)
    )
    positions = [0, 1, len(held_out), len(held_out) + 1]
    index, _ = thumbnails(ShownImages(held_out, train), positions)
    first = index["classes"].index(pictures.class_names[int(np.asarray(pictures.labels)[0])])
    assert index["labels"] == [None, None, first, first]


def test_histograms_count_pairs_of_classes_and_norms(drawn: Recorder) -> None:
    histograms = content(drawn, "histograms.json")
    assert histograms["distances"]["between"] == "classes"
    for kind, most in (("distances", 8 * 7 // 2 - 1), ("norms", 8)):
        assert [each["step"] for each in histograms[kind]["evaluations"]] == [0, 4, 6]
        for each in histograms[kind]["evaluations"]:
            assert 0 < sum(each["counts"]) <= most
            assert each["low"] <= each["mean"] <= each["high"]
    by_group = histograms["norms_by_group"]
    assert [each["step"] for each in by_group] == [0, 4, 6]
    for each in by_group:
        assert (each["by"], sum(row[1] for row in each["rows"])) == ("class", 8)
        assert 0 < each["omega_squared"] < each["eta_squared"] < 1
    last = drawn.evaluations[-1][3]["phi_class_distance_mean"]
    assert histograms["distances"]["evaluations"][-1]["mean"] == pytest.approx(last, rel=1e-4)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        assert not [name for name in values if name.startswith("on")]
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""


def test_report_runs_nothing_and_needs_no_other_file(drawn: Recorder) -> None:
    text = drawn.artifacts["report.html"].decode()
    page = _Page()
    page.feed(text)
    assert "script" not in page.tags
    assert "&lt;script&gt;alert(1)" in text
    assert page.policy.startswith("default-src 'none'")
    assert all(link.startswith(("data:image/", "#")) for link in page.links)
    assert not re.search(r"url\((?!#)", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {"svg", "table", "img", "pre"} <= page.tags
    assert "Nearest neighbors" in text
    assert "load_state_dict" in text
    assert len(text) < 3_000_000


def test_report_marks_what_auto_chooses(drawn: Recorder) -> None:
    text = drawn.artifacts["report.html"].decode()
    rows = dict(re.findall(r"<code>([\w.]+)</code></th><td>[^<]*</td><td>(.*?)</td>", text))
    assert "auto" in rows["train.optimizer.name"]
    assert rows["train.epochs"] == ""
    assert rows["backbone.stem"] == ""  # "auto" would choose the small one


@pytest.mark.slow
def test_file_names_are_escaped(tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "pictures"
    image_folder(root, classes=0, per_class=12)
    for number, path in enumerate(sorted(root.iterdir())):
        path.rename(root / f"<img src=x onerror=alert({number})>$a$.png")
    index = ingest(root)
    spec = resolved(
        index, train={"epochs": 1, "batch_size": 4}, evaluate={"holdout": {"fraction": 0.3}}
    )
    reporter = recorded(spec, index, cache, tmp_path / "out")
    page = _Page()
    page.feed(reporter.artifacts["report.html"].decode())  # checks the attributes
    assert all(link.startswith(("data:image/", "#")) for link in page.links)
    neighbors = content(reporter, "neighbours.json")
    assert {image["label"] for image in neighbors["images"]} == {None}
    assert content(reporter, "thumbnails.json")["labels"] is None
    assert content(reporter, "histograms.json")["distances"]["between"] == "images"
    assert content(reporter, "histograms.json")["norms_by_group"] == []
    assert BY_GROUP not in reporter.artifacts
    assert "could not be drawn" not in reporter.artifacts["report.html"].decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fraction", "held_out"), [(0.01, 0), (0.04, 1), pytest.param(0.075, 2, marks=pytest.mark.slow)]
)
def test_plots_with_few_or_no_held_out_images(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, fraction: float, held_out: int
) -> None:
    spec = resolved(pictures, train=FAST)
    # Resolving rejects a share that holds nothing out, which a small data set could still cause.
    chosen = spec.evaluate.model_copy(update={"holdout": Holdout(fraction=fraction)})
    spec = spec.model_copy(update={"evaluate": chosen})
    reporter = recorded(spec, pictures, cache, tmp_path)
    assert bool(reporter.evaluations) == bool(held_out)
    assert ("neighbours.png" in reporter.artifacts) == (held_out > 0)
    assert {"curves.png", "report.html"} <= reporter.artifacts.keys()
    for name in DATA & reporter.artifacts.keys():
        content(reporter, name)
    assert not [event for event in reporter.events if event[0] == "pictures_missing"]
    assert (reporter.last_checkpoint / "README.md").read_text()


@pytest.mark.slow
def test_single_class_has_plots(tmp_path: Path, cache: Path) -> None:
    index = ingest(image_folder(tmp_path / "pictures", classes=1, per_class=12))
    spec = resolved(
        index, train={"epochs": 1, "batch_size": 4}, evaluate={"holdout": {"fraction": 0.3}}
    )
    reporter = recorded(spec, index, cache, tmp_path / "out")
    assert reporter.artifacts.keys() >= PNGS
    assert not [event for event in reporter.events if event[0] == "pictures_missing"]
    for name in DATA:
        content(reporter, name)


def test_resumed_run_keeps_axes_and_data(
    pictures: DatasetIndex,
    cache: Path,
    tmp_path: Path,
    drawn: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Drawing takes longer than the run, and only the data are compared.
    empty = partial(new_figure, 1, 1)
    monkeypatch.setattr("dasl_core.plots.style.write_png", lambda _, path: write_png(empty, path))
    spec = resolved(
        pictures,
        name="costs $5 {and $_{6 <script>alert(1)",
        evaluate={"holdout": {"fraction": 0.3}},
        dar={"weight": 0.1},
    )
    part = Recorder(tmp_path / "part", desired=lambda step: "cancel" if step >= 5 else "run")
    assert run(spec, pictures, cache, part) == "cancelled"
    rest = recorded(spec, pictures, cache, tmp_path / "rest", part.last_checkpoint)
    for name in DATA | SHEETS:
        assert rest.artifacts[name] == drawn.artifacts[name], name
    state = load_state(rest.last_checkpoint)["plots"]
    assert [each["step"] for each in state] == [0, 4, 6]


coordinates = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(size=(20, 2)).astype(np.float32)
)


@given(points=coordinates, angle=st.floats(0, 2 * math.pi), mirrored=st.booleans())
def test_aligned_map_undoes_rotation_and_reflection(
    points: np.ndarray, angle: float, mirrored: bool
) -> None:
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    turned = points @ turn @ np.diag([1, -1 if mirrored else 1])
    np.testing.assert_allclose(aligned(turned.astype(np.float32), points), points, atol=1e-4)


@given(points=coordinates, previous=coordinates)
def test_aligned_map_keeps_distances_and_is_no_farther(
    points: np.ndarray, previous: np.ndarray
) -> None:
    turned = aligned(points, previous)
    for one, other in ((points, turned),):
        before = np.linalg.norm(one[:, None] - one[None], axis=2)
        after = np.linalg.norm(other[:, None] - other[None], axis=2)
        np.testing.assert_allclose(after, before, atol=1e-4)
    assert np.square(turned - previous).sum() <= np.square(points - previous).sum() + 1e-3


@pytest.mark.parametrize(("count", "width"), [(50, 8), (8, 50), (3, 1), (1, 4), (4, 2)])
def test_principal_components_are_those_of_the_decomposition(count: int, width: int) -> None:
    features = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    found, explained = principal_components(features)
    assert found.shape == (count, 2)
    assert np.isfinite(found).all()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    unit -= unit.mean(axis=0)
    left, values, _ = np.linalg.svd(unit.astype(np.float64), full_matrices=False)
    expected = np.zeros((count, 2))
    shown = min(2, len(values))
    expected[:, :shown] = (left * values)[:, :shown]
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-5)
    total = np.square(values).sum()
    if total > 1e-9:
        assert explained[0] == pytest.approx(values[0] ** 2 / total, abs=1e-6)


def test_map_of_equal_features_is_a_point() -> None:
    found, explained = principal_components(np.ones((5, 3), np.float32))
    assert np.abs(found).max() < 1e-6
    assert all(0 <= share <= 1 for share in explained)


def shown_at(step: int) -> Shown:
    norms = Histogram.from_values(np.ones(3))
    empty = np.zeros((0, 0), np.int64)
    places = np.zeros((1, 2))
    return Shown(step, step, "backbone", empty, empty, places, (1.0, 0.0), None, norms, None)


def test_history_is_bounded_and_keeps_its_ends() -> None:
    history = History()
    for step in range(1000):
        history.add(shown_at(step))
        assert len(history.evaluations) <= MOST_EVALUATIONS
        steps = [each.step for each in history.evaluations]
        assert (steps[0], steps[-1]) == (0, step)
        assert steps == sorted(set(steps))
    history.add(shown_at(999))
    assert [each.step for each in history.evaluations].count(999) == 1


@pytest.mark.parametrize(
    "values", [[], [1.0], [2.0, 2.0], [math.nan, 1.0, math.inf], [1e30, -1e30]]
)
def test_histogram_of_any_numbers_is_finite(values: list[float]) -> None:
    histogram = Histogram.from_values(np.array(values))
    assert sum(histogram.counts) == np.isfinite(values).sum()
    assert np.isfinite([histogram.low, histogram.high, histogram.mean]).all()
    assert histogram.low < histogram.high


def test_variance_of_norms_by_group_is_that_of_the_analysis_of_variance() -> None:
    """The eight norms of three groups, as computed by hand; an image without a group does not count."""
    norms = np.array([1.0, 3, 4, 6, 8, 9, 10, 77])
    found = GroupNorms.from_values("patient", norms, [*"aabbbcc", ""])
    assert found is not None
    assert found.by == "patient"
    assert [row[:3] for row in found.rows] == [("a", 2, 2.0), ("b", 3, 6.0), ("c", 2, 9.5)]
    assert [row[3] for row in found.rows] == pytest.approx([1.0, math.sqrt(8 / 3), 0.5])
    mean = norms[:7].mean()
    between = 2 * (2 - mean) ** 2 + 3 * (6 - mean) ** 2 + 2 * (9.5 - mean) ** 2
    within = 2 + 8 + 0.5
    assert found.eta_squared == pytest.approx(between / (between + within))
    noise = within / (7 - 3)
    omega = (between - 2 * noise) / (between + within + noise)
    assert found.omega_squared == pytest.approx(omega)


def test_groups_without_effect_explain_nothing_beyond_chance() -> None:
    random = np.random.default_rng(0)
    names = [f"{number // 3:03}" for number in range(1_500)]
    found = [GroupNorms.from_values("class", random.normal(size=1_500), names) for _ in range(40)]
    assert all(each is not None and len(each.rows) == 12 for each in found)
    shares = np.array([(each.eta_squared, each.omega_squared) for each in found if each])
    assert shares[:, 0].mean() == pytest.approx(499 / 1499, abs=0.01)  # one in three, by chance
    assert shares[:, 1].mean() == pytest.approx(0, abs=0.015)


@pytest.mark.parametrize("names", ["", "aaa", "abc", ["", "", "a"], ["", "a", "b"]])
def test_norms_without_groups_to_compare_have_none(names: str | list[str]) -> None:
    assert GroupNorms.from_values("class", np.ones(len(names)), names) is None


def test_equal_norms_leave_nothing_to_explain() -> None:
    found = GroupNorms.from_values("class", np.full(4, 0.1), "aabb")
    assert found is not None
    assert found.omega_squared == found.eta_squared == 0


Facts = Callable[..., RunFacts]


@pytest.fixture
def facts(pictures: DatasetIndex) -> Facts:
    base = RunFacts(
        spec=resolved(pictures),
        day=date(2026, 11, 26),
        images=27,
        train_images=24,
        held_out=3,
        searched=24,
        classes=3,
        anchors=Anchors(),
    )
    return lambda **changes: replace(base, **changes)


def test_norms_of_many_groups_with_any_names_are_drawn(facts: Facts, tmp_path: Path) -> None:
    names = [f"$x_{{{number // 2}" + "long" * 30 for number in range(4_096)]
    norms = np.random.default_rng(0).uniform(size=4_096)
    by_group = GroupNorms.from_values("$a_{column", norms, names)
    history = History([replace(shown_at(3), by_group=by_group)])
    figure = write_png(lambda: norms_by_group(history, facts()), tmp_path / "by.png")
    assert len(figure.axes[0].get_yticks()) == 12
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert sum(text.endswith(", 2 images") for text in texts) == 12
    assert len(to_svg(figure, "by")) < 60_000


@pytest.mark.parametrize(
    ("held_out", "text"), [(0, ""), (30, "30 images; one is 3.3 %"), (2_615, "2,615 images")]
)
def test_one_image_is_told_where_it_counts(facts: Facts, held_out: int, text: str) -> None:
    assert facts(held_out=held_out).resolution("knn_top1") == text


@pytest.mark.parametrize(
    "losses", [[1e308, -1e308], [math.inf, 1.0], [math.nan, math.nan], [], [2.0, 1e300, 1.0]]
)
def test_curves_draw_losses_of_any_size(
    facts: Facts, tmp_path: Path, losses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    run = facts(losses=losses, anchors=Anchors(chance_loss=2.7))
    write_png(lambda: curves(run), tmp_path / "curves.png")
    assert Image.open(tmp_path / "curves.png").format == "PNG"
    assert not caplog.records


def test_curves_are_the_same_bytes(facts: Facts, tmp_path: Path) -> None:
    run = facts(losses=[2.0, 1.0], epochs=[{"loss_simclr": 2.0}] * 2)
    for name in ("one.png", "other.png"):
        write_png(lambda: curves(run), tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()


def records(*values: tuple[str, float], metric: str = "knn_top1") -> list[dict[str, Any]]:
    return [
        {"step": step, "epoch": step, "subject": subject, "metrics": {metric: value}}
        for step, (subject, value) in enumerate(values)
    ]


def test_curves_of_backbone_and_embedding_are_separate(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[float]] = []
    plot = Axes.plot

    def record(axes: Axes, *data: Any, **options: Any) -> Any:
        lines.append(list(data[1]))
        return plot(axes, *data, **options)

    monkeypatch.setattr(Axes, "plot", record)
    values = (("raw", 0.1), ("untrained", 0.2), ("backbone", 0.3), ("embedding", 0.4))
    anchors = Anchors({"knn_top1": 0.05})
    figure = curves(facts(losses=[1.0], evaluations=records(*values), anchors=anchors))
    assert lines == [[1.0], [0.2, 0.3], [0.4]]
    texts = {text.get_text() for axes in figure.axes for text in axes.texts}
    assert {
        "trained 30.0 %",
        "embedding 40.0 %",
        "raw pixels 10.0 %",
        "start 20.0 %",
        "chance 5.0 %",
    } <= texts


def test_epochs_have_whole_ticks(facts: Facts) -> None:
    for epochs in (1, 4, 6, 300):
        axes = curves(facts(losses=[1.0] * epochs)).axes[0]
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


@given(ys=st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_labels_of_lines_do_not_overlap(ys: list[float]) -> None:
    figure = new_figure(4, 3)
    axes = figure.add_subplot()
    axes.set_ylim(0, 1)
    label_lines(figure, axes, [(y, str(y), "black") for y in ys])
    notes: list[Any] = list(axes.texts)
    at = sorted(note.xy[1] for note in notes)
    height = 72 * 3 * axes.get_position().height
    assert all((b - a) * height >= 10.4 for a, b in pairwise(at))


def test_plot_that_cannot_be_drawn_is_logged(
    facts: Facts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = "no verdict"
    write_png(lambda: curves(facts(anchors=broken)), tmp_path / "curves.png")
    assert min(Image.open(tmp_path / "curves.png").size) > 200
    assert "curves.png could not be drawn" in caplog.text


def test_full_disk_for_plots_does_not_fail_finished_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    class FullDisk(Recorder):
        def artifact(self, file: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    reporter = FullDisk(tmp_path)
    assert run(resolved(pictures, train=FAST), pictures, cache, reporter) == "succeeded"
    assert reporter.checkpoints[-1][2]  # final
    (missing,) = [event for event in reporter.events if event[0] == "pictures_missing"]
    assert "No space left on device" in missing[1]
    assert missing[2] == {"step": 0}, "it is reported once, when it happens first"


def test_matplotlib_without_writable_folder_does_not_fail_finished_run(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "dasl_core.plots.curves":
            raise OSError("Matplotlib requires access to a writable cache directory")
        return load(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    reporter = recorded(resolved(pictures, train=FAST), pictures, cache, tmp_path)
    assert reporter.artifacts.keys() == DATA | SHEETS
    assert "writable cache directory" in reporter.events[-1][1]


@pytest.mark.slow
def test_training_does_not_import_matplotlib() -> None:
    code = "import sys, dasl_core.train.build; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sample_of_a_large_data_set_is_bounded() -> None:
    for held_out, train, every in (
        (1, 10, 1),
        (100_000, 1_200_000, 1),
        (4_000, 50, 1),
        (100_000, 10**6, 100),
    ):
        sets = SimpleNamespace(held_out=range(held_out), train=range(train))
        plotter: Any = SimpleNamespace(run=SimpleNamespace(data=sets), searched_every=every)
        plotter._train_stride = lambda shown, p=plotter: Plotter._train_stride(p, shown)
        shown = Plotter.on_map(plotter)
        assert 0 < len(shown) <= 4_096
        assert len(set(shown)) == len(shown)
        assert shown[-1] < held_out + train
        assert any(each >= held_out for each in shown)
        assert torch.tensor(shown).diff().gt(0).all()
