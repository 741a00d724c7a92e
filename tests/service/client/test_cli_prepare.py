"""`dasl prepare`: published data sets from the command line."""

import json
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from dasl_core.data.published import PUBLISHED
from service.cli.app import app
from service.cli.prepare import Published
from tests.support.command_line import run


def test_prepare_prints_parts_and_warnings(tmp_path: Path) -> None:
    for part, product in (("train", 1), ("test", 2)):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{part}.png")
        (tmp_path / f"Ebay_{part}.txt").write_text(f"header\n1 {product} 1 {part}.png\n")
    done = CliRunner().invoke(app, ["prepare", "sop", str(tmp_path), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'out' / 'train'}: 1 images of 1 classes" in done.stdout
    assert "Warning: test: the published part has 60,502 images of 11,316 classes" in done.stderr
    done = CliRunner().invoke(
        app, ["prepare", "sop", str(tmp_path), str(tmp_path / "out"), "--json"]
    )
    assert [part["name"] for part in json.loads(done.stdout)] == ["train", "test"]


def test_prepare_fails_with_the_missing_file(tmp_path: Path) -> None:
    done = run("prepare", "sop", str(tmp_path), str(tmp_path / "out"), code=1)
    assert "Error: Ebay_train.txt is missing" in done.stderr


def test_names_are_those_of_the_core() -> None:
    assert list(Published) == list(PUBLISHED)
