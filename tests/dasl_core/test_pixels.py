"""Channels, window and normalization: what "auto" becomes by the facts of a data set and its weights."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dasl_core.spec import (
    DatasetFacts,
    FieldProblem,
    JobSpec,
    Normalization,
    SpecError,
    WeightsRecord,
    branch_problems,
    evaluation_problem,
    resolve,
)
from dasl_core.spec.normalization import IMAGENET
from dasl_core.spec.resolve.facts import QUANTILES
from dasl_core.spec.resolve.pixels import percentile
from dasl_core.spec.resolved import ResolvedBackbone
from dasl_core.spec.weights_record import NO_RECORD

EIGHT_BIT = DatasetFacts(num_images=1000, num_classes=10, median_size=72)
# A 12-bit X-ray: values 0 to 4095, most of them dark.
VALUES = (0, 14, 20, 30, 40, 60, 200, 500, 900, 2000, 2600, 3000, 3300, 3902, 4095)
XRAY = EIGHT_BIT.model_copy(
    update={"bands": 1, "dtype": "uint16", "quantiles": VALUES, "mean": (700.0,), "std": (600.0,)}
)


def backbone(
    facts: DatasetFacts, record: WeightsRecord = NO_RECORD, **settings: Any
) -> ResolvedBackbone:
    return resolve(
        JobSpec.model_validate({"dataset": "pictures", "backbone": settings}), facts, record
    ).backbone


def problem(
    facts: DatasetFacts, record: WeightsRecord = NO_RECORD, **settings: Any
) -> FieldProblem:
    with pytest.raises(SpecError) as raised:
        backbone(facts, record, **settings)
    (only,) = raised.value.problems
    return only


def facts(**changes: Any) -> DatasetFacts:
    return DatasetFacts.model_validate({**dict(EIGHT_BIT), **changes})


def test_facts_of_older_ingests_are_those_of_8_bit_color() -> None:
    stored = {"num_images": 9, "num_classes": None, "median_size": 64}
    read = DatasetFacts.model_validate(stored)
    assert (read.bands, read.dtype, read.quantiles, read.mean, read.std) == (
        3,
        "uint8",
        *3 * (None,),
    )
    chosen = backbone(read)
    assert (chosen.in_channels, chosen.window) == (3, (0, 255))
    assert chosen.normalization == IMAGENET


@pytest.mark.parametrize(
    ("bands", "dtype", "channels"),
    [
        (1, "uint8", 3),
        (2, "uint8", 2),
        (3, "uint16", 3),
        (4, "uint8", 4),  # opacity and inks count as color, of 3 bands
        (4, "uint16", 4),
        (5, "float32", 5),
        (13, "uint16", 13),
    ],
)
def test_auto_channels_follow_the_bands(bands: int, dtype: str, channels: int) -> None:
    assert backbone(facts(bands=bands, dtype=dtype)).in_channels == channels
    assert backbone(facts(bands=bands, dtype=dtype), in_channels=channels).in_channels == channels


@pytest.mark.parametrize(
    ("bands", "channels"), [(1, 5), (2, 1), (2, 3), (3, 5), (4, 3), (5, 1), (5, 3), (5, 4)]
)
def test_channels_that_no_decoder_makes_of_the_images_are_refused(
    bands: int, channels: int
) -> None:
    refused = problem(facts(bands=bands), in_channels=channels)
    assert refused.field == "backbone.in_channels"
    assert f"the images, which have {bands} band" in refused.message
    record = WeightsRecord(IMAGENET.with_channels(channels), "small", None, in_channels=channels)
    refused = problem(facts(bands=bands), record, pretrained="/w/folder")
    assert refused.field == "backbone.pretrained"
    assert f"has weights for {channels} channel" in refused.message


def test_auto_channels_are_those_of_the_checkpoint() -> None:
    record = WeightsRecord(IMAGENET.with_channels(1), "small", None, in_channels=1)
    assert backbone(facts(bands=3), record, pretrained="/w/folder").in_channels == 1


@pytest.mark.parametrize(
    ("dtype", "window"),
    [("uint8", (0, 255)), ("uint16", (0, 65535)), ("int16", (-32768, 32767)), ("float32", (0, 1))],
)
def test_auto_window_without_measurement_is_the_range_of_the_type(
    dtype: str, window: tuple[float, float]
) -> None:
    assert backbone(facts(dtype=dtype)).window == window


def test_window_of_deeper_images_follows_their_quantiles() -> None:
    assert backbone(XRAY).window == (14, 3902)
    assert backbone(XRAY, window=[100, 200]).window == (100, 200)
    assert backbone(XRAY, window={"percentiles": [0, 100]}).window == (0, 4095)
    assert backbone(XRAY, window={"percentiles": [5, 62.5]}).window == (60, 700)
    eight_bit = facts(quantiles=[0, *VALUES[1:-1], 4095])
    assert backbone(eight_bit).window == (0, 255)
    constant = facts(dtype="uint16", quantiles=[7] * len(QUANTILES))
    assert backbone(constant).window == (0, 65535)
    # Such as dots on black: less than a thousandth of the values.
    sparse = facts(dtype="uint16", quantiles=[*[7] * (len(QUANTILES) - 1), 900])
    assert backbone(sparse).window == (7, 900)


def test_named_type_of_the_values_is_that_of_the_data_set() -> None:
    found = problem(EIGHT_BIT, pixel_type="uint16")
    assert (found.field, found.message) == ("backbone.pixel_type", "the data set has uint8 values")
    assert backbone(EIGHT_BIT, pixel_type="uint8") == backbone(EIGHT_BIT)


def test_percentiles_need_different_measured_values() -> None:
    unmeasured = problem(EIGHT_BIT, window={"percentiles": [1, 99]})
    assert unmeasured.field == "backbone.window"
    assert "were not measured" in unmeasured.message
    constant = facts(dtype="uint16", quantiles=[7] * len(QUANTILES))
    assert problem(constant, window={"percentiles": [1, 99]}).message == (
        "is empty: both percentiles of the data set's values are 7"
    )


IN_8_BITS = tuple(value / 16 for value in VALUES)
FULL = tuple(value * 16 for value in VALUES)


@pytest.mark.parametrize(
    ("trained", "evaluated", "message"),
    [
        (EIGHT_BIT, facts(bands=1), None),
        (EIGHT_BIT, facts(bands=4), "4 bands, and backbone.in_channels is 3"),
        (EIGHT_BIT, facts(bands=5), "5 bands, and backbone.in_channels is 3"),
        (EIGHT_BIT, facts(bands=4, dtype="float32"), "4 bands, and backbone.in_channels is 3"),
        (facts(bands=4), facts(bands=4), None),
        (facts(bands=5), EIGHT_BIT, "3 bands, and backbone.in_channels is 5"),
        (facts(bands=5), facts(bands=5), None),
        (XRAY, XRAY.model_copy(update={"quantiles": IN_8_BITS}), None),  # dark, but in the units
        (XRAY, facts(quantiles=IN_8_BITS), "has uint8 values from 0.875 to 243.875, 224.875 to 6"),
        (facts(dtype="uint16", quantiles=FULL), facts(quantiles=IN_8_BITS), None),
        (facts(quantiles=IN_8_BITS), facts(dtype="uint16", quantiles=FULL), None),
        (facts(quantiles=IN_8_BITS), XRAY, "has uint16 values from 14 to 3902"),
        (XRAY, facts(dtype="int16", quantiles=VALUES), None),
        (XRAY, facts(), None),  # ingested by an older version, which measured nothing
    ],
)
def test_images_to_evaluate_on_have_the_bands_and_units_of_the_network(
    trained: DatasetFacts, evaluated: DatasetFacts, message: str | None
) -> None:
    found = evaluation_problem("other", evaluated, trained, backbone(trained))
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert (found.field, found.given) == ("evaluate.dataset", "other")
        assert message in found.message


@pytest.mark.parametrize("quantiles", [[0, 1], [*VALUES[:-1], 0]])
def test_quantiles_that_are_none_are_refused(quantiles: list[float]) -> None:
    with pytest.raises(ValidationError, match="numbers that do not decrease"):
        facts(quantiles=quantiles)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=len(QUANTILES), max_size=len(QUANTILES)).map(sorted),
    st.floats(0, 100),
)
def test_percentile_is_that_of_numpy(values: list[float], percent: float) -> None:
    expected = np.interp(round(percent / 100, 12), QUANTILES, values)
    assert percentile(tuple(values), percent) == pytest.approx(expected, abs=1e-6)


def test_statistics_of_deeper_images_are_in_units_of_the_window() -> None:
    chosen = backbone(XRAY, window=[100, 2100])
    assert chosen.in_channels == 3  # gray is repeated
    assert chosen.mean == chosen.std == (0.3,) * 3
    assert list(chosen.normalization.window) == [100, 2100]
    beyond = backbone(XRAY, window=[700, 701])
    assert (beyond.mean[0], beyond.std[0]) == (0, 1)


def test_other_bands_are_normalized_by_their_own_statistics() -> None:
    mean, std = (51.0, 102.0, 0.0, 255.0, 25.5), (25.5, 51.0, 0.0, 25.5, 25.5)
    chosen = backbone(facts(bands=5, mean=mean, std=std))
    assert chosen.mean == (0.2, 0.4, 0.0, 1.0, 0.1)
    assert chosen.std == (0.1, 0.2, 0.001, 0.1, 0.1)
    unmeasured = backbone(facts(bands=5))
    assert (unmeasured.mean, unmeasured.std) == ((0.5,) * 5, (0.25,) * 5)
    assert problem(facts(bands=5), mean=[0.5] * 3).message == "has 3 values for 5 channels"


def test_weights_keep_their_normalization_and_do_not_bind_other_images() -> None:
    start, record = {"pretrained": "/w/resnet18.pth"}, WeightsRecord(IMAGENET)
    assert backbone(XRAY, record, **start).mean == IMAGENET.mean
    assert backbone(facts(bands=5), record, **start).mean == (0.449,) * 5
    own = [0.3, 0.4, 0.5]
    assert problem(EIGHT_BIT, record, mean=own, **start).field == "backbone.mean"
    assert backbone(XRAY, record, mean=own, **start).mean == (0.3, 0.4, 0.5)
    assert backbone(facts(bands=5), record, mean=[0.3] * 5, **start).mean == (0.3,) * 5
    # Weights that were trained in the same window bind.
    deep = WeightsRecord(Normalization(mean=(0.1,) * 3, std=(0.2,) * 3, window=(14, 3902)))
    assert backbone(XRAY, deep, **start).mean == (0.1,) * 3
    assert problem(XRAY, deep, mean=own, **start).field == "backbone.mean"


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"extra_bands": "mean", "in_channels": 5}, "without a file of weights"),
        ({"extra_bands": "mean", "in_channels": 5, "pretrained": "/w/folder"}, "without a file"),
        ({"extra_bands": "mean", "pretrained": "/w/a.pth"}, "with 3 channels"),
        ({"extra_bands": "random", "in_channels": 2, "pretrained": "/w/a.pth"}, "with 2 channels"),
        ({"extra_bands": "random", "in_channels": 1, "pretrained": "/w/a.pth"}, "with 1 channel"),
    ],
)
def test_adapting_what_is_not_adapted_is_refused(settings: dict[str, Any], cause: str) -> None:
    found = problem(facts(bands=5 if settings.get("in_channels") == 5 else 3), **settings)
    assert found.field == "backbone.extra_bands"
    assert cause in found.message


def test_branch_keeps_the_window() -> None:
    source, other = (
        resolve(
            JobSpec.model_validate({"dataset": "pictures", "backbone": {"window": window}}), XRAY
        )
        for window in ("auto", [14, 4000])
    )
    assert branch_problems(source, source) == []
    assert "backbone.window" in [each.field for each in branch_problems(source, other)]
