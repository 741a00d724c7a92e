"""Registering datasets, their ingest through the worker API, and deleting them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from service.datasets import repository
from service.db.models import Dataset
from tests.support.api_under_test import FACTS, Api, refused


def register(api: Api, name: str, uri: str) -> Any:
    return api.client.post("/v1/datasets", json={"name": name, "uri": uri})


def test_dataset_can_be_registered_shown_listed_and_deleted(api: Api, tmp_path: Path) -> None:
    folder = tmp_path / "my images"
    folder.mkdir()
    answer = register(api, "mine", str(folder))
    assert answer.status_code == 201
    dataset = answer.json()
    assert (dataset["state"], dataset["facts"]) == ("pending", None)
    assert answer.headers["location"] == f"/v1/datasets/{dataset['id']}"
    assert api.client.get(f"/v1/datasets/{dataset['id']}").json() == dataset
    other = register(api, "other", folder.as_uri()).json()
    assert other["uri"] == dataset["uri"] == str(folder)
    listed = api.client.get("/v1/datasets").json()["data"]
    assert [entry["id"] for entry in listed] == [other["id"], dataset["id"]]
    named = api.client.get("/v1/datasets", params={"name": "mine"}).json()["data"]
    large = {"source", "report"}  # 200 rows of some megabytes would take the memory of the API
    expected = {name: dataset[name] for name in dataset.keys() - large}
    assert named == [{**expected, "num_skipped": None}]
    (another := tmp_path / "another").mkdir()
    taken = refused(register(api, "mine", str(folder)), 409, None, "name-taken")
    assert taken["dataset"]["id"] == dataset["id"]
    assert f"dasl datasets refresh {dataset['id']}" in taken["detail"]
    elsewhere = refused(register(api, "mine", str(another)), 409, None, "name-taken")
    assert "Choose another name" in elsewhere["detail"]
    assert api.client.delete(f"/v1/datasets/{dataset['id']}").status_code == 204
    refused(api.client.get(f"/v1/datasets/{dataset['id']}"), 404)
    refused(api.client.delete(f"/v1/datasets/{dataset['id']}"), 404)
    assert folder.exists()
    assert register(api, "mine", str(folder)).status_code == 201, "the name is free again"


def test_name_conflict_explains_failed_dataset(api: Api, tmp_path: Path) -> None:
    failed = api.dataset(state="failed")
    taken = refused(register(api, "emoji", str(tmp_path / "images")), 409, None, "name-taken")
    assert "It could not be ingested: no images" in taken["detail"]
    assert f"dasl datasets rm {failed}" in taken["detail"]


@pytest.mark.parametrize(
    ("name", "uri", "field"),
    [
        ("x", "/does/not/exist", "uri"),
        ("x", "{file}", "uri"),
        ("x", "relative/path", "uri"),
        ("x", "{tmp}/../../etc", "uri"),
        ("x", "file://elsewhere/data", "uri"),
        ("x", "file:///%2e%2e/etc", "uri"),
        ("x", "s3://bucket/../data", "uri"),
        ("x", "s3://", "uri"),
        ("x", "s3:///data", "uri"),
        ("x", "s3://bucket/a\nb", "uri"),
        ("x", "http://169.254.169.254/latest/meta-data", "uri"),
        ("x", "gopher://localhost:6379/_FLUSHALL", "uri"),
        ("x", "file://{tmp}?a=b", "uri"),
        ("x", "file://{tmp}#a", "uri"),
        ("x", "simplecache::file://{tmp}", "uri"),
        ("x", "/a\x00b", "uri"),
        ("x", "/" + "a" * 300, "uri"),
        ("x", "/" + "a" * 5000, "uri"),
        ("../x", "{tmp}", "name"),
        ("a/b", "{tmp}", "name"),
        ("a\\b", "{tmp}", "name"),
        ("..", "{tmp}", "name"),
        ("", "{tmp}", "name"),
        ("x" * 201, "{tmp}", "name"),
        ("ds_" + "0" * 26, "{tmp}", "name"),
    ],
)
def test_register_refuses_bad_names_and_paths(
    api: Api, tmp_path: Path, name: str, uri: str, field: str
) -> None:
    file = tmp_path / "file.bin"
    file.write_text("no folder")
    answer = register(api, name, uri.format(tmp=tmp_path, file=file))
    refused(answer, 422, field)
    assert api.client.get("/v1/datasets").json()["data"] == []


def test_compressed_tar_is_refused_with_the_remedy(api: Api, tmp_path: Path) -> None:
    (tmp_path / "images.tar.GZ").write_text("compressed")
    problem = refused(register(api, "x", str(tmp_path / "images.tar.GZ")), 422, "uri")
    assert "uri: is compressed as a whole" in problem["detail"]
    assert "gunzip" in problem["detail"]


@pytest.mark.parametrize(
    ("place", "source", "field"),
    [
        ({"upload": {"filename": "a.tar", "size": 9}}, {"label_column": "a"}, "label_column"),
        ({"upload": {"filename": "a.npy", "size": 9}}, {"split": "a"}, "split"),
        ({"upload": {"filename": "a.tar", "size": 9}}, {"links": "follow"}, "links"),
        ({"uri": "s3://bucket/a.ZIP"}, {"links": "follow"}, "links"),
        ({"uri": "/a-{0..9}.csv"}, {"links": "follow"}, "links"),
        ({"uri": "/a.txt"}, {"image_column": "a"}, "image_column"),
        ({"uri": "/a.csv"}, {"labels": "none", "label_column": "a"}, "label_column"),
        ({"uri": "s3://b/a"}, {"labels": "none", "label_column": "a"}, "label_column"),
        ({"uri": "s3://b/a"}, {"labels": "none", "classes": ["a"]}, "classes"),
        ({"uri": "s3://b/a"}, {"links": "follow"}, "links"),
    ],
)
def test_options_that_a_kind_of_file_does_not_read_are_refused(
    api: Api, place: dict[str, Any], source: dict[str, Any], field: str
) -> None:
    answer = api.client.post("/v1/datasets", json={"name": "birds", **place, "source": source})
    problem = refused(answer, 422, f"source.{field}")
    assert "has no effect with" in problem["detail"]


@pytest.mark.parametrize("option", ["image_column", "label_column", "group_column"])
@pytest.mark.parametrize(
    ("files", "code"),
    [(("a/0.png", "labels.csv"), 422), (("a/0.parquet", ".thumbnails/0.png"), 201)],
)
def test_columns_of_a_folder_of_images_are_refused_at_once(
    api: Api, tmp_path: Path, option: str, files: tuple[str, ...], code: int
) -> None:
    for file in files:
        (tmp_path / "birds" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "birds" / file).write_bytes(b"")
    body = {"name": "birds", "uri": str(tmp_path / "birds"), "source": {option: "species"}}
    answer = api.client.post("/v1/datasets", json=body)
    assert answer.status_code == code, answer.text
    if code == 422:
        refused(answer, 422, f"source.{option}")
        assert f"{option}: has no effect with a folder of images; remove it" in answer.text
        assert api.client.get("/v1/datasets").json()["data"] == []


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ({"label_column": "speces"}, "If --label-column is wrong, remove it (dasl datasets rm {}) and add it again "),
        ({"split": "a", "classes": ["speces"]}, "If --split or --classes is wrong, remove it (dasl datasets rm {})"),
        ({}, "Remove it to reuse the name (dasl datasets rm {}), or once its files are in order"),
    ],
)  # fmt: skip
def test_failed_data_set_names_the_options_that_may_be_wrong(
    api: Api, tmp_path: Path, source: dict[str, Any], advice: str
) -> None:
    (tmp_path / "birds.csv").write_text("path,species\n")
    body = {"name": "birds", "uri": str(tmp_path / "birds.csv"), "source": source}
    dataset = api.client.post("/v1/datasets", json=body).json()["id"]
    worker = api.ingest(dataset)
    worker.post("start")
    error = {"type": "ingest-failed", "message": "no such thing"}
    assert worker.post("finish", state="failed", error=error).status_code == 204
    taken = refused(api.client.post("/v1/datasets", json=body), 409, None, "name-taken")
    assert advice.format(dataset) in taken["detail"]


def test_ingest_report_lists_skipped_images(api: Api) -> None:
    dataset = api.dataset(state="pending")
    worker = api.ingest(dataset)
    path = f"/worker/v1/{worker.path}/start"
    refused(api.client.post(path, headers=api.token("admin")), 401)
    refused(api.client.post("/worker/v1/runs/ds_x-1/start", headers=worker.headers), 401)
    started = worker.post("start").json()
    assert worker.number == 1
    assert started["uri"].endswith("/images/emoji")
    report = {"num_images": 100, "num_skipped": 1, "skipped": [{"path": "a", "reason": "empty"}]}
    done = {"state": "succeeded", "facts": FACTS, "report": report}
    refused(worker.post("finish", **done), 422)
    outside = {**done, "index_uri": "file:///etc/passwd"}
    refused(worker.post("finish", **outside), 422, "index_uri")
    done["index_uri"] = f"{started['artifacts_uri']}/index.safetensors"
    for _ in range(2):
        assert worker.post("finish", **done).status_code == 204
    shown = api.client.get(f"/v1/datasets/{dataset}").json()
    assert (shown["state"], shown["report"]) == ("ready", report)
    assert FACTS.items() <= shown["facts"].items()
    assert api.client.get("/v1/datasets").json()["data"][0]["num_skipped"] == 1
    refused(worker.post("start"), 409, None, "stale-attempt")
    refused(worker.post("finish", state="failed", error={"message": "late"}), 409)


def test_failed_ingest_shows_the_reason(api: Api) -> None:
    dataset = api.dataset(state="pending")
    error = {"type": "ingest-failed", "message": "holds no images"}
    assert api.ingest(dataset).post("finish", state="failed", error=error).status_code == 204
    shown = api.client.get(f"/v1/datasets/{dataset}").json()
    assert shown["error"] == error
    problem = refused(api.client.post("/v1/jobs", json={"dataset": "emoji"}), 422, "dataset")
    assert "holds no images" in problem["detail"]


@pytest.fixture
def rooted(api: Api, tmp_path: Path) -> Path:
    """A parent folder of which only `data` is in the dataset roots."""
    (tmp_path / "data" / "birds").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "data" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    api.settings.dataset_roots = (tmp_path / "data",)
    return tmp_path


def test_register_accepts_only_folders_in_dataset_roots(api: Api, rooted: Path) -> None:
    assert register(api, "direct", f"{rooted}/data/birds").status_code == 201
    assert register(api, "by link", f"file://{rooted}/alias/birds").status_code == 201
    messages = set()
    for number, uri in enumerate(
        (
            f"{rooted}/secret",
            f"{rooted}/data/out",
            f"file://{rooted}/alias/out",
            f"{rooted}/database",
            f"{rooted}/not-there",
            str(rooted),
            "/etc",
            "/",
        )
    ):
        problem = refused(register(api, f"no {number}", uri), 422, "uri")
        (error,) = problem["errors"]
        messages.add(error["message"])
        assert error["expected"] == f"a folder in {rooted}/data"
    assert messages == {"resolves to a path outside the folders that may be read"}
    problem = refused(register(api, "gone", f"{rooted}/data/gone"), 422, "uri")
    assert "does not exist" in problem["detail"]


def test_register_refuses_the_services_own_folders(api: Api, tmp_path: Path) -> None:
    artifacts = tmp_path / "elsewhere" / "artifacts"
    for folder in (artifacts / "jobs", api.settings.home / "logs"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(artifacts)
    api.settings.artifacts_uri = f"file://{artifacts}"
    for folder in (artifacts, artifacts / "jobs", api.settings.home / "logs", tmp_path / "link"):
        problem = refused(register(api, "no", str(folder)), 422, "uri")
        [error] = problem["errors"]
        assert error["message"] == "resolves to a path outside the folders that may be read"
        assert error["expected"] == "a folder outside of the service's own folders"
    for folder in (tmp_path, tmp_path / "elsewhere"):
        problem = refused(register(api, "no", str(folder)), 422, "uri")
        assert problem["errors"][0]["message"] == "contains a folder that may not be read"


def test_register_refuses_folders_of_another_tenant(api: Api, tmp_path: Path) -> None:
    a, b, shared = (tmp_path / "data" / name for name in ("a", "b", "shared"))
    for folder in (a / "birds", b / "birds", shared):
        folder.mkdir(parents=True)
    (a / "link").symlink_to(b / "birds")
    tokens = {tenant: api.token("submit", tenant=tenant) for tenant in ("a", "b", "c")}

    def status(tenant: str, folder: Path) -> int:
        body = {"name": f"{tenant}{folder}".replace("/", "-"), "uri": str(folder)}
        return api.client.post("/v1/datasets", json=body, headers=tokens[tenant]).status_code

    api.settings.tenant_roots = {"a": (a,), "b": (b, a / "for b")}
    for roots in ((), (tmp_path / "data",)):
        api.settings.dataset_roots = roots
        name = f"shared {len(roots)}"
        (shared / name).mkdir()
        assert [status(tenant, shared / name) for tenant in "abc"] == [201, 201, 201]
        assert [status(tenant, a / "birds") for tenant in "bc"] == [422, 422]
        assert status("a", a / "link") == 422, "it leads to the folder of b"
        assert status("c", tmp_path / "data") == 422, "it contains folders of others"
    assert [status("a", a / "birds"), status("b", b)] == [201, 201]
    assert status("a", a) == 422, "it contains a folder of b"


def test_register_compares_paths_as_text_when_checks_are_off(api: Api, rooted: Path) -> None:
    api.settings.check_paths = False
    api.settings.dataset_roots = (Path("/nfs/images"), Path("/data"))
    assert register(api, "a", "/nfs/images/birds").status_code == 201
    assert register(api, "b", "/data").status_code == 201
    for uri in ("/nfs", "/nfs/images-secret", "/database", str(rooted / "data")):
        problem = refused(register(api, "c", uri), 422, "uri")
        assert problem["errors"][0]["expected"] == "a folder in /nfs/images or /data"


def test_ingest_report_for_deleted_dataset_is_stale(api: Api) -> None:
    dataset = api.dataset(state="pending")
    worker = api.ingest(dataset)
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    refused(worker.post("finish", state="failed", error="x"), 409, None, "stale-attempt")


def test_delete_refuses_dataset_in_use(api: Api) -> None:
    dataset = api.dataset()
    held_out = api.dataset(name="held-out")
    job = api.submit(evaluate={"dataset": "held-out"})
    for used in (dataset, held_out):
        problem = refused(api.client.delete(f"/v1/datasets/{used}"), 409, None, "dataset-in-use")
        assert problem["jobs"] == [job["id"]]
    api.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert api.client.delete(f"/v1/datasets/{dataset}").status_code == 204
    shown = api.client.get(f"/v1/jobs/{job['id']}").json()
    assert shown["dataset"] == {"id": dataset, "name": "emoji"}


@pytest.mark.dialect
def test_register_retries_when_name_becomes_free_concurrently(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dataset with the name is deleted between the failed insert and the lookup."""
    folder = tmp_path / "images"
    folder.mkdir()
    first = register(api, "mine", str(folder)).json()["id"]
    find = repository.find

    def find_too_late(session: Session, *arguments: Any, **options: Any) -> Dataset | None:
        monkeypatch.setattr(repository, "find", find)
        session.get_one(Dataset, first).deleted_at = datetime.now(UTC)
        session.flush()
        return find(session, *arguments, **options)

    monkeypatch.setattr(repository, "find", find_too_late)
    answer = register(api, "mine", str(folder))
    assert answer.status_code == 201, answer.text
    assert answer.json()["id"] != first
