"""Requests that reading images of an object store takes."""

from typing import Any

import numpy as np
import pytest

from dasl_core.data.decode.reasons import describe_failure, is_transient
from dasl_core.data.opening import open_image
from dasl_core.data.sources import find_source
from dasl_core.data.sources.folder import FolderSource
from dasl_core.storage import _FIRST_READ, RemoteStorage, open_system


@pytest.mark.slow
def test_image_of_an_object_store_is_read_with_one_request(
    s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, root = open_system(s3_root)
    images = {f"{size}.jpg": np.random.default_rng(0).bytes(size) for size in (0, 45_000, 200_000)}
    for name, content in images.items():
        system.pipe_file(f"{root}/{name}", content)
    source = find_source(s3_root).open()
    assert isinstance(source, FolderSource)
    assert isinstance(source.storage, RemoteStorage)
    entries = {entry.key: entry for entry in source.list_entries(lambda found: None).entries}
    client = source.storage.system[0]
    requests: list[str] = []
    read, info = client.cat_file, client.info

    def count_read(path: str, start: int, end: int) -> Any:
        requests.append(f"GET {end - start}")
        return read(path, start=start, end=end)

    def count_info(path: str) -> Any:
        requests.append("HEAD")
        return info(path)

    monkeypatch.setattr(client, "cat_file", count_read)
    monkeypatch.setattr(client, "info", count_info)
    for name, expected in (
        ("0.jpg", []),
        ("45000.jpg", ["GET 45000"]),
        ("200000.jpg", [f"GET {_FIRST_READ}", f"GET {200_000 - _FIRST_READ}"]),
    ):
        with open_image(source, entries[name]) as file:
            assert file.read() == images[name]
        assert requests == expected
        requests.clear()
    with open_image(source, entries["200000.jpg"], header=True) as file:
        assert file.read(1000) == images["200000.jpg"][:1000]
    assert requests == [f"GET {_FIRST_READ}"]
    requests.clear()
    # Not every source knows the length.
    with open_image(source, entries["45000.jpg"]._replace(length=-1)) as file:
        assert file.read() == images["45000.jpg"]
    assert requests == ["HEAD", "GET 45000"]


def test_refusal_of_a_store_is_no_damage_of_the_image(s3_root: str) -> None:
    """Its client raises errors of its own, which are no OSErrors, such as for a range behind the end."""
    system, root = open_system(s3_root)
    system.pipe_file(f"{root}/shorter.jpg", bytes(1000))
    with pytest.raises(OSError) as refused:
        RemoteStorage(s3_root).read("shorter.jpg", 5000, 10)
    assert is_transient(describe_failure(refused.value))


@pytest.mark.usefixtures("s3_root")
def test_every_request_for_a_missing_bucket_is_an_os_error() -> None:
    storage = RemoteStorage("s3://no-such-bucket/images")
    for request in (
        lambda: storage.read("a.jpg", 0, 10),
        lambda: storage.info("a.jpg"),
        lambda: list(storage.files()),
    ):
        with pytest.raises(OSError, match=r"no such|NoSuchBucket"):
            request()
