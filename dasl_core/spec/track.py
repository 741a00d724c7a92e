"""Settings of trackers: TensorBoard, MLflow, Weights & Biases."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, StringConstraints

from dasl_core.spec.base import SpecModel, problem
from dasl_core.spec.errors import LINE_PATTERN, PROJECT_PATTERN

_PORTS = {"http": 80, "https": 443}
_PRINTABLE = re.compile(r"[!-~]+")
_EXPECTED_URI = "the address of an MLflow server, such as https://mlflow.example.org"


def _server(uri: str) -> str:
    """Check a server's address, and return it without a trailing slash."""
    if "@" in uri:  # not shown: it may be a password
        expected = "the address alone; workers read credentials from MLFLOW_TRACKING_* variables"
        raise problem(
            "contains credentials, which everyone who reads the spec sees", "***", expected
        )
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise problem("is not a URL", uri, _EXPECTED_URI) from None
    if parts.scheme not in _PORTS:
        raise problem("must start with http:// or https://", uri, _EXPECTED_URI)
    if not parts.hostname or port == 0 or not _PRINTABLE.fullmatch(uri):
        raise problem("is not the address of a server", uri, _EXPECTED_URI)
    if parts.query or parts.fragment:
        raise problem("has a query or a fragment", uri, _EXPECTED_URI)
    return uri.rstrip("/")


ServerUri = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_server)]
Line = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=LINE_PATTERN)]
Project = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=PROJECT_PATTERN)]


class MLflow(SpecModel):
    """A run on an MLflow server. Workers read credentials from MLFLOW_TRACKING_* variables."""

    tracking_uri: ServerUri
    """Address of the MLflow server, as workers reach it: `http://` or `https://`, without credentials."""
    experiment: Line = "dasl"
    """Name of the experiment, which is created if it does not exist."""
    run_name: Line | None = None
    """Name of the run. null: that of the job."""

    @property
    def address(self) -> str:
        """Host and port in lower case."""
        parts = urlsplit(self.tracking_uri)
        return _address(parts, _PORTS[parts.scheme])

    def is_allowed(self, hosts: Iterable[str] | None) -> bool:
        """Whether the server is one of these hosts, with or without a port; None allows any server."""
        if hosts is None:
            return True
        own = {self.address, self.address.rpartition(":")[0]}
        return any(host.lower() in own for host in hosts)


class WandB(SpecModel):
    """An offline run of Weights & Biases, to upload with `wandb sync`."""

    project: Project = "dasl"
    """Name of the project."""
    entity: Project | None = None
    """User or team. null: that of the account that uploads the run."""
    mode: Literal["offline"] = "offline"
    """Workers write the run to a file and contact no server."""


class Track(SpecModel):
    """Trackers that get the metrics of a run. They cannot fail a run; see docs/tracking.md."""

    tensorboard: bool = True
    """Whether to write event files of TensorBoard, which are artifacts of the job."""
    mlflow: MLflow | None = None
    """An MLflow server to log to. null: none."""
    wandb: WandB | None = None
    """Whether to write an offline run of Weights & Biases. null: no; {}: yes."""


def host_problem(host: str) -> str | None:
    """Describe why a text is not HOST or HOST:PORT; None if it is."""
    try:
        parts = urlsplit(f"//{host}")
        port = parts.port
    except ValueError:
        return "has an invalid port"
    if not parts.hostname or host.lower() not in {_address(parts, port), _address(parts, None)}:
        return "is not a host, with or without a port"
    return None


def _address(parts: SplitResult, default_port: int | None) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = parts.port or default_port
    return host if port is None else f"{host}:{port}"
