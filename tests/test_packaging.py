"""Files of the wheel that no import needs."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


def test_wheel_marks_dasl_core_as_typed(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with ZipFile(wheel) as file:
        assert "dasl_core/py.typed" in file.namelist()
