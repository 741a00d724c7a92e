"""Logging setup of drivers, ranks and ingest runs, as text or JSON."""

import logging
import os

from service import log_records

# These libraries log each written file, which does not help users.
_CHATTY = ("onnxscript", "onnx_ir")
_SECRETS = ("RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def log_to_stderr(token: str, **fields: object) -> None:
    """Configure logging to stderr. Ray puts `(RayTrainWorker pid=1) ` before each line of a rank.

    Args:
        token: the attempt's token; it must never appear in the log.
        fields: fields of each JSON object (one per line) with DASL_LOG_FORMAT=json. A text line has
            only the rank, because a log belongs to one attempt.
    """
    style: log_records.LogFormat = "json" if os.environ.get("DASL_LOG_FORMAT") == "json" else "text"
    if style == "text":
        fields = {name: value for name, value in fields.items() if name == "rank"}
    secrets = [token, *(os.environ[name] for name in _SECRETS if os.environ.get(name))]
    log_records.configure(style, secrets=secrets, **fields)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
