"""Locations: the target of a path or URI, and whether it may be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dasl_core.spec.locations import is_allowed, local_path


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
    assert is_allowed(data, [data])
    assert is_allowed(data / "birds", [data])
    assert is_allowed(data / "not-there-yet", [data])
    assert is_allowed(tmp_path / "alias" / "birds", [data])
    assert is_allowed(data / "birds", [secret, tmp_path / "alias"])
    for outside in (
        secret,
        data / "out",
        data / "out" / "deeper",
        data / ".." / "secret",
        tmp_path / "alias" / "out",
        tmp_path / "database",
        tmp_path,
    ):
        assert not is_allowed(outside, [data]), outside
        assert is_allowed(outside, []), "without roots everything may be read"


def test_on_other_machines_the_text_counts(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/")
    assert is_allowed(tmp_path / "out" / "etc", [tmp_path], resolve_links=False)
    assert not is_allowed(tmp_path / "a" / ".." / ".." / "etc", [tmp_path], resolve_links=False)
    assert not is_allowed("/database", ["/data"], resolve_links=False)
