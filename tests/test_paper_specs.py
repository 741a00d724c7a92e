"""The specs of the papers' tables: generated from these tables, and valid for their data sets."""

from __future__ import annotations

from dasl_core.data.published import PUBLISHED
from dasl_core.spec import DatasetFacts, JobSpec, load_spec, resolve
from examples.papers.__main__ import files, rows
from examples.papers.row import SPECS


def test_specs_and_tables_are_those_that_the_rows_give() -> None:
    written = files()
    assert set(SPECS.glob("*.yaml")) == {path for path in written if path.parent == SPECS}
    for path, text in written.items():
        assert path.read_text() == text, f"{path.name}: run `python -m examples.papers`"


def test_every_spec_resolves_for_the_size_of_its_data_set() -> None:
    for row in rows():
        images, classes = PUBLISHED[row.dataset].sizes["train"]
        side = 32 if row.dataset.startswith("cifar") else 256
        facts = DatasetFacts(num_images=images, num_classes=classes, median_size=side)
        spec = load_spec(row.file)
        resolved = resolve(JobSpec.model_validate(spec), facts)
        assert resolved.evaluate.dataset == f"{row.dataset}-{row.test_part}"
        assert row.test_part in PUBLISHED[row.dataset].sizes
        assert resolved.evaluate.crop_pct == (1 if side == 32 else 0.875)
        if resolved.method.supervised:
            assert resolved.evaluate.on == "embedding"
