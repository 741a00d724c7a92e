"""Check of the artifact store before the service starts, which must start although the store hangs."""

import logging
import threading

from service.artifacts import free_space
from service.artifacts.storage import Storage

logger = logging.getLogger(__name__)


def check_store(uri: str, seconds: float = 10.0) -> None:
    """Check that the store can be written, and warn if it is nearly full or does not answer in time.

    The dispatcher repeats the check (`StoreCheck`), and starts nothing while the store does not answer.

    Raises:
        OSError, ValueError: the store cannot be written.
    """
    found: list[str | Exception | None] = []

    def check() -> None:
        try:
            Storage(uri).check_writable()
            found.append(free_space.shortage(free_space.ARTIFACTS, uri))
        except (OSError, ValueError) as error:
            found.append(error)

    # A thread that waits for a dead mount cannot be ended.
    thread = threading.Thread(target=check, name="first-store-check", daemon=True)
    thread.start()
    thread.join(seconds)
    problem = found[0] if found else f"the artifact store {uri} has not answered for {seconds:g} s"
    if isinstance(problem, Exception):
        raise problem
    if problem is not None:
        logger.warning("%s", problem[:1].upper() + problem[1:])
