"""Path checks at submission: weights and datasets must be readable and below the roots."""

import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dasl_core.spec import BACKBONES
from service.db.models import Dataset
from tests.support.api_under_test import Api, refused


def write_zip(file: Path) -> None:
    """Write what `torch.save` writes, as far as the server reads it."""
    zipfile.ZipFile(file, "w").close()


def write_safetensors(file: Path, numbers: int, name: str | None = None) -> None:
    """Write a file whose header names so many numbers, and the shapes of a network."""
    known = () if name is None else BACKBONES[name].weights
    shapes = [[numbers], *(shape for shape, count in known for _ in range(count))]
    tensors = {
        str(number): {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}
        for number, shape in enumerate(shapes)
    }
    header = json.dumps(tensors).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


def submit(api: Api, **spec: Any) -> Any:
    return api.client.post("/v1/jobs", json={"dataset": "emoji", **spec})


def refused_weights(api: Api, path: Path | str) -> Any:
    """Return the problem of a job that starts from a file of weights."""
    backbone = {"name": "resnet18", "pretrained": str(path)}
    return refused(submit(api, backbone=backbone), 422, "backbone.pretrained")


@pytest.mark.parametrize(
    "pretrained", ["resnet.pth", "https://host/resnet.pth", "hf-hub:timm/resnet18", "file://h/a"]
)
def test_submit_refuses_weights_that_are_no_local_path(api: Api, pretrained: str) -> None:
    api.dataset()
    expected = refused_weights(api, pretrained)["errors"][0]["expected"]
    assert expected.startswith("an absolute path, or a file:// URI")
    assert expected.endswith("published weights are not downloaded by their names")
    body = {"dataset": "emoji", "backbone": {"name": "resnet18", "pretrained": pretrained}}
    refused(api.client.post("/v1/jobs/validate", json=body), 422)


def test_submit_refuses_weights_and_datasets_outside_the_roots(api: Api, tmp_path: Path) -> None:
    api.dataset()
    models = tmp_path / "models"
    models.mkdir()
    (models / "out.pth").symlink_to(tmp_path / "dasl.db")
    write_zip(models / "resnet.pth")
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


def test_weights_of_other_tenants_and_of_the_service_are_refused(api: Api, tmp_path: Path) -> None:
    api.dataset()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    api.settings.tenant_roots = {"other": (theirs,)}
    checkpoint = api.settings.home / "artifacts" / "jobs" / "job_1" / "checkpoint"
    checkpoint.mkdir(parents=True)
    for file in (theirs / "resnet.pth", checkpoint / "resnet.pth"):
        details = set()
        for write in (lambda _: None, write_zip):  # the answer does not tell what exists
            write(file)
            details.add(refused_weights(api, file)["detail"])
        assert len(details) == 1
        assert "outside the folders that may be read" in details.pop()


def test_read_token_cannot_find_out_which_weights_exist(api: Api, tmp_path: Path) -> None:
    api.dataset()
    write_zip(tmp_path / "resnet.pth")
    reader = api.token("read")
    messages = set()
    for name in ("resnet.pth", "other.pth"):
        body = {
            "dataset": "emoji",
            "backbone": {"name": "resnet18", "pretrained": str(tmp_path / name)},
        }
        answer = api.client.post("/v1/jobs/validate", json=body, headers=reader)
        problem = refused(answer, 422, "backbone.pretrained")
        messages.add(problem["errors"][0]["message"])
        experiment = {"name": "e", "spec": body, "variants": {"a": {}, "b": {"dar": {}}}}
        answer = api.client.post("/v1/experiments/validate", json=experiment, headers=reader)
        problem = refused(answer, 422, "backbone.pretrained")
        messages.add(problem["errors"][0]["message"])
    assert messages == {"is a path, which only a token with the scope submit may check"}
    answer = api.client.post("/v1/jobs/validate", json={"dataset": "emoji"}, headers=reader)
    assert answer.status_code == 200, answer.text


def test_worker_start_includes_dataset_roots(api: Api, tmp_path: Path) -> None:
    api.dataset()
    api.settings.dataset_roots = (tmp_path,)
    api.settings.tenant_roots = {"default": (tmp_path / "own",), "other": (tmp_path / "theirs",)}
    home = api.settings.home
    excluded = [str(path) for path in (home, home / "artifacts", tmp_path / "theirs")]
    worker = api.start(api.submit()["id"])
    answer = worker.post("start").json()
    assert answer["dataset_roots"] == [str(tmp_path), str(tmp_path / "own")]
    assert answer["excluded_folders"] == excluded
    dataset = api.dataset(name="other", state="pending")
    start = api.ingest(dataset).post("start").json()
    assert start["dataset_roots"] == [str(tmp_path), str(tmp_path / "own")]
    assert start["excluded_folders"] == excluded


def test_submit_refuses_trackers_on_other_hosts(api: Api) -> None:
    api.dataset()
    mlflow = {"tracking_uri": "http://mlflow.internal:5000"}
    api.settings.tracking_hosts = ("other", "mlflow.internal:80")
    problem = refused(submit(api, track={"mlflow": mlflow}), 422, "track.mlflow.tracking_uri")
    [error] = problem["errors"]
    assert error["message"] == "cannot be used here: jobs may not log to this server"
    assert error["expected"] == "a server on other or mlflow.internal:80"
    body = {"dataset": "emoji", "track": {"mlflow": mlflow}}
    refused(api.client.post("/v1/jobs/validate", json=body), 422, "track.mlflow.tracking_uri")
    job = submit(api)
    assert job.status_code == 201, job.text
    changes = {"changes": {"track": {"mlflow": mlflow}}, "checkpoint": None}
    clone = api.client.post(f"/v1/jobs/{job.json()['id']}/clone", json=changes)
    refused(clone, 422, "track.mlflow.tracking_uri")
    api.settings.tracking_hosts = ("other", "mlflow.internal")
    assert submit(api, track={"mlflow": mlflow}).status_code == 201


def test_no_tracker_is_allowed_where_folders_are_restricted(api: Api, tmp_path: Path) -> None:
    api.dataset()
    track = {"mlflow": {"tracking_uri": "http://mlflow.internal:5000"}}
    assert submit(api, track=track).status_code == 201
    api.settings.dataset_roots = (tmp_path,)
    problem = refused(submit(api, track=track), 422, "track.mlflow.tracking_uri")
    assert problem["errors"][0]["expected"] == "null; the service allows no server"
    assert submit(api, track={"wandb": {}}).status_code == 201, "it contacts no server"


@pytest.mark.parametrize(
    "uri", ["file:///etc", "sqlite:////data/dasl.db", "http://me:pw@mlflow", "http://h/?a=b"]
)
def test_submit_refuses_what_is_no_address_of_a_server(api: Api, uri: str) -> None:
    api.dataset()
    answer = submit(api, track={"mlflow": {"tracking_uri": uri}})
    refused(answer, 422, "track.mlflow.tracking_uri")
    assert "pw" not in answer.text


def test_worker_start_includes_tracking_hosts(api: Api, tmp_path: Path) -> None:
    api.dataset()
    worker = api.start(api.submit()["id"])
    for hosts, roots, sent in (
        (None, (), None),
        (None, (tmp_path,), []),
        (("mlflow",), (tmp_path,), ["mlflow"]),
    ):
        api.settings.tracking_hosts, api.settings.dataset_roots = hosts, roots
        assert worker.post("start").json()["tracking_hosts"] == sent


def test_submit_refuses_missing_weights(api: Api, tmp_path: Path) -> None:
    api.dataset()
    (tmp_path / "notes.txt").touch()
    os.mkfifo(tmp_path / "pipe.pth")
    for name, message in (
        ("nowhere.pth", "does not exist on the server"),
        ("notes.txt", "is not a file of weights"),
        ("pipe.pth", "is not a file of weights"),
        ("x" * 300, "cannot be read: File name too long"),
    ):
        assert message in refused_weights(api, tmp_path / name)["detail"]
    # Valid: the folder of a checkpoint, and any path when the API does not check paths.
    problem = refused(submit(api, backbone={"pretrained": str(tmp_path)}), 422)
    assert "is not a checkpoint of DASL" in problem["detail"]
    model = {"preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (tmp_path / "model.json").write_text(json.dumps(model))
    problem = refused(submit(api, backbone={"pretrained": str(tmp_path)}), 422)
    assert "it has no backbone.safetensors" in problem["detail"]
    write_safetensors(tmp_path / "backbone.safetensors", 12_000_000, "resnet18")
    assert submit(api, backbone={"pretrained": str(tmp_path)}).status_code == 201
    api.settings.check_paths = False
    backbone = {"name": "resnet18", "pretrained": str(tmp_path / "nowhere.pth")}
    assert submit(api, backbone=backbone).status_code == 201


def resolved_mean(api: Api, **backbone: Any) -> Any:
    spec = {"dataset": "emoji", "backbone": backbone}
    answer = api.client.post("/v1/jobs/validate", json=spec)
    assert answer.status_code == 200, answer.text
    return answer.json()["resolved"]["backbone"]["mean"]


def test_normalization_comes_from_files_that_the_server_reads(api: Api, tmp_path: Path) -> None:
    api.dataset()
    weights = tmp_path / "pytorch_model.bin"
    write_zip(weights)
    vit = {"name": "vit_tiny_patch16_224", "pretrained": str(weights)}
    assert resolved_mean(api, **vit) == [0.5, 0.5, 0.5]
    recorded = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": recorded}))
    assert resolved_mean(api, **vit) == [0.1, 0.2, 0.3]
    submitted = submit(api, backbone=vit).json()
    assert submitted["resolved"]["backbone"]["std"] == [0.4, 0.5, 0.6]
    assert "mean" not in submitted["spec"]["backbone"]
    wrong = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    problem = refused(submit(api, backbone=vit | wrong), 422, "backbone.mean")
    assert problem["errors"][0]["expected"].startswith("backbone.mean: [0.1, 0.2, 0.3]")
    # The worker compares it with the file.
    api.settings.check_paths = False
    assert resolved_mean(api, **vit) == [0.5, 0.5, 0.5]
    several = vit | {"name": "vit_small_patch16_224"}
    refused(submit(api, backbone=several), 422, "backbone.mean")
    assert resolved_mean(api, **several, **recorded) == [0.1, 0.2, 0.3]


def test_submit_refuses_description_outside_the_roots(api: Api, tmp_path: Path) -> None:
    api.dataset()
    models, secret = tmp_path / "models", tmp_path / "secret"
    models.mkdir()
    write_zip(models / "pytorch_model.bin")
    (models / "config.json").symlink_to(secret)
    api.settings.dataset_roots = (tmp_path / "images", models)
    details = []
    for content in (None, '{"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}', "secret"):
        if content is not None:
            secret.write_text(content)
        details.append(refused_weights(api, models / "pytorch_model.bin")["detail"])
    assert len(set(details)) == 1  # it does not depend on what exists there
    assert "config.json" in details[0]
    assert "outside the folders that may be read" in details[0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "cannot be read"),
        # Parsed, it would take hundreds of megabytes of the API's memory.
        (f"[{'[],' * 100_000}[]]", "cannot be read: it is too large"),
    ],
    ids=["damaged", "huge"],
)
def test_submit_refuses_damaged_or_huge_description(
    api: Api, tmp_path: Path, content: str, why: str
) -> None:
    api.dataset()
    write_zip(tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(content)
    detail = refused_weights(api, tmp_path / "pytorch_model.bin")["detail"]
    assert f"{tmp_path / 'config.json'} {why}" in detail


def test_weights_that_only_workers_may_read_are_accepted(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker compares what the weights record with the values of the job."""

    def open_as_another_user(path: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    api.dataset()
    weights = tmp_path / "resnet18.safetensors"
    weights.write_bytes(b"\0" * 16)
    backbone = {"name": "resnet18", "pretrained": str(weights)}
    refused_weights(api, weights)
    monkeypatch.setattr(Path, "open", open_as_another_user)
    assert submit(api, backbone=backbone).status_code == 201


def test_submit_refuses_weights_that_cannot_be_loaded(api: Api, tmp_path: Path) -> None:
    api.dataset()
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_safetensors(folder / "backbone.safetensors", 12_000_000, "resnet18")
    model = {"preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    timm = {"model_name": "resnet18", "in_chans": 3}
    (folder / "model.json").write_text(json.dumps(model | {"timm": timm}))
    hub = tmp_path / "hub"
    hub.mkdir()
    write_safetensors(hub / "model.safetensors", 30_000_000, "resnet50d")
    (hub / "config.json").write_text('{"architecture": "resnet50"}')
    (tmp_path / "empty.pth").touch()
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / "page.safetensors").write_text("<html>")
    (tmp_path / "header.safetensors").write_bytes((99).to_bytes(8, "little") + b'{"a": {')
    with zipfile.ZipFile(tmp_path / "code.pth", "w") as archive_of_code:
        archive_of_code.writestr("w/data.pkl", b"cposix\nsystem\n(S'true'\ntR.")
    (tmp_path / "page.pth").write_text("<html>")
    with tarfile.open(tmp_path / "tar.pth", "w") as archive:
        archive.addfile(tarfile.TarInfo("tensors"))
    (tmp_path / "lfs.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04" + bytes(60))
    write_safetensors(tmp_path / "cut.safetensors", 12_000_000)
    with (tmp_path / "cut.safetensors").open("ab") as stream:
        stream.truncate(stream.tell() - 1)
    write_safetensors(tmp_path / "tiny.safetensors", 1_000_000)
    refusals: list[tuple[str, str, dict[str, Any]]] = [
        ("empty.pth", "is empty", {}),
        ("empty.safetensors", "cannot be read: it is empty", {}),
        ("page.safetensors", "its header cannot be read", {}),
        ("header.safetensors", "its header cannot be read", {}),
        ("code.pth", "contains pickled code, 'posix.system'", {}),
        ("page.pth", "is not a file that torch.save writes", {}),
        ("tar.pth", "is not a file that torch.save writes", {}),
        ("lfs.bin", "git lfs pull", {}),
        ("cut.pt", "is cut off", {}),
        ("cut.safetensors", "is damaged: it has", {}),
        ("tiny.safetensors", "is of another network: it has 1,000,000", {}),
        ("checkpoint", "its model_name is resnet18", {"name": "resnet50"}),
        ("checkpoint", "its in_chans is 3, this job's 1", {"in_channels": 1}),
        ("hub/model.safetensors", "holds the weights of resnet50", {}),
    ]
    for name, message, more in refusals:
        backbone = {"name": "resnet18", "pretrained": str(tmp_path / name), **more}
        body = {"dataset": "emoji", "backbone": backbone}
        answer = api.client.post("/v1/jobs/validate", json=body)
        assert message in refused(answer, 422, "backbone.pretrained")["detail"]
    normalization = {"mean": [0.5] * 3, "std": [0.5] * 3}
    for backbone in (
        {"name": "resnet18", "pretrained": str(folder)},
        {"name": "resnet50d", "pretrained": str(hub / "model.safetensors")} | normalization,
    ):
        assert submit(api, backbone=backbone).status_code == 201, backbone


def test_submit_accepts_every_kind_of_source_while_it_is_there(api: Api, tmp_path: Path) -> None:
    dataset_id, archive = api.dataset(), tmp_path / "birds-000.tar"

    def submitted(uri: str, **columns: Any) -> Any:
        with api.database.write() as session:
            row = session.get_one(Dataset, dataset_id)
            row.uri = uri
            for name, value in columns.items():
                setattr(row, name, value)
        return submit(api)

    problem = refused(submitted(str(archive)), 422, "dataset")
    assert "no longer exists" in problem["detail"]
    # The name is too long for every file system, which raises OSError.
    problem = refused(submitted("/" + "x" * 300), 422, "dataset")
    assert "cannot be read: File name too long" in problem["detail"]
    archive.touch()
    for uri in (str(archive), f"{tmp_path}/birds-*.tar", "s3://bucket/birds"):
        assert submitted(uri).status_code == 201, uri
    api.settings.dataset_uris = ("s3://other",)
    assert "outside the folders" in refused(submitted("s3://bucket/birds"), 422)["detail"]
    own = api.settings.home / "artifacts" / "datasets" / dataset_id / "upload"
    own.mkdir(parents=True)
    (own / "birds.tar").touch()
    assert "outside the folders" in refused(submitted(f"{own}/birds.tar"), 422)["detail"]
    assert submitted(f"{own}/birds.tar", upload_file={"filename": "x"}).status_code == 201
