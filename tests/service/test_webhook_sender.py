"""Requests to receivers of webhooks: which addresses they reach, signatures, and bounds of time and size."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from service.credentials import new_webhook_secret
from service.outbox.addresses import AddressGuard, Refused, is_public
from service.outbox.retries import MAX_ATTEMPTS, RETRY_PERIOD, Outcome, next_attempt, pause_after
from service.outbox.sender import Sender, signature
from tests.support.certificates import self_signed
from tests.support.webhook_receiver import Received, Reply, receiver

LOOPBACK = AddressGuard(["127.0.0.1"])
SENDER, SECRET = Sender(LOOPBACK), new_webhook_secret()
NOW = datetime(2026, 1, 2, tzinfo=UTC)

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "127.0.0.1", "127.255.255.254", "169.254.0.1"),
    *("172.16.0.1", "172.31.255.255", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1"),
    *("::ffff:169.254.169.254", "64:ff9b:1::1", "100::1", "2001:db8::1", "3fff::1", "fc00::1"),
    *("fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1"),
]
PRIVATE += ["100.64.0.1"]  # shared address space of carriers (CGNAT)
# Metadata of most clouds and of Alibaba Cloud, Azure, Oracle Cloud and AWS.
PRIVATE += ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"]
# IPv4-compatible; NAT64 of 127.0.0.1 and of 169.254.169.254; Teredo; 6to4 of 127.0.0.1.
PRIVATE += ["::7f00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001::1", "2002:7f00:1::"]
PUBLIC = ["1.1.1.1", "93.184.216.34", "100.63.0.1", "100.128.0.1", "172.32.0.1", "192.0.1.1"]
PUBLIC += ["2606:4700::1111", "2a00:1450:4001::1", "::ffff:1.1.1.1", "64:ff9b::101:101"]


def guard(*answers: Sequence[str], allowed: Sequence[str] = ()) -> AddressGuard:
    """Return a guard whose resolver gives these answers one after the other."""
    left = iter(answers)
    return AddressGuard(allowed, lambda host, port: next(left))


@pytest.mark.parametrize("address", PRIVATE)
def test_private_address_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="is not a public address"):
        guard([address]).addresses("hooks.example.org", 443)
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(Refused):
        AddressGuard(()).check_url(f"https://{host}/x")


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_reached(address: str) -> None:
    assert guard([address]).addresses("hooks.example.org", 443) == [address]
    host = f"[{address}]" if ":" in address else address
    AddressGuard(()).check_url(f"https://{host}/x")


@given(st.ip_addresses())
def test_no_private_or_special_address_is_public(address: IPv4Address | IPv6Address) -> None:
    if is_public(address):
        address = getattr(address, "ipv4_mapped", None) or address
        special = (address.is_private, address.is_multicast, address.is_loopback)
        assert special == (False, False, False)


def test_one_private_address_among_public_ones_is_refused() -> None:
    with pytest.raises(Refused):
        guard(["1.1.1.1", "10.0.0.1"]).addresses("hooks.example.org", 443)


def test_listed_names_and_networks_are_reached() -> None:
    listed = ["hooks.internal", "10.1.0.0/16", "fd00::/8", "::1"]
    assert guard(["192.168.0.1"], allowed=listed).addresses("Hooks.Internal", 80)
    assert guard(["10.1.2.3", "::ffff:10.1.2.3"], allowed=listed).addresses("other", 80)
    for address in ("10.2.0.1", "127.0.0.1", "fe80::1"):
        with pytest.raises(Refused):
            guard([address], allowed=listed).addresses("other", 80)
    for url in ("http://hooks.internal/x", "http://10.1.0.1/", "http://[::1]:81/", "https://a.b"):
        AddressGuard(listed).check_url(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.org/x", "uses http"),
        ("ftp://example.org/x", "is not an https URL"),
        ("file:///etc/passwd", "is not an https URL"),
        ("https:///x", "is not an https URL"),
        ("example.org", "is not an https URL"),
        ("https://user@example.org", "user name"),
        ("https://:pass@example.org", "user name"),
        ("https://example.org/#x", "fragment"),
        ("https://example.org:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://localhost/", "public"),
        ("https://exa mple.org/", "characters"),
        ("https://example.org\\@127.0.0.1/", "characters"),
        ("https://exämple.org/", "characters"),
        ("https://example.org/\r\nx: y", "characters"),
    ],
)
def test_malformed_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        AddressGuard(()).check_url(url)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "017700000001", "127.1"])
def test_other_spellings_of_loopback_are_refused_when_resolved(host: str) -> None:
    outcome = Sender(AddressGuard(())).send(f"https://{host}/", "msg_1", b"{}", [SECRET])
    assert outcome.status is None
    assert outcome.error is not None
    assert "is not a public address" in outcome.error


def test_message_is_signed_as_the_library_of_the_standard_does() -> None:
    expected = Webhook(SECRET).sign("msg_1", NOW, '{"a":1}')
    assert signature(SECRET, "msg_1", int(NOW.timestamp()), b'{"a":1}') == expected


def test_receiver_verifies_each_of_two_secrets() -> None:
    older = new_webhook_secret()
    with receiver() as hook:
        outcome = SENDER.send(hook.url, "msg_1", b'{"a":1}', [SECRET, older])
    assert (outcome.status, outcome.error) == (204, None)
    (request,) = hook.requests
    assert (request.path, request.headers["host"]) == ("/hook", f"127.0.0.1:{hook.port}")
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("dasl")
    for secret in (SECRET, older):
        assert request.verified(secret) == {"a": 1}
    request.body = b'{"a":2}'
    with pytest.raises(Exception, match="No matching signature"):
        request.verified(SECRET)


def test_name_is_resolved_once_and_its_checked_address_is_used() -> None:
    """DNS rebinding: a second answer of the name server, to another question, must not count."""
    allowed = ["hooks.test", "127.0.0.1"]
    with receiver() as hook:
        rebinding = guard(["127.0.0.1"], ["10.0.0.1"], allowed=allowed)
        url = f"http://hooks.test:{hook.port}/"
        assert Sender(rebinding).send(url, "msg_1", b"{}", [SECRET]).status == 204
    assert [each.headers["host"] for each in hook.requests] == [f"hooks.test:{hook.port}"]


def test_name_that_stands_for_a_private_address_later_is_refused_then() -> None:
    sender = Sender(guard(["127.0.0.1"], ["192.168.0.1"], allowed=["127.0.0.1"]))
    with receiver() as hook:
        # Nothing listens with TLS, so it connects and fails.
        url = f"https://hooks.test:{hook.port}/"
        first = sender.send(url, "msg_1", b"{}", [SECRET])
        second = sender.send(url, "msg_1", b"{}", [SECRET])
    assert "no connection" in str(first.error)
    assert "is not a public address" in str(second.error)
    assert "192.168" not in str(second.error)


def test_next_address_is_used_if_the_first_one_does_not_answer() -> None:
    with receiver() as hook:
        sender = Sender(guard(["::1", "127.0.0.1"], allowed=["hooks.test"]))
        url = f"http://hooks.test:{hook.port}/"
        assert sender.send(url, "msg_1", b"{}", [SECRET]).status == 204


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of `hooks.test`, with its key."""
    return self_signed(tmp_path_factory.mktemp("tls") / "hooks.pem", "hooks.test")


def test_tls_verifies_the_name_at_the_checked_address(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    answers = [["127.0.0.1"]] * 2
    with receiver(certificate=certificate) as hook:
        sender = Sender(guard(*answers, allowed=["127.0.0.1"]))
        ok = sender.send(f"https://hooks.test:{hook.port}/", "msg_1", b"{}", [SECRET])
        other = sender.send(f"https://other.test:{hook.port}/", "msg_1", b"{}", [SECRET])
        monkeypatch.delenv("SSL_CERT_FILE")
        untrusted = Sender(guard(["127.0.0.1"], allowed=["127.0.0.1"])).send(
            f"https://hooks.test:{hook.port}/", "msg_1", b"{}", [SECRET]
        )
    assert (ok.status, ok.error) == (204, None)
    for outcome in (other, untrusted):
        assert outcome.status is None
        assert "CERTIFICATE_VERIFY_FAILED" in str(outcome.error)
    assert len(hook.requests) == 1


def test_redirect_is_not_followed() -> None:
    with receiver() as target:
        redirect = Reply(307, (("Location", target.url),))
        with receiver(lambda _: redirect) as hook:
            outcome = SENDER.send(hook.url, "msg_1", b"{}", [SECRET])
    assert (outcome.status, target.requests) == (307, [])
    assert outcome.error == "the receiver answers 307; redirects are not followed"


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with receiver() as hook:
        assert SENDER.send(hook.url, "msg_1", b"{}", [SECRET]).status == 204


def test_large_answer_is_not_read_to_its_end() -> None:
    finished = threading.Event()

    def endless(_: Received) -> Reply:
        finished.set()
        return Reply(200, body=b"x" * 50_000_000)

    with receiver(endless) as hook:
        outcome = SENDER.send(hook.url, "msg_1", b"{}", [SECRET])
    assert (outcome.status, outcome.error, finished.is_set()) == (200, None, True)


@contextmanager
def raw_server(answer: bytes, pause: float) -> Iterator[str]:
    """A server that sends `answer` byte by byte, with a pause before each, then nothing."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for byte in answer:
                if stop.wait(pause):
                    return
                try:
                    connection.send(bytes([byte]))
                except OSError:
                    return
            stop.wait()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        stop.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000], ids=["nothing", "drops"]
)
def test_attempt_ends_at_its_time_limit_however_slowly_the_receiver_sends(answer: bytes) -> None:
    with raw_server(answer, pause=0.02) as url:
        outcome = Sender(LOOPBACK, seconds=0.3).send(url, "msg_1", b"{}", [SECRET])
    assert (outcome.status, outcome.error) == (None, "no answer within 0.3 s")
    assert 0.3 <= outcome.seconds < 5


@pytest.mark.parametrize("answer", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nx\r\n\r\n"])
def test_answer_that_is_not_http_is_an_error(answer: bytes) -> None:
    with raw_server(answer, pause=0) as url:
        outcome = SENDER.send(url, "msg_1", b"{}", [SECRET])
    assert outcome.status is None
    assert "no valid answer" in str(outcome.error)


def test_closed_port_and_unknown_name_are_errors() -> None:
    with receiver() as hook:
        url = hook.url
    assert "no connection" in str(SENDER.send(url, "msg_1", b"{}", [SECRET]).error)

    def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    outcome = Sender(AddressGuard((), unknown)).send("https://x.test/", "msg_1", b"{}", [SECRET])
    assert "Name or service not known" in str(outcome.error)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("120", 120), ("99999999999", 10**6), ("x", None), ("-1", None), ("", None)],
)
def test_retry_after_in_seconds(value: str, seconds: float | None) -> None:
    with receiver(lambda _: Reply(503, (("Retry-After", value),))) as hook:
        outcome = SENDER.send(hook.url, "msg_1", b"{}", [SECRET])
    assert outcome.retry_after == (None if seconds is None else timedelta(seconds=seconds))
    assert outcome.error == "the receiver answers 503"


def test_retry_after_as_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    with receiver(lambda _: Reply(429, (("Retry-After", later),))) as hook:
        outcome = SENDER.send(hook.url, "msg_1", b"{}", [SECRET])
    assert outcome.retry_after is not None
    assert timedelta(minutes=59) < outcome.retry_after <= timedelta(hours=1)


def test_pauses_grow_fourfold_up_to_six_hours() -> None:
    for attempts, seconds in ((1, 5), (2, 20), (3, 80), (7, 20480), (8, 21600), (100, 21600)):
        pauses = {pause_after(attempts).total_seconds() for _ in range(50)}
        assert all(0.75 * seconds <= pause <= 1.25 * seconds for pause in pauses)
        assert len(pauses) > 1
    assert pause_after(1, timedelta(hours=1)) == timedelta(hours=1)
    assert pause_after(1, timedelta(days=30)) == timedelta(days=1)


def test_message_is_given_up_after_its_period_its_attempts_or_410() -> None:
    failed, end = Outcome(500, "no"), NOW + RETRY_PERIOD
    assert next_attempt(1, failed, NOW, NOW) is not None
    assert next_attempt(1, Outcome(410, "gone"), NOW, NOW) is None
    assert next_attempt(MAX_ATTEMPTS, failed, NOW, NOW) is None
    assert next_attempt(8, failed, NOW, end - timedelta(hours=1)) is None
    assert next_attempt(8, failed, NOW, end - timedelta(hours=8)) is not None


def test_attempts_fit_into_the_period() -> None:
    """With the longest pauses, a receiver that is away for two days still gets its messages."""
    attempts, now = 0, NOW
    while (again := next_attempt(attempts + 1, Outcome(None, "away"), NOW, now)) is not None:
        attempts, now = attempts + 1, again
    assert now > NOW + timedelta(days=2)
    assert attempts < MAX_ATTEMPTS
