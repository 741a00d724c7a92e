"""No process of an attempt logs the attempt's token."""

import logging
import os
import re
from collections.abc import Callable

import pytest

from service import log_records
from workers import driver, ingest
from workers.logs import log_to_stderr
from workers.rank import train_rank


class Configured(Exception):
    """Signal that the log was set up, with the given secrets."""


def a_rank() -> None:
    # A rank gets the token from the driver, not from its environment.
    style = os.environ["DASL_LOG_FORMAT"]
    train_rank({"job": "job_x", "attempt": 1, "token": "hush-hush", "log_format": style})


@pytest.mark.parametrize(
    ("begin", "command"),
    [
        (driver.main, ["driver", "--run", "r", "--job", "job_x", "--attempt", "1"]),
        (ingest.main, ["ingest", "--run", "r", "--dataset", "ds_x"]),
        (a_rank, None),
    ],
    ids=["driver", "ingest", "rank"],
)
@pytest.mark.parametrize("style", ["json", "text"])
def test_log_masks_token(
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[], object],
    command: list[str] | None,
    style: str,
) -> None:
    def configure(style: str, *, secrets: list[str], **fields: object) -> None:
        raise Configured(*secrets)

    monkeypatch.setattr(log_records, "configure", configure)
    monkeypatch.setenv("DASL_LOG_FORMAT", style)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-ray")
    if command is not None:
        monkeypatch.setenv("DASL_API_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("DASL_WORKER_TOKEN", "hush-hush")
        monkeypatch.setattr("sys.argv", command)
    with pytest.raises(Configured) as configured:
        begin()
    assert configured.value.args == ("hush-hush", "of-ray")


def test_text_log_has_time_and_rank_and_masks_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DASL_LOG_FORMAT", raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        log_to_stderr("hush-hush", job="job_x", attempt=1, rank=3)
        logging.getLogger("workers.reporter").info("the token is %s", "hush-hush")
        logging.getLogger("onnx_ir.passes").info("Removed 3 unused nodes")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"[\d-]{10} [\d:,]{12} INFO the token is \*\*\* \[rank=3\]", line)
