"""Checks of the configured server: reachable, compatible, authenticated and ready."""

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from dasl_core.installed import installed_version
from service.client.config import Connection, config_path, resolve_connection
from service.client.errors import ConfigError, where_from
from service.client.tls import tls_context
from service.doctor import Finding, State
from service.states import READY

_TIMEOUT_SECONDS = 10.0
_MAX_SKEW_SECONDS = 5.0
_REMEDIES = {
    # First, because a full disk makes the others fail as well.
    "storage": "Make room on that disk: remove checkpoints with `dasl delete`, or other files. Jobs then "
    "continue automatically",
    "database": "Check the database server and the API's DASL_DATABASE_URL",
    "dispatcher": "Start a dispatcher: `dasl serve`, or `python -m service.dispatcher`",
    "ray": "Ray takes up to a minute to start. After that, check its head (DASL_RAY_ADDRESS) and "
    "`logs/ray.log` in the home",
}


def run_checks() -> Iterator[Finding]:
    """Check address, version, clock, token, and the server's own readiness."""
    try:
        connection = resolve_connection()
    except ConfigError as error:
        yield Finding("server", "fail", str(error), f"Correct DASL_URL or {config_path()}")
        return
    headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
    trust_env = not connection.is_loopback
    with httpx.Client(
        base_url=connection.url,
        headers=headers,
        timeout=_TIMEOUT_SECONDS,
        trust_env=trust_env,
        verify=tls_context(connection.url, trust_env=trust_env),
    ) as http:
        try:
            yield from _check_server(http, connection)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            remedy = "Start a server with `dasl serve`, or set DASL_URL to another address"
            message = f"no server answers at {connection.url} ({reason})"
            yield Finding("server", "fail", message, remedy)


def _check_server(http: httpx.Client, connection: Connection) -> Iterator[Finding]:
    sent_at = time.time()
    live = http.get("/livez")
    received_at = time.time()
    health = _json(live)
    if not live.is_success or health.get("status") != "ok":
        message = f"the server at {connection.url} is not a DASL server ({live.status_code})"
        yield Finding("server", "fail", message, "Correct DASL_URL")
        return
    yield _version(connection.url, str(health.get("version", "unknown")))
    yield _clock(live, sent_at, received_at)
    yield _token(http, connection)
    yield from _readiness(http)
    if connection.token:
        yield _cluster(http)


def _version(url: str, theirs: str) -> Finding:
    ours = installed_version("dasl")
    if ours is None or theirs.split(".")[:2] == ours.split(".")[:2]:
        return Finding("server", "ok", f"{url}, version {theirs}")
    message = f"{url} has version {theirs}, but this client has version {ours}"
    return Finding("server", "warn", message, f"Install the server's version: dasl=={theirs}")


def _clock(live: httpx.Response, sent_at: float, received_at: float) -> Finding:
    try:
        theirs = parsedate_to_datetime(live.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return Finding("clock", "skip", "the server sends no Date header")
    # The header has whole seconds, and was written between request and response.
    skew = max(theirs - received_at, sent_at - (theirs + 1), 0.0)
    if skew <= _MAX_SKEW_SECONDS:
        return Finding(
            "clock", "ok", f"agrees with the server's clock to within {_MAX_SKEW_SECONDS:g} s"
        )
    remedy = "Set both clocks with NTP; otherwise times of jobs and logs do not match"
    return Finding("clock", "warn", f"differs from the server's clock by {skew:.0f} s", remedy)


def _token(http: httpx.Client, connection: Connection) -> Finding:
    remedy = (
        f"Set DASL_TOKEN, or `token` in {config_path()}. {where_from(not connection.is_loopback)}"
    )
    if not connection.token:
        return Finding("token", "fail", "no token is configured for this server", remedy)
    answer = http.get("/v1/tokens/current")
    token = _json(answer)
    if not answer.is_success:
        return Finding("token", "fail", str(token.get("detail") or answer.status_code), remedy)
    scopes = ", ".join(token.get("scopes", []))
    return Finding("token", "ok", f"{token.get('name')} ({token.get('id')}) with scope {scopes}")


def _readiness(http: httpx.Client) -> Iterator[Finding]:
    checks: dict[str, str] = _json(http.get("/readyz")).get("checks", {})
    for name, remedy_of in _REMEDIES.items():
        message = checks.get(name, "the server does not report it")
        state: State = "ok" if message in READY else "fail"
        remedy = "" if state == "ok" else remedy_of
        yield Finding(f"server's {name}", state, message, remedy)


def _cluster(http: httpx.Client) -> Finding:
    answer = http.get("/v1/cluster")
    cluster = _json(answer)
    if not answer.is_success:
        return Finding("cluster", "skip", str(cluster.get("detail") or answer.status_code))
    if cluster.get("rest"):
        return Finding("cluster", "ok", f"Ray is {cluster['rest']}; it runs while there is work")
    if not cluster.get("alive"):
        return Finding("cluster", "fail", "no Ray node is alive", _REMEDIES["ray"])
    allocated = [
        f"{cluster[f'allocated_{kind}']:g} of {cluster[f'total_{kind}']:g} "
        f"{kind[:3].upper()}s allocated to jobs"
        for kind in ("cpus", "gpus")
    ]
    nodes = len(cluster["nodes"])
    message = f"{nodes} node{'s' if nodes != 1 else ''}, {', '.join(allocated)}"
    return Finding("cluster", "ok", message)


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
