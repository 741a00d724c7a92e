"""`track` of a spec: which servers, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from dasl_core.spec import JobSpec, MLflow, field_problems
from dasl_core.spec.track import host_problem
from tests.support.training_world import tiny_spec


def refusal(track: dict[str, Any]) -> tuple[str, str]:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate(tiny_spec(track=track))
    [problem] = field_problems(refused.value, JobSpec)
    return problem.field, str(problem)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("file:///data/mlruns", "must start with http:// or https://"),
        ("/data/mlruns", "must start with http:// or https://"),
        ("sqlite:////data/mlflow.db", "must start with http:// or https://"),
        ("databricks", "must start with http:// or https://"),
        ("http://", "is not the address of a server"),
        ("http://mlflow\n.example", "is not the address of a server"),
        ("http://mlflow:0", "is not the address of a server"),
        ("http://mlflow:99999", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://mlflow/?x=1", "has a query or a fragment"),
        ("http://mlflow/#x", "has a query or a fragment"),
    ],
)
def test_tracking_uri_must_be_the_address_of_a_server(uri: str, reason: str) -> None:
    field, message = refusal({"mlflow": {"tracking_uri": uri}})
    assert field == "track.mlflow.tracking_uri"
    assert reason in message


def test_credentials_in_the_spec_are_refused_and_not_shown() -> None:
    for uri in ("https://me:hunter2@mlflow", "file://me:hunter2@host/x", "https://hunter2@mlflow"):
        field, message = refusal({"mlflow": {"tracking_uri": uri}})
        assert field == "track.mlflow.tracking_uri"
        assert "credentials" in message
        assert "MLFLOW_TRACKING_*" in message
        assert "hunter2" not in message


@pytest.mark.parametrize(
    ("track", "field"),
    [
        ({"mlflow": {}}, "track.mlflow.tracking_uri"),
        ({"mlflow": {"tracking_uri": "http://a", "experiment": "a\nb"}}, "track.mlflow.experiment"),
        ({"wandb": {"mode": "online"}}, "track.wandb.mode"),
        ({"wandb": {"project": "a/b"}}, "track.wandb.project"),
        ({"wandb": {"api_key": "x"}}, "track.wandb.api_key"),
        ({"tensorboard": "sometimes"}, "track.tensorboard"),
        ({"comet": {}}, "track.comet"),
    ],
)
def test_wrong_settings_are_named(track: dict[str, Any], field: str) -> None:
    assert refusal(track)[0] == field


def test_allowed_hosts_are_compared_whole_and_with_their_port() -> None:
    server = MLflow(tracking_uri="https://MLflow.example.org/base/")
    assert server.tracking_uri == "https://MLflow.example.org/base"
    assert server.address == "mlflow.example.org:443"
    assert server.is_allowed(None)
    for allowed in ("mlflow.example.org", "MLFLOW.example.org:443"):
        assert server.is_allowed([allowed])
    for other in ("example.org", "mlflow.example.org:5000", "mlflow.example.org.evil.net"):
        assert not server.is_allowed([other])
    assert not server.is_allowed([])
    assert MLflow(tracking_uri="http://[::1]:5000").is_allowed(["[::1]:5000"])


@pytest.mark.parametrize("host", ["mlflow", "10.0.0.1:5000", "[::1]", "[::1]:80"])
def test_hosts_of_the_setting(host: str) -> None:
    assert host_problem(host) is None


@pytest.mark.parametrize(
    "host", ["", "http://mlflow", "a/b", "mlflow:", "mlflow:x", "a@b", "h:99999"]
)
def test_what_is_no_host_is_refused(host: str) -> None:
    assert host_problem(host) is not None
