"""Artifact storage: which URIs are accepted, and reading parts of files; and ids."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service import ids, submission_ids
from service.artifacts.storage import Storage, is_below
from service.embedded.first_store_check import check_store


@pytest.mark.parametrize(
    ("uri", "below"),
    [
        ("s3://b/root/a", True),
        ("s3://b/root/a/b.json", True),
        ("s3://b/root", False),
        ("s3://b/root/", False),
        ("s3://b/rootless/a", False),
        ("s3://b/root/../a", False),
        ("s3://b/root/a/..", False),
        ("s3://b/root/./a", False),
        ("s3://b/root//a", False),
        ("s3://b/root/a\x00", False),
        ("s3://b/root/a\\..\\b", False),
        ("s3://b/root/a:b", True),
        ("s3://b/root/a::b", False),
        ("s3://b/root/a::memory", False),
        ("file:///root/a", False),
        ("", False),
    ],
)
def test_is_below_accepts_only_normalized_uris_below_the_root(uri: str, below: bool) -> None:
    assert is_below(uri, "s3://b/root") is below
    # A chained URI is valid as the root.
    assert is_below(f"simplecache::{uri}", "simplecache::s3://b/root") is below


def test_storage_reads_parts_of_a_file(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    path = tmp_path / "with a space.bin"
    path.write_bytes(content)
    storage = Storage(f"file://{tmp_path}")
    uri = f"file://{path}"
    assert storage.size(uri) == len(content)
    assert b"".join(storage.read(uri, 5, 2_000_000)) == content[5:2_000_000]
    assert b"".join(storage.read(uri, 0, 10**12)) == content
    assert storage.size(f"{uri}.none") is None


def test_ids_sort_by_creation_and_are_recognized_by_kind() -> None:
    created = [ids.new_id("job") for _ in range(2000)]
    assert created == sorted(set(created))
    assert abs(ids.created_at(created[0]) - datetime.now(UTC)) < timedelta(minutes=1)
    assert ids.is_id("job", created[0])
    assert not ids.is_id("ds", created[0])
    assert not ids.is_id("job", created[0].upper())
    assert not ids.is_id("job", created[0] + "\n")


def test_submission_ids_of_the_same_run_differ_and_are_recognized() -> None:
    for owner, number in (ids.new_id("job"), 1), (ids.new_id("ds"), 2**31 - 1):
        first, second = (submission_ids.new_submission_id(owner, number) for _ in range(2))
        assert first != second
        assert len(first) <= 60, "the length of the column"
        assert all(map(submission_ids.is_submission_id, (first, second)))
    for bad in (
        submission_ids.new_submission_id(ids.new_id("tok"), 1),
        f"{ids.new_id('job')}-0-00000000",
        f"{ids.new_id('job')}-1",
        first + "\n",
    ):
        assert not submission_ids.is_submission_id(bad)


def test_service_starts_although_its_store_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "check_writable", lambda _: go_on.wait(60))
        check_store(f"file://{tmp_path}", seconds=0.01)
        go_on.set()
    assert "has not answered for 0.01 s" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be"):
        check_store(f"file://{tmp_path}/file/artifacts")


def test_check_writable_reports_unusable_root(tmp_path: Path) -> None:
    root = tmp_path / "not there yet" / "artifacts"
    Storage(f"file://{root}").check_writable()
    assert list(root.iterdir()) == []
    (tmp_path / "file").touch()
    for bad, reason in (
        (f"file://{tmp_path}/file/artifacts", "NotADirectoryError|FileExistsError"),
        ("nowhere://key:hunter2@bucket/dasl", "ValueError: Protocol not known"),
    ):
        with pytest.raises(
            ValueError, match=rf"\(DASL_ARTIFACTS_URI\) cannot be .*({reason})"
        ) as refused:
            Storage(bad).check_writable()
        assert "hunter2" not in str(refused.value)
