"""The entry of the SDK."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from service.client.audit import Audit
from service.client.checkpoints import Checkpoints
from service.client.config import resolve_connection
from service.client.datasets import Datasets
from service.client.jobs import Jobs
from service.client.models import Cluster
from service.client.tokens import Tokens
from service.client.transport import Transport, path_to


class Client:
    """A DASL server, seen from Python.

    Address and token come from the arguments, else from DASL_URL and DASL_TOKEN, else from the file
    that `dasl serve` writes. Nothing is sent before the first call. `patience` is how many seconds
    repeatable calls wait for a server that is away.

        client = Client()
        job = client.jobs.submit("spec.yaml").wait()
        [checkpoint] = [c for c in client.jobs.checkpoints(job.id) if c.final]
        client.checkpoints.download(checkpoint.id, "backbone")

    Raises ConfigError for an address or token that cannot be one; calls raise ApiError (refused)
    and ConnectionFailed (no answer).
    """

    def __init__(
        self, url: str | None = None, token: str | None = None, *, patience: float = 5.0
    ) -> None:
        self._transport = Transport(resolve_connection(url, token), patience=patience)
        self.jobs = Jobs(self._transport)
        self.datasets = Datasets(self._transport)
        self.checkpoints = Checkpoints(self._transport)
        self.tokens = Tokens(self._transport)
        self.audit = Audit(self._transport)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    def cluster(self) -> Cluster:
        """Nodes, CPUs and GPUs, used and free."""
        return Cluster.model_validate(self._transport.json("GET", path_to("cluster")))

    def close(self) -> None:
        """Close the connections; also done by `with Client() as client:`."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
