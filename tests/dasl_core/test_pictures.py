"""Pictures of a run: real PNGs, whatever a job is called and however little there is to see."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from training_world import Recorder, resolved, run

from dasl_core.data.index import DatasetIndex
from dasl_core.spec import Holdout


@pytest.mark.parametrize(("fraction", "held_out"), [(0.01, 0), (0.04, 1), (0.075, 2)])
def test_few_or_no_held_out_images(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, fraction: float, held_out: int
) -> None:
    reporter = Recorder(tmp_path)
    spec = resolved(pictures)
    # Resolving refuses a share that holds nothing out; so small a data set could.
    chosen = spec.evaluate.model_copy(update={"holdout": Holdout(fraction=fraction)})
    spec = spec.model_copy(update={"evaluate": chosen})
    assert run(spec, pictures, cache, reporter) == "succeeded"
    assert bool(reporter.evaluations) == bool(held_out)
    assert ("neighbours.png" in reporter.artifacts) == (held_out > 1)
    assert "curves.png" in reporter.artifacts
    assert (reporter.last_checkpoint / "README.md").read_text()


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_pngs_with_something_to_see(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, channels: int
) -> None:
    reporter = Recorder(tmp_path)
    # A name that a plotting library could take for a formula, and one that is none.
    spec = resolved(
        pictures,
        name="costs $5 {and $_{6",
        backbone={"in_channels": channels},
        evaluate={"holdout": {"fraction": 0.3}},
    )
    assert run(spec, pictures, cache, reporter) == "succeeded"
    assert reporter.artifacts.keys() == {"curves.png", "neighbours.png"}
    for content in reporter.artifacts.values():
        picture = Image.open(io.BytesIO(content))
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10
