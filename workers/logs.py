"""The log of a driver, a rank or an ingest: what its standard error shows, people or programs read."""

import logging
import os

from service.observability import logs


def log_to_stderr(token: str, **fields: object) -> None:
    """Log what is worth reading; a line for every heartbeat would drown it.

    With DASL_LOG_FORMAT=json a line is a JSON object with `fields`. Ray puts `(RayTrainWorker pid=1) `
    before each line of a rank.

    Args:
        token: the attempt's; it must never appear.
        fields: go with every record.
    """
    if os.environ.get("DASL_LOG_FORMAT") == "json":
        logs.configure("json", secrets=[token, os.environ.get("RAY_AUTH_TOKEN", "")], **fields)
        return
    # Ray has set up the root logger of a rank already; people get it as they know it from Ray.
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
