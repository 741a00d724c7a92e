"""Settings: validation, defaults, and errors without passwords."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.settings import Settings, read_settings, warn_of_misspelled_variables


@pytest.mark.parametrize("name", ["a?b", "a#b", "a%20b", "a::b"])
def test_home_with_url_characters_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValidationError, match="home must be a path without"):
        Settings(home=tmp_path / name)


def test_home_may_contain_spaces_and_umlauts(tmp_path: Path) -> None:
    home = tmp_path / "Möwen am Strand"
    settings = Settings(home=home)
    assert settings.database_url == f"sqlite:///{home}/dasl.db"
    assert settings.artifacts_uri == f"file://{home}/artifacts"


def test_dataset_roots_are_absolute_folders_separated_by_colons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().dataset_roots == ()
    monkeypatch.setenv("DASL_DATASET_ROOTS", "/data:/mnt/more images")
    assert Settings().dataset_roots == (Path("/data"), Path("/mnt/more images"))
    # An empty or broken list must not mean "all folders".
    for broken in ("", ":", "/data:", "data", "~/data"):
        monkeypatch.setenv("DASL_DATASET_ROOTS", broken)
        with pytest.raises(ValidationError, match="must be absolute paths"):
            Settings()


def test_object_stores_are_readable_where_folders_are_or_where_they_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().readable_folders("a").allow_uri("s3://bucket/images")
    monkeypatch.setenv("DASL_DATASET_ROOTS", "/data")
    assert not Settings().readable_folders("a").allow_uri("s3://bucket/images")
    monkeypatch.setenv("DASL_DATASET_URIS", "s3://bucket/images gs://other")
    monkeypatch.setenv("DASL_ARTIFACTS_URI", "s3://bucket/images/artifacts")
    readable = Settings().readable_folders("a")
    assert readable.allow_uri("s3://bucket/images/birds")
    assert not readable.allow_uri("s3://bucket/images/artifacts/datasets")
    assert not readable.allow_uri("s3://bucket/other")
    monkeypatch.setenv("DASL_DATASET_URIS", "/data")
    with pytest.raises(ValidationError, match="must be URIs such as"):
        Settings()


def test_tracking_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Settings(home=tmp_path).allowed_tracking_hosts is None
    assert Settings(home=tmp_path, dataset_roots=(tmp_path,)).allowed_tracking_hosts == []
    monkeypatch.setenv("DASL_TRACKING_HOSTS", "mlflow.example.org 10.0.0.7:5000")
    hosts = ["mlflow.example.org", "10.0.0.7:5000"]
    assert Settings(home=tmp_path, dataset_roots=(tmp_path,)).allowed_tracking_hosts == hosts
    monkeypatch.setenv("DASL_TRACKING_HOSTS", "")  # a compose file passes an empty value on
    assert Settings(home=tmp_path).allowed_tracking_hosts == []
    monkeypatch.setenv("DASL_TRACKING_HOSTS", "mlflow http://mlflow")
    with pytest.raises(ValueError, match="DASL_TRACKING_HOSTS: must be HOST or HOST:PORT"):
        read_settings()


def test_tenant_roots_name_folders_of_each_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_TENANT_ROOTS", "a=/data/a:/models/a;b=/data/b")
    a, b, models = Path("/data/a"), Path("/data/b"), Path("/models/a")
    settings = Settings()
    assert settings.tenant_roots == {"a": (a, models), "b": (b,)}
    assert settings.readable_folders("a").roots == (Path("/"), a, models)
    assert settings.readable_folders("a").excluded[2:] == (b,)
    assert settings.readable_folders("c").roots == ()
    assert settings.readable_folders("c").excluded[2:] == (a, b, models)
    monkeypatch.setenv("DASL_TENANT_ROOTS", "")
    assert Settings().tenant_roots == {}
    for broken in ("a", "a=", "a=data", "=/data", "a=/data;a=/more", "a=/data;"):
        monkeypatch.setenv("DASL_TENANT_ROOTS", broken)
        with pytest.raises(ValidationError, match="must name each tenant once"):
            Settings()


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", None),
        ("current", "current"),
        ("1x16", ((1, 16, 0),)),
        ("8x64:8, 2x32", ((8, 64, 8), (2, 32, 0))),
    ],
)
def test_cluster_limit_lists_nodes(
    text: str, limit: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_CLUSTER_LIMIT", text)
    assert Settings().cluster_limit == limit


def test_artifacts_uri_must_be_absolute() -> None:
    """All processes must resolve it to the same location, whatever their working folder."""
    assert Settings(artifacts_uri="/shared/dasl/").artifacts_uri == "file:///shared/dasl"
    assert Settings(artifacts_uri="s3://bucket/dasl").artifacts_uri == "s3://bucket/dasl"
    with pytest.raises(ValidationError, match="DASL_ARTIFACTS_URI must be an absolute path"):
        Settings(artifacts_uri="artifacts")


def test_settings_and_their_errors_show_no_passwords(tmp_path: Path) -> None:
    secrets: dict[str, Any] = {
        "database_url": "postgresql+psycopg://dasl:hunter2@db/dasl",
        "ray_auth_token": "hunter2-ray",
        "artifacts_uri": "s3://key:hunter2@bucket/dasl",
    }
    settings = Settings(home=tmp_path, **secrets)
    for text in (repr(settings), str(settings)):
        assert "hunter2" not in text
    with pytest.raises(ValidationError) as refused:
        Settings(home=tmp_path / "a?b", **secrets)
    assert "hunter2" not in f"{refused.value}{refused.value!r}"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DASL_LEASE_SECONDS", "abc", "Input should be a valid number, unable to parse .*'abc'"),
        ("DASL_HEARTBEAT_SECONDS", "120", "less than or equal to 60; given '120'"),
        ("DASL_PORT", "70000", "less than or equal to 65535; given '70000'"),
        ("DASL_DATASET_ROOTS", "data", "must be absolute paths .*; given 'data'"),
        ("DASL_LOG_FORMAT", "xml", "'text' or 'json'; given 'xml'"),
        *(
            ("DASL_CLUSTER_LIMIT", value, f"nodes as COUNTxCPUS:GPUS .*; given '{value}'")
            for value in ("8", "8x", "x8", "8x64:", "8x64;1x1", "now", "-1x8", "8x64,")
        ),
        ("DASL_HEARTBEAT_SECONDS", "15", "^DASL_CANCEL_GRACE_SECONDS must be .* given 30 and 15"),
        ("DASL_CANCEL_GRACE_SECONDS", "4", "must be more than twice .* given 4 and 2"),
        ("DASL_CANCEL_MAX_SECONDS", "20", "must not be less than .* given 20 and 30"),
    ],
)
def test_settings_error_names_variable_and_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message) as refused:
        read_settings()
    assert variable in str(refused.value)
    assert "pydantic" not in str(refused.value)


def test_long_grace_raises_the_default_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_CANCEL_GRACE_SECONDS", "1200")
    assert read_settings().cancel_max_seconds == 1200


def test_settings_error_shows_no_other_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASL_DATABASE_URL", "postgresql+psycopg://dasl:hunter2@db/dasl")
    monkeypatch.setenv("DASL_ARTIFACTS_URI", "s3://key:hunter2@bucket/dasl")
    monkeypatch.setenv("DASL_HOME", str(tmp_path / "a?b"))
    with pytest.raises(ValueError, match="home must be a path without") as refused:
        read_settings()
    assert "hunter2" not in str(refused.value)


def test_misspelled_variable_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The last two are the user's own, and of Kubernetes beside a service of this name.
    for name in ("DASL_KEEP_JOB_DAYS", "DASL_CACHE_DIR", "DASL_PROJECT", "DASL_API_PORT"):
        monkeypatch.setenv(name, "30")
    warn_of_misspelled_variables()
    assert caplog.messages == [
        "DASL_KEEP_JOB_DAYS: unknown setting, ignored. Did you mean DASL_KEEP_JOBS_DAYS?"
    ]


def test_no_variable_of_the_manual_is_called_misspelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(__file__).parents[2]
    files = [root / "docs" / "operations.md", root / "docker-compose.yml"]
    names = {name for file in files for name in re.findall(r"DASL_[A-Z_]+[A-Z]", file.read_text())}
    assert len(names) > 50
    for name in names:
        monkeypatch.setenv(name, "1")
    warn_of_misspelled_variables()
    assert caplog.messages == []
