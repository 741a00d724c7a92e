"""TLS contexts of the SDK are shared, and always verify."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.client import Client, ConnectionFailed
from service.client.tls import default_context, tls_context
from tests.support.certificates import self_signed
from tests.support.webhook_receiver import Receiver, receiver


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls") / "server.pem", "dasl.test", "127.0.0.1")


@pytest.fixture(scope="module")
def server(certificate: Path) -> Iterator[Receiver]:
    """An https server with a certificate that no authority signed."""
    with receiver(certificate=certificate) as running:
        yield running


def post(server: Receiver, address: str) -> int:
    """The status of a request to the https server, by a client for another address."""
    with httpx.Client(verify=tls_context(address)) as http:
        return http.post(f"https://127.0.0.1:{server.port}/", content=b"{}").status_code


def test_unknown_authority_is_refused(server: Receiver) -> None:
    with (
        Client(f"https://127.0.0.1:{server.port}", "dasl_x", patience=0) as client,
        pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.cluster()


@pytest.mark.parametrize("address", ["http://dasl.test", "HTTP://dasl.test", "https://dasl.test"])
def test_no_address_turns_verification_off(server: Receiver, address: str) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        post(server, address)


def test_authorities_of_the_environment_are_trusted_while_they_are_set(
    server: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert post(server, "https://dasl.test") == 204
    with (
        pytest.raises(httpx.ConnectError),
        httpx.Client(verify=default_context(trust_env=False)) as http,
    ):
        http.post(f"https://127.0.0.1:{server.port}/")
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(httpx.ConnectError):
        post(server, "https://dasl.test")


def test_clients_share_contexts() -> None:
    assert tls_context("https://a.test") is tls_context("https://b.test") is default_context()
    assert tls_context("http://a.test") is tls_context("http://b.test")
    assert tls_context("http://a.test").cert_store_stats()["x509_ca"] == 0
    assert tls_context("https://a.test").cert_store_stats()["x509_ca"] > 50
