"""Uploads in chunks: resuming, concurrency, damage, limits, completion and removal."""

import errno
import hashlib
import os
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from service.api.problems import Problem
from service.artifacts import free_space
from service.datasets.uploads import endpoints, repository
from service.datasets.uploads import service as uploads
from service.datasets.uploads.files import RemoteFiles
from service.db.models import Dataset, UploadChunk
from service.db.session import Database
from service.dispatcher.context import utc_now
from service.dispatcher.garbage import Garbage
from service.object_store import open_store
from service.settings import Settings
from tests.service.test_server_process import api_process
from tests.support.api_under_test import FACTS, Api, refused, served
from tests.support.clocks import agree, something_happens
from tests.support.polling import until
from tests.support.uploads import begin, dispatcher_of_uploads, put

CONTENT = random.Random(0).randbytes(3000)


@pytest.fixture
def stored(
    database: Database,
    database_url: str,
    tmp_path: Path,
    store_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Api]:
    """An API on each database and each kind of artifact store, which takes small chunks."""
    monkeypatch.setattr(RemoteFiles, "min_chunk", 1)
    settings = Settings(home=tmp_path / "home", database_url=database_url, artifacts_uri=store_root)
    with served(settings, database) as api:
        yield api


# All four pairs would take twice as long, and only concurrency depends on the pair.
each_once = pytest.mark.parametrize(
    ("database_url", "store_root"), [("sqlite", "file"), ("postgresql", "s3")], indirect=True
)


def show(api: Api, dataset_id: str) -> Any:
    return api.client.get(f"/v1/datasets/{dataset_id}").json()


def content_of(api: Api, dataset_id: str) -> bytes:
    """Read the complete file where the workers do."""
    fs, path = open_store(show(api, dataset_id)["uri"])
    content: bytes = fs.cat_file(path)
    return content


def files_of(api: Api, dataset_id: str) -> list[str]:
    fs, path = open_store(api.context.storage.dataset_uri(dataset_id))
    return sorted(name.rpartition("/")[2] for name in fs.find(path))


@each_once
def test_chunks_become_one_file_that_is_ingested(stored: Api) -> None:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    created = begin(stored, len(CONTENT), sha256=sha256, fingerprint="mine")
    assert created.status_code == 201, created.text
    dataset = created.json()
    assert (dataset["state"], dataset["upload"]["received"]) == ("uploading", 0)
    assert dataset["upload"]["fingerprint"] == "mine"
    finisher = dispatcher_of_uploads(stored)
    for start, stop in ((0, 1000), (1000, 2500), (2500, 3000)):
        assert finisher.round()
        assert show(stored, dataset["id"])["state"] == "uploading"
        answer = put(stored, dataset["id"], CONTENT, start, stop)
        assert answer.status_code == 200, answer.text
        assert answer.headers["upload-offset"] == str(stop)
        assert answer.json()["upload"]["received"] == stop
        assert show(stored, dataset["id"])["upload"]["received"] == stop
    finisher.round()
    done = show(stored, dataset["id"])
    assert (done["state"], done["uri"].rpartition("/")[2]) == ("pending", "birds.tar")
    assert content_of(stored, dataset["id"]) == CONTENT
    finisher.round()
    assert files_of(stored, dataset["id"]) == ["birds.tar"]
    with stored.database.read() as session:
        assert session.scalars(select(UploadChunk)).all() == []
    again = put(stored, dataset["id"], CONTENT, 2500, 3000)
    assert again.status_code == 200, "an answer that was lost"
    audited = stored.client.get("/v1/audit", headers=stored.token("admin")).json()["data"]
    assert [each["method"] for each in audited if "/datasets" in each["path"]] == ["PUT", "POST"]


@each_once
def test_repeated_chunk_must_be_what_is_stored(stored: Api) -> None:
    """While chunks arrive, and when the file is complete."""
    dataset_id = begin(stored, len(CONTENT)).json()["id"]
    other = bytes(CONTENT[:999]) + bytes([CONTENT[999] ^ 1]) + CONTENT[1000:]
    for start in (0, 1000):
        assert put(stored, dataset_id, CONTENT, start, start + 1000).status_code == 200

    def repeated() -> None:
        for start, stop in ((0, 1000), (500, 1500), (0, 2000), (1999, 2000)):
            assert put(stored, dataset_id, CONTENT, start, stop).status_code == 200
        for start, stop in ((0, 1000), (999, 1500), (0, 2000)):
            problem = refused(
                put(stored, dataset_id, other, start, stop), 409, None, "upload-differs"
            )
            assert f"from byte {start} on" in problem["detail"]
        path, part = f"/v1/datasets/{dataset_id}/content", {"Content-Range": "bytes 0-999/3000"}
        damaged = part | {"Content-Digest": "sha-256=:" + "A" * 43 + "=:"}
        answer = stored.client.put(path, content=CONTENT[:1000], headers=damaged)
        refused(answer, 400, None, "digest-mismatch")
        for body in (b"", CONTENT[:999], CONTENT[:1001]):
            refused(stored.client.put(path, content=body, headers=part), 400)

    repeated()
    assert put(stored, dataset_id, CONTENT, 2000, 3000).status_code == 200
    finisher = dispatcher_of_uploads(stored)
    finisher.round()
    repeated()
    finisher.round()
    repeated()
    assert content_of(stored, dataset_id) == CONTENT


PARTS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(1, 70), st.sampled_from([0, 0, 0, 1])), max_size=10
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(1, 150), parts=PARTS)
def test_any_sequence_of_chunks_ends_in_the_same_file(
    stored: Api, size: int, parts: list[tuple[int, int, int]]
) -> None:
    content = random.Random(size).randbytes(size)
    dataset_id = begin(stored, size).json()["id"]
    received = 0
    # Then the rest as a client resumes, after one repetition.
    for start, length, more in [*parts, (0, 1, 0), (-1, 64, 0), (-1, 64, 0), (-1, 64, 0)]:
        start = received if start < 0 else start
        stop = min(start + length, size)
        if start >= stop:
            continue
        answer = put(stored, dataset_id, content, start, stop, size + more)
        if more:
            refused(answer, 422, "Content-Range")
        elif stop <= received:
            assert answer.status_code == 200
        elif start == received:
            assert answer.status_code == 200
            received = stop
        else:  # a gap or an overlap
            problem = refused(answer, 409, None, "upload-offset")
            assert problem["offset"] == int(answer.headers["upload-offset"]) == received
        assert show(stored, dataset_id)["upload"]["received"] == received
    assert received == size
    dispatcher_of_uploads(stored).round()
    assert content_of(stored, dataset_id) == content
    assert stored.client.delete(f"/v1/datasets/{dataset_id}").status_code == 204


def test_concurrent_requests_for_one_chunk_store_it_once(stored: Api) -> None:
    """Also if they differ: whatever was recorded is never overwritten, and one of them is accepted."""
    dataset_id = begin(stored, 200_000).json()["id"]
    contents = [bytes([number]) * 200_000 for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for start, stop in ((0, 100_000), (100_000, 200_000)):
            send = partial(put, stored, dataset_id, start=start, stop=stop)
            answers = list(pool.map(send, contents))
            assert [each.status_code for each in answers].count(200) == 1
            for answer in answers:
                if answer.status_code != 200:
                    assert answer.status_code == 409
                    assert answer.json()["type"] in ("upload-busy", "upload-differs")
    dispatcher_of_uploads(stored).round()
    content = content_of(stored, dataset_id)
    assert len(content) == 200_000
    for half in (content[:100_000], content[100_000:]):
        assert len(set(half)) == 1, "the chunks of two requests are mixed"


@each_once
def test_wrong_bodies_are_not_stored(stored: Api) -> None:
    dataset_id = begin(stored, len(CONTENT)).json()["id"]
    path = f"/v1/datasets/{dataset_id}/content"

    def send(body: bytes | Iterator[bytes], **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return stored.client.put(path, content=body, headers=named)

    for header, what in {
        "": "is missing",
        "bytes 0-9/5": "goes beyond the end of the file",
        "bytes 9-0/3000": "ends before it begins",
        "bytes */3000": "is not a range of bytes",
        "items 0-9/3000": "is not a range of bytes",
        "bytes 0-9/3001": "has the size 3001, but the upload was created with 3000 bytes",
    }.items():
        problem = refused(send(b"x" * 10, content_range=header), 422, "Content-Range")
        assert problem["errors"][0]["message"] == what
        assert problem["errors"][0]["given"] == header
    refused(send(b"x" * 10), 422, "Content-Range")
    for body in (b"x" * 9, b"x" * 11, b""):
        refused(send(body, content_range="bytes 0-9/3000"), 400)
        refused(send(iter([body]), content_range="bytes 0-9/3000"), 400)
    digest = "sha-256=:" + "A" * 43 + "=:"
    wrong = send(b"x" * 10, content_range="bytes 0-9/3000", content_digest=digest)
    refused(wrong, 400, None, "digest-mismatch")
    for digest in (":AA==:", ":!!:", "", "AA==", ":AA==", f":{'A' * 43}=: x"):
        for header in (f"sha-256={digest}", f"md5=:AA==:, SHA-256={digest}"):
            wrong = send(b"x" * 10, content_range="bytes 0-9/3000", content_digest=header)
            refused(wrong, 422, "Content-Digest")
    refused(send(b"x", content_range="bytes 0-0/3000", content_digest="sha-256"), 422)
    assert show(stored, dataset_id)["upload"]["received"] == 0
    assert put(stored, dataset_id, CONTENT, 0, 3000).status_code == 200
    dispatcher_of_uploads(stored).round()
    assert content_of(stored, dataset_id) == CONTENT


@pytest.mark.parametrize(
    ("header", "checked"),
    [
        (None, False),
        ("", False),
        ("sha-512=:AA==:", False),
        ("x-sha-256=:AA==:, sha-256-x=:AA==:", False),
        (f"sha-256=:{'A' * 43}=:", True),
        (f"sha-512=:AA==:,\tsha-256=:{'A' * 43}=:;a=1, md5=:AA==:", True),
    ],
)
def test_only_sha256_of_digests_counts(header: str | None, checked: bool) -> None:
    assert uploads.parse_digest(header) == (bytes(32) if checked else None)


@each_once
def test_wrong_sha256_fails_the_data_set_and_removes_the_file(stored: Api) -> None:
    dataset_id = begin(stored, len(CONTENT), sha256="0" * 64).json()["id"]
    assert put(stored, dataset_id, CONTENT, 0, 3000).status_code == 200
    dispatcher_of_uploads(stored).round()
    failed = show(stored, dataset_id)
    assert (failed["state"], failed["error"]["type"]) == ("failed", "upload-damaged")
    assert hashlib.sha256(CONTENT).hexdigest() in failed["error"]["message"]
    assert files_of(stored, dataset_id) == []
    refused(put(stored, dataset_id, CONTENT, 0, 3000), 409, None, "wrong-state")
    again = stored.client.post(f"/v1/datasets/{dataset_id}/refresh")
    refused(again, 409, None, "dataset-not-ready")


@pytest.mark.parametrize(
    ("database_url", "store_root"), [("sqlite", "s3")], indirect=True, ids=["s3"]
)
def test_chunk_that_another_request_was_faster_with_is_removed(stored: Api) -> None:
    dataset_id = begin(stored, 2000).json()["id"]
    first, second = (
        uploads.store_chunk(
            stored.database,
            stored.context.storage,
            "default",
            dataset_id,
            uploads.Part(0, 1000, 2000),
            None,
            lambda session: None,
        )
        for _ in range(2)
    )
    for request in (first, second):
        next(request)
        request.send(bytes(1000))
    with pytest.raises(StopIteration):
        first.send(b"")
    assert len(files_of(stored, dataset_id)) == 1
    with pytest.raises(Problem, match="written to this upload meanwhile"):
        second.send(b"")
    assert len(files_of(stored, dataset_id)) == 1


@each_once
def test_lost_chunk_fails_the_data_set(stored: Api) -> None:
    dataset_id = begin(stored, len(CONTENT)).json()["id"]
    for start in (0, 1000, 2000):
        put(stored, dataset_id, CONTENT, start, start + 1000)
    fs, path = open_store(stored.context.storage.dataset_uri(dataset_id))
    fs.rm(fs.find(path)[-1])
    dispatcher_of_uploads(stored).round()
    failed = show(stored, dataset_id)
    assert (failed["state"], failed["error"]["type"]) == ("failed", "upload-lost")


@each_once
def test_completion_survives_a_kill_at_any_step(stored: Api) -> None:
    """The dispatcher is restarted after each step."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    dataset_id = begin(stored, len(CONTENT), sha256=sha256).json()["id"]
    for start in (0, 1000, 2000):
        put(stored, dataset_id, CONTENT, start, start + 1000)
    with stored.database.read() as session:
        dataset = session.get_one(Dataset, dataset_id)
    for steps in range(4):
        completion = dispatcher_of_uploads(stored).complete(dataset)
        for _ in range(steps):
            next(completion, None)
        del completion
        if steps < 1:
            assert show(stored, dataset_id)["state"] == "uploading"
    # As if it had been killed between the last two steps.
    with stored.database.write() as session:
        session.get_one(Dataset, dataset_id).state = "uploading"
    dispatcher_of_uploads(stored).round()
    assert show(stored, dataset_id)["state"] == "pending"
    assert content_of(stored, dataset_id) == CONTENT
    with stored.database.read() as session:
        finished = session.get_one(Dataset, dataset_id)
    # An upload that took a day has not waited for its ingest since yesterday.
    assert finished.ingest_requested_at > dataset.ingest_requested_at == dataset.created_at


@each_once
def test_upload_deleted_while_it_is_completed_leaves_no_file(
    stored: Api, garbage_of: Garbage
) -> None:
    dataset_id = begin(stored, len(CONTENT)).json()["id"]
    put(stored, dataset_id, CONTENT, 0, 3000)
    with stored.database.read() as session:
        dataset = session.get_one(Dataset, dataset_id)
    completion = dispatcher_of_uploads(stored).complete(dataset)
    next(completion, None)
    stored.client.delete(f"/v1/datasets/{dataset_id}")
    for _ in completion:
        pass
    garbage_of.round()
    assert files_of(stored, dataset_id) == []
    with stored.database.read() as session:
        assert session.scalars(select(UploadChunk)).all() == []


@pytest.fixture
def garbage_of(stored: Api) -> Garbage:
    from service.dispatcher.adoption import Adoption

    context = dispatcher_of_uploads(stored)._context
    return Garbage(context, Adoption(context))


@each_once
def test_abandoned_upload_is_deleted_with_its_chunks(
    stored: Api, garbage_of: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = timedelta()

    def clock() -> datetime:
        return utc_now() + ahead

    abandoned = begin(stored, len(CONTENT)).json()["id"]
    put(stored, abandoned, CONTENT, 0, 1000)
    complete = begin(stored, len(CONTENT), name="complete").json()["id"]
    put(stored, complete, CONTENT, 0, 3000)
    finisher = dispatcher_of_uploads(stored, clock)
    finisher.round()
    assert show(stored, abandoned)["state"] == "uploading"
    agree(monkeypatch, clock)
    # Marked, continued within a day, marked again.
    for days, left in ((7.1, True), (8.2, True), (9.1, True), (9.3, False)):
        ahead = timedelta(days=days)
        something_happens(stored.database, clock())
        finisher._context.take_lease()
        finisher.round()
        assert (stored.client.get(f"/v1/datasets/{abandoned}").status_code == 200) == left, days
        if days < 8:
            assert put(stored, abandoned, CONTENT, 1000, 2000).is_success
    refused(put(stored, abandoned, CONTENT, 2000, 3000), 404)
    assert show(stored, complete)["state"] == "pending"
    garbage_of.round()
    assert files_of(stored, abandoned) == []
    assert files_of(stored, complete)


def test_upload_of_which_all_is_stored_is_not_abandoned(api: Api) -> None:
    dataset_id = begin(api, len(CONTENT)).json()["id"]
    put(api, dataset_id, CONTENT, 0, len(CONTENT))
    now = utc_now()
    with api.database.write() as session:
        for marked in (now, now + timedelta(days=2)):
            assert not repository.delete_abandoned(session, now + timedelta(days=8), marked)
    assert show(api, dataset_id)["state"] == "uploading"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"filename": "birds.tar.gz"}, "upload.filename"),
        ({"filename": "birds.csv"}, "upload.filename"),
        ({"filename": "../birds.tar"}, "upload.filename"),
        ({"filename": ".tar"}, "upload.filename"),
        ({"size": 0}, "upload.size"),
        ({"size": True}, "upload.size"),
        ({"size": 10**15}, "upload.size"),
        ({"sha256": "0" * 63}, "upload.sha256"),
        ({"folder": "/"}, "upload.folder"),
    ],
)
def test_upload_refuses_bad_files(api: Api, change: dict[str, Any], field: str) -> None:
    refused(begin(api, **{"size": 1} | change), 422, field)
    assert api.client.get("/v1/datasets").json()["data"] == []


def test_data_set_has_either_a_place_or_an_upload(api: Api) -> None:
    upload = {"filename": "a.zip", "size": 1}
    for body in ({}, {"uri": "/images", "upload": upload}):
        refused(api.client.post("/v1/datasets", json={"name": "x", **body}), 422, "uri")
    other = api.dataset()
    refused(put(api, other, b"x", 0, 1), 409, None, "not-an-upload")


def test_uploads_count_as_pending_and_need_room(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.client.headers.update(api.token("submit", max_pending_datasets=1))
    assert begin(api, 5000).status_code == 201
    refused(begin(api, 10, name="another"), 429, None, "quota-exceeded")
    api.client.headers.update(api.token("submit"))
    monkeypatch.setattr(free_space, "free_bytes", lambda _: free_space.FULL_BYTES + 7000)
    # What was declared reserves no room until something of it was sent, or one request an hour would stop everybody.
    assert begin(api, 7000, name="declared").status_code == 201

    def sent(at: datetime) -> None:
        with api.database.write() as session:
            row = session.scalars(select(Dataset).where(Dataset.upload_size == 5000)).one()
            row.upload_received, row.upload_received_at = 1000, at

    sent(datetime.now(UTC))
    refused(begin(api, 3001, name="too large"), 507, None, "storage-full")
    assert begin(api, 3000, name="fits").status_code == 201
    sent(datetime(2026, 1, 1, tzinfo=UTC))
    assert begin(api, 7000, name="abandoned").status_code == 201


def test_uploads_of_a_tenant_and_a_token_have_a_limit(api: Api) -> None:
    """A token could send 100 files of 200 GB to the disk of all tenants."""
    api.client.headers.update(api.token("submit", max_uploaded_bytes=3000))
    assert begin(api, 2000).status_code == 201
    problem = refused(begin(api, 1001, name="b"), 429, None, "quota-exceeded")
    assert (problem["quota"], problem["limit"], problem["used"]) == (
        "max_uploaded_bytes",
        3000,
        2000,
    )
    assert begin(api, 1000, name="c").status_code == 201
    api.client.headers.update(api.token("operator"))
    path = "/v1/tenants/default"
    changed = api.client.patch(path, json={"max_uploaded_bytes": 4000})
    assert changed.json()["max_uploaded_bytes"] == 4000
    problem = refused(begin(api, 1001, name="d"), 429, None, "quota-exceeded")
    assert "the tenant default is 4000, and its uploads have 3000 bytes" in problem["detail"]
    removed = begin(api, 1000, name="e").json()["id"]
    assert api.client.delete(f"/v1/datasets/{removed}").status_code == 204
    assert begin(api, 1000, name="f").status_code == 201


@pytest.mark.dialect
def test_concurrent_uploads_stay_within_the_limit_of_their_tenant(api: Api) -> None:
    api.client.headers.update(api.token("operator"))
    limit = {"max_uploaded_bytes": 3000}
    assert api.client.patch("/v1/tenants/default", json=limit).is_success
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: begin(api, 1000, name=str(n)).status_code, range(8))
        assert sorted(answers) == [201] * 3 + [429] * 5


def test_disk_is_asked_for_its_room_outside_of_transactions(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs must not hold the only writer of SQLite."""
    measured: list[int] = []

    def free_bytes(_: str) -> int:
        with api.database.write() as session:  # would wait for a transaction that is open
            session.execute(update(Dataset).values(name=Dataset.name))
        measured.append(1)
        return 10**12

    monkeypatch.setattr(free_space, "free_bytes", free_bytes)
    assert begin(api, 5).status_code == 201
    assert measured == [1]


def test_large_chunk_is_refused_and_other_bodies_stay_small(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MAX_CHUNK_BYTES", 400_000)
    monkeypatch.setattr(uploads, "MAX_CHUNK_BYTES", 400_000)
    content = bytes(500_000)
    dataset_id = begin(api, len(content)).json()["id"]
    for start, stop in ((0, 400_001), (0, 500_000)):
        problem = refused(put(api, dataset_id, content, start, stop), 413, None, "body-too-large")
        assert problem["limit"] == 400_000
    assert put(api, dataset_id, content, 0, 400_000).status_code == 200, "more than max_body_bytes"
    answer = api.client.post(f"/v1/datasets/{dataset_id}/content", content=content)
    assert refused(answer, 413)["limit"] == api.settings.max_body_bytes


def test_declared_size_reserves_little_room(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte every ten minutes kept the whole disk for an upload that never came."""
    free = 10 << 30
    monkeypatch.setattr(free_space, "free_bytes", lambda _: free_space.FULL_BYTES + free)
    assert begin(api, free, name="declared").status_code == 201

    def sent(received: int) -> None:
        with api.database.write() as session:
            row = session.scalars(select(Dataset).where(Dataset.upload_size == free)).one()
            row.upload_received, row.upload_received_at = received, datetime.now(UTC)

    sent(1)
    # Nor do many of them, each with a byte.
    assert begin(api, free - 10, name="real").status_code == 201
    sent(free // 20)
    refused(begin(api, free * 9 // 10, name="too large"), 507, None, "storage-full")


def test_full_disk_loses_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset_id = begin(api, len(CONTENT)).json()["id"]
    part = Path(show(api, dataset_id)["uri"]).with_name(".birds.tar.part")
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    problem = refused(put(api, dataset_id, CONTENT, 0, 1000), 507, None, "storage-full")
    assert "DASL_ARTIFACTS_URI" in problem["detail"]
    part.unlink()
    assert put(api, dataset_id, CONTENT, 0, 1000).status_code == 200
    really_write = os.pwrite

    def write(descriptor: int, content: memoryview, position: int) -> int:
        """Fill the disk with the first bytes."""
        if position >= 1300:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really_write(descriptor, content[:300], position)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", write)
        refused(put(api, dataset_id, CONTENT, 1000, 2000), 507, None, "storage-full")
    assert part.stat().st_size == 1000, "the space of the chunk is given back"
    assert show(api, dataset_id)["upload"]["received"] == 1000
    assert put(api, dataset_id, CONTENT, 1000, 3000).status_code == 200
    dispatcher_of_uploads(api).round()
    assert content_of(api, dataset_id) == CONTENT


def test_disk_that_is_not_mounted_is_waited_for(api: Api) -> None:
    dataset_id = begin(api, len(CONTENT)).json()["id"]
    assert put(api, dataset_id, CONTENT, 0, 1000).status_code == 200
    folder = Path(show(api, dataset_id)["uri"]).parent
    away = folder.rename(folder.with_name("away"))
    refused(put(api, dataset_id, CONTENT, 1000, 3000), 503, None, "store-unavailable")
    folder.mkdir()
    (folder / ".birds.tar.part").touch()
    refused(put(api, dataset_id, CONTENT, 1000, 3000), 503, None, "store-unavailable")
    (folder / ".birds.tar.part").unlink()
    folder.rmdir()
    away.rename(folder)
    assert put(api, dataset_id, CONTENT, 1000, 3000).status_code == 200
    folder.rename(away)
    dispatcher_of_uploads(api).round()
    assert show(api, dataset_id)["state"] == "uploading"
    away.rename(folder)
    dispatcher_of_uploads(api).round()
    assert show(api, dataset_id)["state"] == "pending"
    assert content_of(api, dataset_id) == CONTENT


def test_storage_report_counts_uploads(api: Api) -> None:
    dataset_id = begin(api, len(CONTENT)).json()["id"]
    put(api, dataset_id, CONTENT, 0, 1000)
    admin = api.token("admin")
    report = api.client.get("/v1/storage", headers=admin).json()
    assert report["uploads"] == {"count": 1, "bytes": 1000}
    assert report["store"]["tenants"] == [{"tenant": "default", "bytes": 0, "uploads": 1000}]
    api.client.delete(f"/v1/datasets/{dataset_id}")
    assert api.client.get("/v1/storage", headers=admin).json()["uploads"]["count"] == 0


@each_once
def test_failed_upload_says_what_can_be_done_with_an_upload(stored: Api) -> None:
    dataset_id = begin(stored, 1, name="a").json()["id"]
    put(stored, dataset_id, b"x", 0, 1)
    dispatcher_of_uploads(stored).round()
    worker = stored.ingest(dataset_id)
    uri = worker.post("start").json()["uri"]
    error = {"type": "ingest-failed", "message": f"{uri} holds no usable image"}
    answer = worker.post("finish", state="failed", error=error)
    assert answer.status_code == 204, answer.text
    assert show(stored, dataset_id)["error"]["message"] == "the upload holds no usable image"
    taken = refused(begin(stored, 1, name="a"), 409, None, "name-taken")["detail"]
    assert "upload it again" in taken
    assert "corrected" not in taken
    assert uri not in taken


@each_once
def test_workers_read_only_the_upload_of_the_data_set(stored: Api) -> None:
    from dasl_core.spec.locations import ReadableFolders

    dataset_id, other = (begin(stored, 1, name=name).json()["id"] for name in ("a", "b"))
    put(stored, dataset_id, b"x", 0, 1)
    dispatcher_of_uploads(stored).round()
    worker = stored.ingest(dataset_id)
    start = worker.post("start").json()
    readable = ReadableFolders(
        start["dataset_roots"],
        start["excluded_folders"],
        uris=start["dataset_uris"],
        excluded_uris=start["excluded_uris"],
    )

    def may_read(uri: str) -> bool:
        return readable.allow_uri(uri) if "://" in uri else readable.allow(uri)

    assert may_read(start["uri"])
    assert start["uri"] == show(stored, dataset_id)["uri"]
    for uri in (show(stored, other)["uri"], stored.settings.artifacts_uri.removeprefix("file://")):
        assert not may_read(uri)
    for path in ("/etc/passwd", "s3://elsewhere/birds.tar"):
        assert not may_read(path)
    index = f"{start['artifacts_uri']}/1/index.safetensors"
    report = {"state": "succeeded", "facts": FACTS, "report": {}, "index_uri": index}
    assert worker.post("finish", **report).status_code == 204
    # Training reads from there, too.
    started = stored.start(stored.submit(dataset="a")["id"]).post("start")
    assert started.json()["dataset"]["upload_folder"] == start["uri"].rpartition("/")[0]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_killed_api_loses_at_most_a_chunk(api: Api, database_url: str, tmp_path: Path) -> None:
    """Killed while a chunk is written; another process takes the rest."""
    content = random.Random(1).randbytes(8 << 20)
    settings = {
        "DASL_ARTIFACTS_URI": api.settings.artifacts_uri,
        "DASL_HOME": str(tmp_path / "home"),
    }
    token = api.client.headers["authorization"].removeprefix("Bearer ")
    dataset = begin(api, len(content)).json()
    assert put(api, dataset["id"], content, 0, 2 << 20).status_code == 200
    part = Path(dataset["uri"]).with_name(".birds.tar.part")
    with api_process(database_url, **settings) as (process, url):
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as connection:
            head = (
                f"PUT /v1/datasets/{dataset['id']}/content HTTP/1.1",
                f"Host: {host}",
                f"Authorization: Bearer {token}",
                f"Content-Range: bytes {2 << 20}-{(6 << 20) - 1}/{len(content)}",
                f"Content-Length: {4 << 20}",
            )
            connection.sendall("\r\n".join((*head, "", "")).encode())
            connection.sendall(b"\xff" * (3 << 20))
            until(lambda: part.stat().st_size > 2 << 20 or None, "a part of the chunk on the disk")
            process.kill()
            process.wait()
    assert show(api, dataset["id"])["upload"]["received"] == 2 << 20
    for start in (2 << 20, 5 << 20):
        assert put(api, dataset["id"], content, start, start + (3 << 20)).status_code == 200
    dispatcher_of_uploads(api).round()
    assert content_of(api, dataset["id"]) == content
