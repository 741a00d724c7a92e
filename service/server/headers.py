"""A limit on how long a client may take to send the header of a request."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0
"""Enough for any network. An unfinished request needs no token, and holds one of the process's file descriptors."""


class TimedHeaders(H11Protocol):
    """uvicorn's protocol, which closes a connection whose header does not arrive in time.

    uvicorn itself waits for ever: a thousand unfinished requests take all file descriptors of an ordinary process. It
    limits how long a connection stays open between two requests.
    """

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first header."""
        super().connection_made(transport)
        self._wait_for_header()

    def data_received(self, data: bytes) -> None:
        """Take bytes; what is left of an unfinished header is waited for."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._overdue is None and self.conn.trailing_data[0]:
            self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_header(self) -> None:
        self._overdue = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _close(self) -> None:
        self.transport.close()
