"""Where a driver finds its token."""

import json

import pytest

from service.client.attempt_token import METADATA_KEY, RAY_JOB_CONFIG, read_attempt_token


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASL_WORKER_TOKEN", raising=False)
    monkeypatch.delenv(RAY_JOB_CONFIG, raising=False)


def metadata(**metadata: str) -> str:
    return json.dumps({"runtime_env": {}, "metadata": metadata})


def test_token_is_read_from_the_ray_job_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RAY_JOB_CONFIG, metadata(job_name="job_x-1", **{METADATA_KEY: "of Ray"}))
    assert read_attempt_token() == "of Ray"


def test_environment_variable_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASL_WORKER_TOKEN", "by hand")
    assert read_attempt_token() == "by hand"
    monkeypatch.setenv(RAY_JOB_CONFIG, metadata(**{METADATA_KEY: "of Ray"}))
    assert read_attempt_token() == "by hand"


@pytest.mark.parametrize("config", [None, "{}", metadata(job_name="job_x-1")])
def test_missing_token_names_its_sources(
    monkeypatch: pytest.MonkeyPatch, config: str | None
) -> None:
    if config is not None:
        monkeypatch.setenv(RAY_JOB_CONFIG, config)
    with pytest.raises(ValueError, match=r"DASL_WORKER_TOKEN is not set, .* 'dasl_worker_token'"):
        read_attempt_token()


def test_ray_uses_the_same_variable_name() -> None:
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    assert RAY_JOB_CONFIG == RAY_JOB_CONFIG_JSON_ENV_VAR
