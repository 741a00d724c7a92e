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


def test_wheel_contains_every_file_of_the_page(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    files = [path for path in (ROOT / "service" / "web").rglob("*") if path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    with ZipFile(wheel) as file:
        assert expected <= set(file.namelist())


def test_wheel_contains_the_demo_with_its_licenses(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    expected = {f"service/demo/{name}" for name in ("LICENSES.txt", "demo.yaml", "emoji.tar.gz")}
    with ZipFile(wheel) as file:
        assert expected <= set(file.namelist())
