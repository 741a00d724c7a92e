"""Limits on how long a client may take to send a request, and to read the answer."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0
"""Enough for any network. An unfinished request needs no token, and holds one of the process's file descriptors."""


READ_SECONDS = 60.0
"""How long a client may take to read nothing of an answer that waits for it."""


class TimedHeaders(H11Protocol):
    """uvicorn's protocol, which closes a connection whose client stops in the middle of a request or an answer.

    uvicorn itself waits for ever: a thousand such connections take all file descriptors of an ordinary process. It
    limits how long a connection stays open between two requests. Bodies have a limit while an endpoint reads them
    (`service.api.json_body`).
    """

    _overdue: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first header."""
        super().connection_made(transport)
        self._wait_for_header()

    def data_received(self, data: bytes) -> None:
        """Take bytes; what is left of an unfinished header is waited for."""
        super().data_received(data)
        if self._answered_early():
            self._wait_for_rest()
        elif self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._overdue is None and self.conn.trailing_data[0]:
            self._wait_for_header()

    def on_response_complete(self) -> None:
        """Wait for the rest of a request that was answered before its end, and for the client to read the answer."""
        super().on_response_complete()
        if self._answered_early():
            self._wait_for_rest()
        self._wait_for_reader()

    def pause_writing(self) -> None:
        """Wait for the client to read what was written."""
        super().pause_writing()
        self._wait_for_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _answered_early(self) -> bool:
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _wait_for_rest(self) -> None:
        if self._overdue is None:
            self._wait_for_header()

    def _wait_for_reader(self) -> None:
        if self._unread is None and (left := self.transport.get_write_buffer_size()):
            self._unread = self.loop.call_later(READ_SECONDS, self._check_reader, left)

    def _check_reader(self, before: int) -> None:
        self._unread = None
        if self.transport.get_write_buffer_size() < before:
            self._wait_for_reader()
        else:
            self.transport.abort()

    def _wait_for_header(self) -> None:
        self._overdue = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _close(self) -> None:
        self.transport.close()
