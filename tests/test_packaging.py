"""Distributions contain the right files, and published specs are valid."""

import subprocess
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from dasl_core.spec import DatasetFacts, JobSpec, load_spec, resolve
from service.experiments.schemas import ExperimentRequest
from service.experiments.variants import variant_specs
from tools import sync_client

ROOT = Path(__file__).parents[1]


def contents(wheel: str | Path) -> dict[str, bytes]:
    """Return the contents of the files of a wheel."""
    with ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def packages() -> set[str]:
    """Return the files of the packages: what git holds and what is generated, or without git all that are there."""
    of = ("dasl_core", "service", "workers")
    paths = [path for package in of for path in (ROOT / package).rglob("*") if path.is_file()]
    names = {path.relative_to(ROOT).as_posix() for path in paths if path.suffix != ".pyc"}
    if not (ROOT / ".git").exists():
        return names
    listed = subprocess.check_output(["git", "ls-files", "-z", *of], cwd=ROOT, text=True)
    generated = {path.relative_to(ROOT).as_posix() for path in sync_client.generate()}
    return generated | names & set(listed.split("\0"))


@pytest.mark.slow
def test_wheel_and_sdist_contain_the_packages_and_nothing_else(
    built_wheel: Path, tmp_path: Path
) -> None:
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(archive) as file:
        assert [member.name for member in file if not member.isfile()] == []
        found = {name.partition("/")[2] for name in file.getnames()}
        file.extractall(tmp_path)  # `filter` is newer than Python 3.11.2
    beside = {"LICENSE", "README.md", "pyproject.toml", ".gitignore", "PKG-INFO"}
    beside |= {"hatch_build.py", "tools/sync_client.py"}
    assert found ^ (packages() | beside) == set(), "see `git status`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    name = f"dasl-{project['version']}"
    (rebuilt,) = WheelBuilder(str(tmp_path / name)).build(
        directory=str(tmp_path), versions=["standard"]
    )
    wheel, again = contents(built_wheel), contents(rebuilt)
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    assert wheel.keys() ^ (packages() | {f"{name}.dist-info/{each}" for each in about}) == set()
    assert {each for each in wheel.keys() | again if wheel.get(each) != again.get(each)} == set()
    metadata = message_from_bytes(wheel[f"{name}.dist-info/METADATA"])
    assert set(metadata.get_all("Provides-Extra", ())) == set(project["optional-dependencies"])
    assert set(metadata["Requires-Python"].split(",")) == set(project["requires-python"].split(","))
    assert b"dasl = service.cli:main" in wheel[f"{name}.dist-info/entry_points.txt"]


def test_published_specs_and_experiments_are_valid() -> None:
    facts = DatasetFacts(num_images=100_000, num_classes=1000, median_size=64)
    for file in [path for of in ("examples", "service") for path in (ROOT / of).rglob("*.y*ml")]:
        content = load_spec(file)
        if "spec" in content:
            asked = ExperimentRequest.model_validate(content)
            specs, problems = variant_specs(
                asked.spec, asked.all_variants(), asked.seeds, asked.name
            )
        else:
            specs, problems = {"": JobSpec.model_validate(content)}, []
        assert problems == [], file
        assert all(resolve(spec, facts) for spec in specs.values())
