"""Path checks at submission: weights and datasets must be readable and below the roots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.db.models import Dataset
from tests.support.api_under_test import Api, refused


def submit(api: Api, **spec: Any) -> Any:
    return api.client.post("/v1/jobs", json={"dataset": "emoji", **spec})


@pytest.mark.parametrize(
    "pretrained", ["resnet.pth", "https://host/resnet.pth", "hf-hub:timm/resnet18", "file://h/a"]
)
def test_submit_refuses_weights_that_are_no_local_path(api: Api, pretrained: str) -> None:
    api.dataset()
    backbone = {"name": "resnet18", "pretrained": pretrained}
    problem = refused(submit(api, backbone=backbone), 422, "backbone.pretrained")
    assert problem["errors"][0]["expected"].startswith("an absolute path, or a file:// URI")
    refused(
        api.client.post("/v1/jobs/validate", json={"dataset": "emoji", "backbone": backbone}), 422
    )


def test_submit_refuses_weights_and_datasets_outside_the_roots(api: Api, tmp_path: Path) -> None:
    api.dataset()
    models = tmp_path / "models"
    models.mkdir()
    (models / "out.pth").symlink_to(tmp_path / "dasl.db")
    (models / "resnet.pth").touch()
    api.settings.dataset_roots = (tmp_path / "images", models)
    inside = {"name": "resnet18", "pretrained": f"file://{models}/resnet.pth"}
    job = submit(api, backbone=inside)
    assert job.status_code == 201, job.text
    for path in (tmp_path / "dasl.db", models / "out.pth", models / ".." / "dasl.db"):
        outside = {"name": "resnet18", "pretrained": str(path)}
        problem = refused(submit(api, backbone=outside), 422, "backbone.pretrained")
        expected = f"weights in {tmp_path}/images or {models}"
        assert problem["errors"][0]["expected"] == expected
        changes = {"changes": {"backbone": outside}, "checkpoint": None}
        clone = api.client.post(f"/v1/jobs/{job.json()['id']}/clone", json=changes)
        refused(clone, 422, "backbone.pretrained")
    # It was registered before the roots were set.
    api.settings.dataset_roots = (models,)
    problem = refused(submit(api), 422, "dataset")
    assert "resolves to a path outside the folders that may be read" in problem["detail"]


def test_worker_start_includes_dataset_roots(api: Api, tmp_path: Path) -> None:
    api.dataset()
    api.settings.dataset_roots = (tmp_path,)
    worker = api.start(api.submit()["id"])
    assert worker.post("start").json()["dataset_roots"] == [str(tmp_path)]
    dataset = api.dataset(name="other", state="pending")
    number, headers = api.ingest(dataset)
    start = api.client.post(f"/worker/v1/runs/{dataset}-{number}/start", headers=headers)
    assert start.json()["dataset_roots"] == [str(tmp_path)]


def test_unreadable_dataset_folder_is_a_validation_error(api: Api) -> None:
    dataset = api.dataset()
    with api.database.write() as session:
        # The name is too long for every file system, which raises OSError.
        session.get_one(Dataset, dataset).uri = "/" + "x" * 300
    problem = refused(submit(api), 422, "dataset")
    assert "cannot be read: File name too long" in problem["detail"]


def test_submit_refuses_missing_weights(api: Api, tmp_path: Path) -> None:
    api.dataset()
    (tmp_path / "notes.txt").touch()
    for name, message in (
        ("nowhere.pth", "does not exist on the server"),
        ("notes.txt", "is not a file of weights"),
        ("x" * 300, "cannot be read: File name too long"),
    ):
        backbone = {"name": "resnet18", "pretrained": str(tmp_path / name)}
        problem = refused(submit(api, backbone=backbone), 422, "backbone.pretrained")
        assert message in problem["detail"]
    # Valid: the folder of a checkpoint, and any path when the API does not check paths.
    assert submit(api, backbone={"pretrained": str(tmp_path)}).status_code == 201
    api.settings.check_paths = False
    backbone = {"name": "resnet18", "pretrained": str(tmp_path / "nowhere.pth")}
    assert submit(api, backbone=backbone).status_code == 201
