"""No process of an attempt logs the attempt's token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.observability import logs
from workers import ingest, run
from workers.loop import train_rank


class Configured(Exception):
    """The log is set up, with these secrets."""


def a_rank() -> None:
    # Its environment has no token: it gets it from the driver.
    train_rank({"job": "job_x", "attempt": 1, "token": "hush-hush"})


@pytest.mark.parametrize(
    ("begin", "command"),
    [
        (run.main, ["run", "--job", "job_x", "--attempt", "1"]),
        (ingest.main, ["ingest", "--dataset", "ds_x"]),
        (a_rank, None),
    ],
    ids=["driver", "ingest", "rank"],
)
def test_the_token_is_a_secret_of_the_log(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], object], command: list[str] | None
) -> None:
    def configure(style: str, *, secrets: list[str], **fields: object) -> None:
        raise Configured(*secrets)

    monkeypatch.setattr(logs, "configure", configure)
    monkeypatch.setenv("DASL_LOG_FORMAT", "json")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-ray")
    if command is not None:
        monkeypatch.setenv("DASL_API_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("DASL_WORKER_TOKEN", "hush-hush")
        monkeypatch.setattr("sys.argv", command)
    with pytest.raises(Configured) as configured:
        begin()
    assert configured.value.args == ("hush-hush", "of-ray")
