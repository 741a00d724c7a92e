"""Check that the API answers, in a separate loop: an address that does not answer must not delay the dispatcher."""

from __future__ import annotations

import logging
from functools import cached_property

from service.client import ApiError, ConnectionFailed
from service.client.config import Connection
from service.client.sync.transport import Transport

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0
# A single check may fail while the API is busy or restarted.
_FAILURES = 2


class ApiCheck:
    """Checks whether the API answers at the address that the workers use.

    Before its first answer it counts as answering: this dispatcher may not reach the address at all, or starts before
    the API.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._failures: int | None = None
        """Checks that failed since the last answer; `None` before the first one."""

    @cached_property
    def _transport(self) -> Transport:
        connection = Connection(self._url, token=None)
        return Transport(connection, patience=0.0, timeout=_TIMEOUT_SECONDS)

    @property
    def answers(self) -> bool:
        """Whether the API answered recently."""
        return self._failures is None or self._failures < _FAILURES

    def round(self) -> bool:
        """Check the API; return whether the database was used."""
        answered = self.answers
        try:
            # Do not keep the connection: it would break at a restart of the API.
            self._transport.json("GET", "/livez", headers={"Connection": "close"})
        except (ConnectionFailed, ApiError) as error:
            if self._failures is not None:
                self._failures += 1
            if answered and not self.answers:
                logger.warning(
                    "Nothing starts, because the API at %s (DASL_API_URL) does not answer: %s",
                    self._url,
                    error,
                )
        else:
            self._failures = 0
            if not answered:
                logger.info("The API answers")
        return False
