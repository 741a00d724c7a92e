"""Rows of other libraries: each trains for an epoch on made-up files, and its table stands beside the published one."""

from pathlib import Path

import pytest

from dasl_core.spec import DatasetFacts, JobSpec, load_spec, resolve
from examples.papers.__main__ import files
from examples.papers.row import Row
from examples.rows.__main__ import main, parts
from examples.rows.table import SPECS, rows
from tests.dasl_core.test_published import as_python_2, cifar_batch, cifar_records
from tests.support.training_world import image_folder, skip_plots, without_onnx

ROWS = {row.name: row for row in rows()}
IMAGES = {"cifar10": (50_000, 10), "cifar100": (50_000, 100), "imagenette": (9_469, 10)}


def test_specs_are_those_of_the_rows_and_resolve() -> None:
    assert set(SPECS.glob("*.yaml")) == {path for path in files() if path.parent == SPECS}
    for row in ROWS.values():
        images, classes = IMAGES[row.dataset]
        side = 32 if row.dataset.startswith("cifar") else 160
        facts = DatasetFacts(num_images=images, num_classes=classes, median_size=side)
        resolved = resolve(JobSpec.model_validate(load_spec(row.file)), facts)
        assert resolved.train.clip is None
        assert resolved.backbone.stem == ("small" if side == 32 else "standard")
        # A best epoch is the best of all.
        assert row.epoch != "best" or resolved.evaluate.every_epochs == 1


def cifar10(folder: Path) -> None:
    cifar_records(folder / "cifar-10-batches-bin", b"", "batches.meta.txt")


def cifar100(folder: Path) -> None:
    for name, labels in (("train", [0, 1] * 6), ("test", [0, 1] * 2)):
        (folder / name).write_bytes(as_python_2(cifar_batch(labels, b"fine_labels")))
    (folder / "meta").write_bytes(as_python_2({b"fine_label_names": [b"apple", b"baby"]}))


def imagenette(folder: Path) -> None:
    for part, count in (("train", 6), ("val", 2)):
        image_folder(folder / part, classes=2, per_class=count, size=(48, 40))


FILES = {"cifar10": cifar10, "cifar100": cifar100, "imagenette": imagenette}


def trained(
    row: Row, folder: Path, changes: list[str], capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Train a row for an epoch; return the lines printed after the training."""
    source = folder / "source"
    source.mkdir()
    FILES[row.dataset](source)
    short = ["train.epochs=1", "train.warmup_epochs=0", "train.batch_size=4", *changes]
    options = [part for change in short for part in ("--set", change)]
    code = main([row.name, "--data", str(source), "-o", str(folder / "out"), *options])
    out = capsys.readouterr().out
    assert code == 0, out
    return out[out.index("Row of ") :].splitlines()


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no ONNX with the last checkpoint and draw no plots: each takes longer than the run itself."""
    monkeypatch.setenv("DASL_CACHE_DIR", str(tmp_path / "cache"))
    skip_plots(monkeypatch)
    monkeypatch.setattr("dasl_core.train.checkpointing.export_backbone", without_onnx)


# One row of a best epoch, and one of a linear probe.
SMALL = {
    "imagenette-simclr": ["backbone.image_size=32"],
    "cifar100-simclr": ["evaluate.linear={epochs: 2}"],
}


@pytest.mark.parametrize(("name", "changes"), SMALL.items())
def test_row_prints_ours_beside_theirs(
    name: str, changes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[name]
    lines = trained(row, tmp_path, ["backbone.name=test_resnet", *changes], capsys)
    metric, value = next(iter(row.published.items()))
    header, _, figures = lines[2:5]
    of_epoch = " (best epoch)" if row.epoch else ""
    assert header == f"| | Published{of_epoch} | Last epoch (1) | Best epoch (1) |"
    cells = figures.strip("| ").split(" | ")
    assert cells[:2] == [metric, f"{value:.2f}"]
    assert 0 <= float(cells[2]) <= 100
    assert lines[-3].startswith("Changed here: train.epochs=1, ")
    assert lines[-1] == f"Differences: {row.note}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_each_row_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = ROWS[name]
    changes = ["evaluate.linear={epochs: 2}"] if row.spec["evaluate"].get("linear") else []
    if "vits" in name:
        changes += ["backbone.name=test_vit", "backbone.image_size=160"]
    lines = trained(row, tmp_path, changes, capsys)
    assert lines[4].startswith(f"| {next(iter(row.published))} | ")


def test_other_folders_are_refused_with_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no folders train and val; expected the unpacked"):
        parts(ROWS["imagenette-byol"], tmp_path, tmp_path / "out")
    with pytest.raises(ValueError, match=r"batches\.meta is missing; looked in"):
        parts(ROWS["cifar10-byol"], tmp_path, tmp_path / "out")
