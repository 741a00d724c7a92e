"""The log of a driver, a rank or an ingest: what its standard error shows, people read."""

import logging


def log_to_stderr() -> None:
    """Log what is worth reading; a line for every heartbeat would drown it."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Ray has set up the root logger of a rank already.
    logging.getLogger("httpx").setLevel(logging.WARNING)
