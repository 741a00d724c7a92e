"""The wire format of server-sent events."""

import pytest

from service.client.models import ServerSentEvent
from service.client.sync.sse import parse

STREAM = (
    b": hello\r\n\r\n"
    b'id: 1\nevent: status\ndata: {"a":\ndata: 1}\n\n'
    b"data: \xc3\xa4\xe2\x80\xa8b\r\n\r\n"
    b"id: 3\rdata:tight\r\r"
    b"event: lost\n\n"
    b"data:\n\n"
    b": still here\n\n"
    b"id: 9\ndata: cut off"
)
EXPECTED = [
    ServerSentEvent("1", "status", '{"a":\n1}'),
    ServerSentEvent("1", "message", "ä\u2028b"),
    ServerSentEvent("3", "message", "tight"),
    ServerSentEvent("3", "message", ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_parse_does_not_depend_on_chunk_size(size: int) -> None:
    chunks = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert list(parse(chunks)) == EXPECTED
