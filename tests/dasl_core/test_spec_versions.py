"""Versions of stored specs: upgraders, and specs that this version cannot read."""

import json
from pathlib import Path
from typing import Any

import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.export import ExportError
from dasl_core.export.checkpoint import MODEL, read_checkpoint
from dasl_core.spec import Resources, versions
from dasl_core.spec.versions import UnreadableSpec
from dasl_core.train.serialization import STRUCTURE
from tests.support.older_specs import rename_passes, written_before
from tests.support.training_world import Recorder, recorded, resolved, run

pytestmark = pytest.mark.usefixtures("without_plots")


def test_upgraders_run_from_the_stored_version_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (lambda spec: {**spec, "one": 1}), (lambda spec: {**spec, "two": len(spec)})
    monkeypatch.setattr(versions, "UPGRADERS", [one, two])
    stored: dict[str, Any] = {}
    assert versions.current() == 3
    assert versions.upgrade(stored, 1) == {"one": 1, "two": 1}
    assert versions.upgrade(stored, 2) == {"two": 0}
    assert versions.upgrade(stored, 3) == stored == {}


def test_spec_of_newer_version_is_refused() -> None:
    newest = versions.current()
    message = rf"of version {newest + 1}, and this DASL reads versions up to {newest}"
    with pytest.raises(UnreadableSpec, match=message):
        versions.load({}, newest + 1)


def test_spec_without_upgrader_is_refused_with_its_field(pictures: DatasetIndex) -> None:
    stored = resolved(pictures).model_dump(mode="json")
    stored["resources"]["racks"] = 2
    with pytest.raises(UnreadableSpec, match=r"another version.* spec\.resources\.racks"):
        versions.load(stored, versions.current())
    with pytest.raises(UnreadableSpec, match=r"another version.* spec\.resources\.racks"):
        versions.load_resources(stored, 1)


@pytest.mark.parametrize("field", Resources.model_fields)
def test_resources_get_no_defaults_of_today(pictures: DatasetIndex, field: str) -> None:
    stored = resolved(pictures).model_dump(mode="json")
    del stored["resources"][field]
    with pytest.raises(UnreadableSpec, match=rf"cannot read spec\.resources\.{field};"):
        versions.load_resources(stored, versions.current())


def test_upgrader_that_raises_makes_the_spec_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", [lambda spec: {"epochs": spec["train"]["passes"]}])
    with pytest.raises(
        UnreadableSpec, match=r"of version 1 cannot be upgraded: KeyError\('train'\)"
    ) as raised:
        versions.upgrade({}, 1)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("upgraders", [[], [rename_passes]])
@pytest.mark.parametrize("stored", [None, [], "text", 1])
def test_spec_that_is_no_mapping_is_refused(
    stored: Any, upgraders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", upgraders)
    for read in (versions.upgrade, versions.load, versions.load_resources):
        with pytest.raises(UnreadableSpec):
            read(stored, 1)


@pytest.mark.parametrize("stored", [{}, {"resources": None}, {"resources": []}])
def test_spec_without_resources_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(UnreadableSpec, match=r"spec\.resources"):
        versions.load_resources(stored, 1)


@pytest.mark.parametrize("version", ["2", None, 0, -1, 1.0, True])
def test_version_must_be_an_integer_from_1_on(
    version: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", [rename_passes, rename_passes])
    with pytest.raises(UnreadableSpec, match="is not a version of specs"):
        versions.read_version({"spec_version": version})
    with pytest.raises(UnreadableSpec, match="is not a version of specs"):
        versions.upgrade({}, version)


def test_file_records_the_current_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.read_version(versions.version_entry()) == versions.current() == 1
    monkeypatch.setattr(versions, "UPGRADERS", [rename_passes])
    assert versions.read_version(versions.version_entry()) == 2
    with pytest.raises(UnreadableSpec, match="None is not a version of specs"):
        versions.read_version({})


def test_loaded_spec_equals_the_stored_one(pictures: DatasetIndex) -> None:
    spec = resolved(pictures)
    stored = spec.model_dump(mode="json")
    assert versions.load(stored, versions.current()) == spec
    assert versions.load_resources(stored, versions.current()) == spec.resources


def test_older_checkpoint_is_resumed_and_exported(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolved(pictures, train={"epochs": 2})
    whole = recorded(spec, pictures, cache, tmp_path / "whole")
    first = Recorder(tmp_path / "first", lambda started: "cancel" if started >= 3 else "run")
    assert run(spec, pictures, cache, first) == "cancelled"
    checkpoint = first.last_checkpoint
    for name in (STRUCTURE, MODEL):
        file = checkpoint / name
        content = json.loads(file.read_text())
        content["spec"] = written_before(content["spec"])
        file.write_text(json.dumps(content))
    with pytest.raises(ExportError, match=r"another version.* spec\.train\.epochs"):
        read_checkpoint(checkpoint)
    monkeypatch.setattr(versions, "UPGRADERS", [rename_passes])
    assert read_checkpoint(checkpoint)[0] == spec
    second = recorded(spec, pictures, cache, tmp_path / "second", checkpoint)
    assert first.curve() + second.curve() == whole.curve()
    newest = json.loads((second.last_checkpoint / STRUCTURE).read_text())
    assert newest["spec_version"] == 2


def test_training_state_without_a_newer_setting_gets_its_default(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, train={"epochs": 2})
    first = Recorder(tmp_path / "first", lambda started: "cancel" if started >= 3 else "run")
    assert run(spec, pictures, cache, first) == "cancelled"
    file = first.last_checkpoint / STRUCTURE
    content = json.loads(file.read_text())
    del content["spec"]["train"]["skip_not_finite"]
    file.write_text(json.dumps(content))
    recorded(spec, pictures, cache, tmp_path / "second", first.last_checkpoint)


def test_checkpoint_of_newer_version_is_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, train={"epochs": 1})
    done = recorded(spec, pictures, cache, tmp_path / "done")
    file = done.last_checkpoint / STRUCTURE
    newer = versions.current() + 1
    file.write_text(json.dumps({**json.loads(file.read_text()), "spec_version": newer}))
    with pytest.raises(ValueError, match=rf"spec is of version {newer}"):
        run(spec, pictures, cache, Recorder(tmp_path / "again"), done.last_checkpoint)
