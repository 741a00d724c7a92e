"""Locations: the target of a path or URI, and whether it may be read."""

from pathlib import Path

import pytest

from dasl_core.spec.locations import ReadableFolders, local_path


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/data/birds", "/data/birds"),
        ("/data/a?b#c%20d", "/data/a?b#c%20d"),
        ("/data/odd://name", "/data/odd:/name"),
        ("//data", "/data"),
        ("///data", "/data"),
        ("file:///data/birds", "/data/birds"),
        ("FILE://localhost/data/a%3Fb", "/data/a?b"),
        ("file:////data", "/data"),
    ],
)
def test_paths_of_this_machine(location: str, path: str) -> None:
    assert str(local_path(location)) == path


@pytest.mark.parametrize(
    "location",
    [
        "",
        "birds",
        "./birds",
        "~/birds",
        "file:birds",
        "file:/birds",
        "file://elsewhere/birds",
        "file://user@localhost/birds",
        "file:///birds?a=b",
        "file:///birds#a",
        "file:///a%00b",
        "file://[::1/birds",
        "/a\x00b",
        "s3://bucket/birds",
        "http://169.254.169.254/latest/meta-data",
        "hf-hub:timm/resnet18",
        "simplecache::file:///birds",
        "\\\\server\\share",
        " /birds",
    ],
)
def test_everything_else_is_refused(location: str) -> None:
    with pytest.raises(ValueError):
        local_path(location)


def test_links_count_for_where_they_lead(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", tmp_path / "secret"
    for folder in (data / "birds", secret):
        folder.mkdir(parents=True)
    (data / "out").symlink_to(secret)
    (data / "circle").symlink_to(data / "circle")
    (tmp_path / "alias").symlink_to(data)
    assert ReadableFolders([data]).allow(data)
    assert ReadableFolders([data]).allow(data / "birds")
    assert ReadableFolders([data]).allow(data / "not-there-yet")
    assert ReadableFolders([data]).allow(tmp_path / "alias" / "birds")
    assert ReadableFolders([secret, tmp_path / "alias"]).allow(data / "birds")
    for outside in (
        secret,
        data / "out",
        data / "out" / "deeper",
        data / ".." / "secret",
        tmp_path / "alias" / "out",
        tmp_path / "database",
        tmp_path,
    ):
        assert not ReadableFolders([data]).allow(outside), outside
        assert ReadableFolders().allow(outside), "without roots everything may be read"


def test_on_other_machines_the_text_counts(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/")
    assert ReadableFolders([tmp_path], resolve_links=False).allow(tmp_path / "out" / "etc")
    assert not ReadableFolders([tmp_path], resolve_links=False).allow(
        tmp_path / "a" / ".." / ".." / "etc"
    )
    assert not ReadableFolders(["/data"], resolve_links=False).allow("/database")


def test_deepest_folder_decides(tmp_path: Path) -> None:
    home, own, shared = tmp_path / "data" / "dasl", tmp_path / "data" / "a", tmp_path / "data"
    for roots in ([], [shared], ["/"]):
        readable = ReadableFolders([*roots, own / "deep"] if roots else [], [home, own])
        assert readable.allow(shared / "birds")
        for private in (home, home / "artifacts", own, own / "birds"):
            assert not readable.allow(private), private
        assert readable.allow(own / "deep" / "birds") == bool(roots)
    assert not ReadableFolders([own], [own]).allow(own), "a root may be excluded itself"
    (shared / "birds").mkdir(parents=True)
    (shared / "birds" / "link").symlink_to(home)
    assert not ReadableFolders([shared], [home]).allow(shared / "birds" / "link" / "jobs")


def test_tree_with_a_visible_private_folder_is_not_readable(tmp_path: Path) -> None:
    readable = ReadableFolders(
        excluded=[tmp_path / "me" / ".local" / "dasl", tmp_path / "data" / "b"]
    )
    assert readable.allow_tree(tmp_path / "me"), "hidden folders are not ingested"
    assert readable.allow_tree(tmp_path / "data" / "a")
    for folder in (tmp_path / "data", tmp_path, tmp_path / "data" / "b", "/"):
        assert not readable.allow_tree(folder), folder
