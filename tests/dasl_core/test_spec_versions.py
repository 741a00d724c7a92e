"""Versions of stored specs: upgraders, and specs that this version cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dasl_core.data.index import DatasetIndex
from dasl_core.export import ExportError
from dasl_core.export.checkpoint import MODEL, read_checkpoint
from dasl_core.spec import KMeans, Resources, versions
from dasl_core.spec.methods.triplet import ResolvedTriplet
from dasl_core.spec.versions import UnreadableSpec
from dasl_core.train.serialization import STRUCTURE
from tests.support.training_world import Recorder, resolved, run

pytestmark = pytest.mark.usefixtures("without_plots")


def rename_passes(spec: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from a version in which `train.epochs` was called `train.passes`."""
    train = dict(spec.get("train", {}))
    if "passes" in train:
        train["epochs"] = train.pop("passes")
    return {**spec, "train": train}


def written_before(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec as the version wrote it that `rename_passes` upgrades from."""
    train = dict(spec["train"])
    train["passes"] = train.pop("epochs")
    return {**spec, "train": train}


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
        versions.of({"spec_version": version})
    with pytest.raises(UnreadableSpec, match="is not a version of specs"):
        versions.upgrade({}, version)


def test_loaded_spec_equals_the_stored_one(pictures: DatasetIndex) -> None:
    spec = resolved(pictures)
    stored = spec.model_dump(mode="json")
    assert versions.load(stored, versions.current()) == spec
    assert versions.load_resources(stored, versions.current()) == spec.resources


def test_evaluations_of_version_1_keep_their_bank_and_their_one_start_of_kmeans(
    pictures: DatasetIndex,
) -> None:
    stored = resolved(pictures, evaluate={"clustering": True}).model_dump(mode="json")
    del stored["evaluate"]["knn"]["bank"]
    stored["evaluate"]["clustering"] = True
    evaluate = versions.load(stored, 1).evaluate
    assert evaluate.knn is not None
    assert evaluate.knn.bank == 50_000
    assert evaluate.clustering == KMeans(restarts=1)
    stored["evaluate"] |= {"knn": None, "clustering": False}
    assert versions.load(stored, 1).evaluate.knn is None
    submitted = {"dataset": "pictures", "evaluate": {"knn": {"k": 5}, "clustering": True}}
    assert versions.upgrade(submitted, 1) == submitted, "a clone gets the defaults of today"


def test_supervised_job_of_version_2_keeps_evaluating_its_backbone(pictures: DatasetIndex) -> None:
    spec = resolved(pictures, method={"name": "npair"})
    stored = spec.model_dump(mode="json")
    assert stored["evaluate"].pop("on") == "embedding"
    for version in (1, 2):
        assert versions.load(stored, version).evaluate.on == "backbone"
    submitted = {"dataset": "pictures", "method": {"name": "npair"}}
    assert versions.upgrade(submitted, 2) == submitted, "a clone gets the defaults of today"


@pytest.mark.parametrize("version", [1, 3])
def test_semihard_triplets_of_version_3_keep_their_mining(
    pictures: DatasetIndex, version: int
) -> None:
    stored = resolved(pictures, method={"name": "triplet"}).model_dump(mode="json")
    assert stored["method"]["mining"] == "semihard"
    for mining, expected in (("semihard", "all_semihard"), ("all", "all")):
        stored["method"]["mining"] = mining
        method = versions.load(stored, version).method
        assert isinstance(method, ResolvedTriplet)
        assert (method.mining, method.margin) == (expected, stored["method"]["margin"])
    submitted = {"dataset": "pictures", "method": {"name": "triplet", "mining": "semihard"}}
    assert versions.upgrade(submitted, version) == submitted, "a clone gets the meaning of today"


def test_files_of_version_1_hold_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", [])
    assert versions.beside() == {}
    assert versions.of({}) == 1
    monkeypatch.setattr(versions, "UPGRADERS", [rename_passes])
    assert versions.of(versions.beside()) == 2


def test_older_checkpoint_is_resumed_and_exported(
    pictures: DatasetIndex, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "UPGRADERS", [])
    spec = resolved(pictures, train={"epochs": 2})
    whole = Recorder(tmp_path / "whole")
    assert run(spec, pictures, cache, whole) == "succeeded"
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
    second = Recorder(tmp_path / "second")
    assert run(spec, pictures, cache, second, checkpoint) == "succeeded"
    assert first.curve() + second.curve() == whole.curve()
    newest = json.loads((second.last_checkpoint / STRUCTURE).read_text())
    assert newest["spec_version"] == 2


def test_specs_up_to_version_5_have_no_rivals(pictures: DatasetIndex) -> None:
    spec = resolved(pictures)
    stored = spec.model_dump(mode="json")
    rivals = stored.pop("rivals")
    assert versions.load(stored, 5) == spec
    parts = ("method", "backbone", "augment", "dar", "sec", "train")
    state = {part: stored[part] for part in parts} | {"train_images": 18, "images": "digest"}
    assert versions.upgrade(state, 5) == state | {"rivals": rivals}


def test_jobs_of_version_7_keep_evaluating_the_largest_square(pictures: DatasetIndex) -> None:
    size = {"image_size": 224, "stem": "standard"}
    stored = resolved(pictures, backbone=size).model_dump(mode="json")
    assert stored["evaluate"].pop("crop_pct") == 0.875
    assert versions.load(stored, 7).evaluate.crop_pct == 1
    submitted = {"dataset": "pictures", "backbone": size}
    assert versions.upgrade(submitted, 7) == submitted, "a clone gets the default of today"


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
    second = Recorder(tmp_path / "second")
    assert run(spec, pictures, cache, second, first.last_checkpoint) == "succeeded"


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_specs_up_to_version_6_have_the_small_recipe(pictures: DatasetIndex, method: str) -> None:
    spec = resolved(pictures, method={"name": method})
    stored = spec.model_dump(mode="json")
    del stored["recipe"], stored["augment"]["saturation"], stored["augment"]["interpolation"]
    stored["method"].pop("last_batch_norm", None)
    assert versions.load(stored, 6) == spec
    parts = ("method", "backbone", "augment", "dar", "sec", "rivals", "train")
    state = {part: stored[part] for part in parts} | {"train_images": 18, "images": "digest"}
    assert versions.upgrade(state, 6)["augment"] == spec.augment.model_dump(mode="json")
    submitted = {"dataset": "pictures", "augment": {"jitter": 0.3}}
    assert versions.upgrade(submitted, 6) == submitted


def test_triplet_checkpoint_of_version_3_is_resumed_with_its_loss(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    method = {"name": "triplet", "mining": "all_semihard"}
    spec = resolved(pictures, method=method, train={"epochs": 2})
    whole = Recorder(tmp_path / "whole")
    assert run(spec, pictures, cache, whole) == "succeeded"
    first = Recorder(tmp_path / "first", lambda started: "cancel" if started >= 3 else "run")
    assert run(spec, pictures, cache, first) == "cancelled"
    for name in (STRUCTURE, MODEL):
        file = first.last_checkpoint / name
        content = json.loads(file.read_text()) | {"spec_version": 3}
        content["spec"]["method"]["mining"] = "semihard"
        file.write_text(json.dumps(content))
    assert read_checkpoint(first.last_checkpoint)[0] == spec
    second = Recorder(tmp_path / "second")
    assert run(spec, pictures, cache, second, first.last_checkpoint) == "succeeded"
    assert first.curve() + second.curve() == whole.curve()


def test_checkpoint_of_newer_version_is_refused(
    pictures: DatasetIndex, cache: Path, tmp_path: Path
) -> None:
    spec = resolved(pictures, train={"epochs": 1})
    done = Recorder(tmp_path / "done")
    run(spec, pictures, cache, done)
    file = done.last_checkpoint / STRUCTURE
    newer = versions.current() + 1
    file.write_text(json.dumps({**json.loads(file.read_text()), "spec_version": newer}))
    with pytest.raises(ValueError, match=rf"spec is of version {newer}"):
        run(spec, pictures, cache, Recorder(tmp_path / "again"), done.last_checkpoint)


def test_written_spec_of_version_1_with_all_parts_is_readable() -> None:
    """It looks like a resolved one, whose fields are all there."""
    spec: dict[str, Any] = {part: {} for part in versions._PARTS_OF_VERSION_1}
    assert versions.upgrade(spec, 1)["evaluate"]["on"] == "backbone"


def test_specs_from_before_windows_keep_8_bits(pictures: DatasetIndex) -> None:
    stored = resolved(pictures).model_dump(mode="json")
    for_older = versions.for_older(stored)
    assert not for_older["backbone"].keys() & {"window", "extra_bands"}
    assert "image_cache" not in for_older["train"]
    loaded = versions.load(for_older, versions.current())
    assert loaded == resolved(pictures)
    assert list(loaded.backbone.window) == [0, 255]
    deep = resolved(pictures, backbone={"window": [0, 4095]})
    sent = versions.for_older(deep.model_dump(mode="json"))
    assert sent["backbone"]["window"] == [0, 4095]


def test_specs_from_before_vertical_flips_keep_images_upright(pictures: DatasetIndex) -> None:
    stored = resolved(pictures).model_dump(mode="json")
    new = {"vertical_flip", "rotate", "channel_drop"}
    for_older = versions.for_older(stored)
    assert not for_older["augment"].keys() & new
    loaded = versions.load(for_older, versions.current())
    assert loaded == resolved(pictures)
    assert {getattr(loaded.augment, name) for name in new} == {0.0}
    turned = resolved(pictures, augment={"rotate": 0.75})
    sent = versions.for_older(turned.model_dump(mode="json"))
    assert sent["augment"].keys() & new == {"rotate"}
