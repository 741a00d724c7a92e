"""`dasl backbones`."""

import csv
import json
from typing import Any

from typer.testing import CliRunner

from service.cli.app import app
from tests.support.command_line import run


def _names(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["backbones", *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    return [each["name"] for each in json.loads(result.stdout)]


def test_backbones_are_chosen_by_pattern_family_and_size() -> None:
    assert _names("dinov2") == _names("*dinov2*")
    assert "vit_small_patch14_dinov2" in _names("dinov2", "--family", "vit", "--tested")
    small = _names("--family", "resnet", "--max-parameters", "12")
    assert small[0] == "test_resnet"
    assert "resnet18" in small
    assert "resnet50" not in small


def test_backbones_are_listed_smallest_first() -> None:
    result = CliRunner().invoke(app, ["backbones", "resnet*", "--csv"])
    rows = list(csv.DictReader(result.stdout.splitlines()))
    parameters = [int(row["PARAMETERS"]) for row in rows]
    assert parameters == sorted(parameters)
    assert next(row for row in rows if row["NAME"] == "resnet18")["FEATURES"] == "512"
    table: Any = CliRunner().invoke(app, ["backbones", "resnet18"])
    assert "11.2 M" in table.stdout


def test_unknown_backbone_or_family_names_a_close_one() -> None:
    unknown = run("backbones", "resnet81", code=1)
    assert "did you mean 'resnet18'?" in unknown.stderr
    family = run("backbones", "--family", "resnets", code=2)
    assert "did you mean 'resnet'?" in " ".join(family.stderr.split())
