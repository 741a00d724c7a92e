"""What `dasl experiments plot` draws."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from service.cli.experiment_plot import draw, figure_of
from service.wire.experiments import (
    DifferenceView,
    ExperimentView,
    MetricResult,
    VariantCurve,
    VariantResult,
)
from tests.support.answers import answer_of

NAMES = ("baseline", "dar", "dar.weight=0.1, train.epochs=50, backbone.name=resnet18")


def curves(*steps: int) -> list[VariantCurve]:
    """Return curves of three seeds, evaluated after these steps."""
    values = [0.2 + 0.01 * step for step in steps]
    least, most = [value - 0.02 for value in values], [value + 0.02 for value in values]
    return [
        VariantCurve(
            variant=name,
            step=list(steps),
            n=[3] * len(steps),
            mean=values,
            std=[0.02] * len(steps),
            min=least,
            max=most,
        )
        for name in NAMES
    ]


def table(*differences: float) -> MetricResult:
    """Return values in which each variant differs from the baseline by these, one for each seed."""
    mean = sum(differences) / len(differences)
    of_all = DifferenceView(
        n=len(differences),
        mean=mean,
        std=None,
        bootstrap_interval=None,
        detectable=None,
        min=min(differences),
        max=max(differences),
        t_interval=(mean - 0.05, mean + 0.05),
    )
    variants = [
        answer_of(
            VariantResult, variant=NAMES[0], values=dict.fromkeys(range(len(differences)), 0.5)
        )
    ]
    values = {seed: 0.5 + value for seed, value in enumerate(differences)}
    variants += [
        answer_of(VariantResult, variant=name, values=values, difference=of_all)
        for name in NAMES[1:]
    ]
    return MetricResult.model_validate(
        answer_of(MetricResult, metric="knn_top1", variants=variants)
    )


def drawn(figure: Figure) -> Figure:
    figure.draw_without_rendering()
    return figure


def test_single_evaluation_is_visible() -> None:
    figure = drawn(figure_of("birds", curves(10), table(0.01, 0.02, 0.03)))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "after step 10"
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    places = [np.asarray(line.get_xydata())[0] for line in axes.get_lines()]
    assert all(left < x < right and low < y < high for x, y in places)
    assert {line.get_marker() for line in axes.get_lines()} == {"o"}
    assert len({x for x, _ in places}) == 3, "variants of equal means hide one another"


def test_few_evaluations_have_markers_and_many_have_none() -> None:
    for steps, marker in (((5, 10), "o"), (range(1, 41), "")):
        lines = figure_of("birds", curves(*steps), None).axes[0].get_lines()
        assert [line.get_marker() for line in lines] == [marker] * 3


def test_equal_differences_are_all_visible() -> None:
    """Two of three pairs are equal, as is frequent with few held-out images."""
    axes = figure_of("birds", curves(5, 10), table(0.025, 0.025, -0.05)).axes[1]
    for points in axes.collections:
        assert len(np.unique(np.round(np.asarray(points.get_offsets()), 6), axis=0)) == 3
    assert len(axes.collections) == 2
    [low, high] = sorted(axes.get_ylim())
    heights = [np.asarray(points.get_offsets())[:, 1] for points in axes.collections]
    assert all(((low < each) & (each < high)).all() for each in heights)


def test_no_text_is_clipped() -> None:
    figure = drawn(figure_of("is-dar-worth-it, 3 seeds", curves(5, 10), table(0.01, 0.02)))
    for axes in figure.axes:
        for text in (axes.title, axes.xaxis.label, *axes.get_yticklabels()):
            box = text.get_window_extent()
            assert box.x0 >= 0, text.get_text()
            assert box.x1 <= figure.bbox.x1, text.get_text()
            assert box.y0 >= 0, text.get_text()


@pytest.mark.parametrize(("seeds", "words"), [([0], "a$b$, 1 seed"), ([0, 1, 2], "a$b$, 3 seeds")])
def test_title_has_the_name_and_the_number_of_seeds(
    tmp_path: Path, seeds: list[int], words: str
) -> None:
    file = tmp_path / "plot.svg"
    experiment = ExperimentView.model_validate(
        answer_of(ExperimentView, id="exp", name="a$b$", seeds=seeds)
    )
    draw(experiment, curves(5, 10), table(0.01, 0.02, 0.03), file)
    assert f"<!-- {words} -->" in file.read_text()
