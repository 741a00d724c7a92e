"""The body of a chunk, as its client sends it."""

import time
from collections.abc import AsyncIterator, Callable

import anyio
from starlette.requests import ClientDisconnect

from service.api.problems import Problem

# Large, because each block is passed from the event loop to a thread.
_BLOCK = 1 << 20
# A slower client would hold a connection and the upload's lock for more than an hour. This is half the rate of a line of
# 256 kbit/s, because chunks that arrive too slowly are not stored.
MIN_BYTES_PER_SECOND = 16 << 10
# Averaged over this time, as lines may stall for some seconds.
WINDOW_SECONDS = 30.0


class Body:
    """The body of a request, read block by block in the event loop.

    Only the time that this process waits for the client counts, not the time that it takes to store blocks.

    Args:
        stream: pieces of the body.
        clock: returns a monotonic time in seconds.
    """

    def __init__(
        self, stream: AsyncIterator[bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._clock = stream, clock
        self._ended = False
        self._waited, self._arrived = 0.0, 0  # in the current window

    async def read(self) -> bytes:
        """Return the next block; empty at the end.

        Raises:
            Problem: 400, the client has closed the connection; 408, it sends too slowly; 413, the body is too large.
        """
        block = bytearray()
        try:
            while not self._ended and len(block) < _BLOCK:
                block += await self._piece()
        except BaseException:
            self._ended = True
            raise
        return bytes(block)

    async def drain(self) -> None:
        """Read the rest of the body, up to the size limit."""
        try:
            while await self.read():
                pass
        except Problem:
            pass  # only the answer matters, if the client still waits for it

    async def _piece(self) -> bytes:
        began = self._clock()
        try:
            with anyio.fail_after(WINDOW_SECONDS):
                piece = await anext(self._stream, None)
        except ClientDisconnect:
            raise Problem(400, "bad-request", "The client closed the connection") from None
        except TimeoutError:
            raise _too_slow(f"Nothing of the body has arrived for {WINDOW_SECONDS:g} s") from None
        if piece is None:
            self._ended = True
            return b""
        self._waited += self._clock() - began
        self._arrived += len(piece)
        if self._waited >= WINDOW_SECONDS:
            rate = self._arrived / self._waited
            if rate < MIN_BYTES_PER_SECOND:
                least = f"at least {MIN_BYTES_PER_SECOND} are needed"
                raise _too_slow(f"The body arrives with {rate:.0f} bytes a second; {least}")
            self._waited, self._arrived = 0.0, 0
        return piece


def _too_slow(reason: str) -> Problem:
    detail = f"{reason}. Nothing of the chunk is stored; send it again, or a smaller one"
    return Problem(408, "request-timeout", detail, headers={"Connection": "close"})
