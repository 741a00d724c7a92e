"""The address that the API listens on, and the warning when it is not loopback."""

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from service.server.listener import bind_listener, warn_if_exposed
from service.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_warn_if_exposed_is_silent_on_loopback(
    host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_exposed(Settings(home=tmp_path, host=host))
    assert caplog.records == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "gpu-box.example"])
def test_warn_if_exposed_warns_beyond_loopback(
    host: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_exposed(Settings(home=tmp_path, host=host))
        assert "tokens travel unencrypted" in caplog.text
        assert "DASL_DATASET_ROOTS is not set" in caplog.text
        caplog.clear()
        warn_if_exposed(Settings(home=tmp_path, host=host, dataset_roots=(tmp_path,)))
    assert "tokens travel unencrypted" in caplog.text
    assert "DASL_DATASET_ROOTS" not in caplog.text


def test_default_host_is_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASL_HOST", raising=False)
    assert Settings(home=tmp_path).host == "127.0.0.1"


def test_listener_sets_tcp_nodelay(tmp_path: Path) -> None:
    """Headers and body are two writes: without TCP_NODELAY the second waits for an acknowledgement."""

    async def read_no_delay() -> int:
        accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

        class Acceptor(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(transport)

        with bind_listener(Settings(home=tmp_path, port=0)) as listener:
            port = listener.getsockname()[1]
            async with await asyncio.get_running_loop().create_server(Acceptor, sock=listener):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                transport = await accepted
                connection = transport.get_extra_info("socket")
                no_delay: int = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                writer.close()
                transport.close()
                return no_delay

    assert asyncio.run(read_no_delay()) != 0
