"""The log of a driver, a rank or an ingest: what people, or programs, read of what they do."""

import logging
import os

from service import log_records

# What they tell of each file that they write is nothing to whom a training belongs.
_CHATTY = ("onnxscript", "onnx_ir")


def log_to_stderr(token: str, **fields: object) -> None:
    """Log what is worth reading; a line for every heartbeat would drown it.

    Ray puts `(RayTrainWorker pid=1) ` before each line of a rank.

    Args:
        token: the attempt's; it must never appear.
        fields: with DASL_LOG_FORMAT=json a line is a JSON object with these. As text it has the rank
            alone: a log is of one attempt.
    """
    style: log_records.LogFormat = "json" if os.environ.get("DASL_LOG_FORMAT") == "json" else "text"
    if style == "text":
        fields = {name: value for name, value in fields.items() if name == "rank"}
    log_records.configure(style, secrets=[token, os.environ.get("RAY_AUTH_TOKEN", "")], **fields)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
