"""Tasks of a running service: a preview shows what the same spec draws here, and a preparation caches the images."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dasl_core import previews
from dasl_core.data.ingest import ingest_folder
from dasl_core.outputs import PREVIEW_MARK
from dasl_core.spec import JobSpec, resolve
from service.cli.app import app
from tests.e2e.conftest import Images
from tests.support.running_service import Served

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.timeout(1800)]

SPEC = {
    "method": {"name": "dino", "local_crops": 2},
    "backbone": {"name": "resnet18", "image_size": 32},
    "train": {"batch_size": 16, "seed": 5},
}


def test_preview_of_a_registered_data_set(
    served: Served, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_URL", served.url)
    monkeypatch.setenv("DASL_TOKEN", served.token)
    (tmp_path / "spec.json").write_text(json.dumps(SPEC))
    command = ["datasets", "preview", served.dataset, "--spec", str(tmp_path / "spec.json")]
    output = tmp_path / "served"
    result = CliRunner().invoke(app, [*command, "-o", str(output), "--images", "3"])
    assert result.exit_code == 0, result.output

    index = ingest_folder(images.root)
    spec = resolve(JobSpec.model_validate(SPEC | {"dataset": "here"}), index.facts())
    files = previews.write(previews.Drawing(spec, index, 3), tmp_path / "here")
    names = {file.name for file in files} | {PREVIEW_MARK}
    assert {file.name for file in output.iterdir()} == names
    for file in files:
        if file.name[0].isdigit():
            assert (output / file.name).read_bytes() == file.read_bytes(), file.name
    [preview] = served.client.previews.list(served.client.datasets.get(served.dataset).id)
    assert (preview.state, preview.dataset_version) == ("succeeded", 1)
    assert json.loads((output / "preview.json").read_text())["dataset_version"] == 1
    assert preview.size == sum(file.stat().st_size for file in output.iterdir())
    assert served.client.storage().previews.count == 1
    listed = ["datasets", "previews", served.dataset, "--json"]
    assert json.loads(CliRunner().invoke(app, listed).stdout)[0]["id"] == preview.id
    deleted = CliRunner().invoke(app, ["delete", preview.id, "--yes"])
    assert f"Deleted preview {preview.id}" in deleted.output
    assert json.loads(CliRunner().invoke(app, listed).stdout) == []


def test_preparation_of_a_registered_data_set(
    served: Served, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_URL", served.url)
    monkeypatch.setenv("DASL_TOKEN", served.token)
    command = ["datasets", "prepare", served.dataset, "--image-size", "48"]
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    preparation = json.loads(result.stdout)
    assert preparation["state"] == "succeeded"
    assert preparation["result"]["cached"] == preparation["result"]["images"] > 0
    shown = CliRunner().invoke(app, ["datasets", "show", served.dataset])
    assert "48 pixels, 3 bands, exact: succeeded: " in shown.stdout
    again = CliRunner().invoke(app, [*command, "--no-wait", "--json"])
    assert json.loads(again.stdout)["id"] != preparation["id"], "the cache may have lost images"
    done = CliRunner().invoke(app, ["delete", preparation["id"], "--yes"])
    assert done.exit_code == 0, done.output
