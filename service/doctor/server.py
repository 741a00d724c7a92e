"""The server that this machine speaks to: is it there, does it know us, can it work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from service.client.config import Connection, config_path, resolve_connection
from service.client.errors import ConfigError
from service.doctor.finding import Finding, State
from service.doctor.installation import version_of

_SECONDS = 10.0
_SKEW_SECONDS = 5.0
_REMEDIES = {
    "database": "Look at the database server and DASL_DATABASE_URL of the API",
    "dispatcher": "Start one: `dasl serve`, or `python -m service.dispatcher`",
    "ray": "Ray takes a minute to start; then look at its head, which DASL_RAY_ADDRESS names, and at "
    "`logs/ray.log` in the home",
}


def look() -> Iterator[Finding]:
    """Address, version, clock, token, and what the server says of itself."""
    try:
        connection = resolve_connection()
    except ConfigError as error:
        yield Finding("server", "fail", str(error), f"Correct DASL_URL or {config_path()}")
        return
    headers = {"Authorization": f"Bearer {connection.token}"} if connection.token else {}
    with httpx.Client(
        base_url=connection.url,
        headers=headers,
        timeout=_SECONDS,
        trust_env=not connection.is_loopback,
    ) as http:
        try:
            yield from _converse(http, connection)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            todo = "Start one with `dasl serve`, or name another one in DASL_URL"
            said = f"none answers at {connection.url} ({reason})"
            yield Finding("server", "fail", said, todo)


def _converse(http: httpx.Client, connection: Connection) -> Iterator[Finding]:
    asked = time.time()
    live = http.get("/livez")
    answered = time.time()
    said = _json(live)
    if not live.is_success or said.get("status") != "ok":
        what = f"what answers at {connection.url} is no DASL server ({live.status_code})"
        yield Finding("server", "fail", what, "Correct DASL_URL")
        return
    yield _version(connection.url, str(said.get("version", "unknown")))
    yield _clock(live, asked, answered)
    yield _token(http, connection)
    yield from _readiness(http)
    if connection.token:
        yield _cluster(http)


def _version(url: str, theirs: str) -> Finding:
    ours = version_of("dasl")
    if ours is None or theirs.split(".")[:2] == ours.split(".")[:2]:
        return Finding("server", "ok", f"{url}, version {theirs}")
    todo = f"Install the client of the server's version: dasl=={theirs}"
    return Finding("server", "warn", f"{url} has version {theirs}, and this is {ours}", todo)


def _clock(live: httpx.Response, asked: float, answered: float) -> Finding:
    try:
        theirs = parsedate_to_datetime(live.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return Finding("clock", "skip", "the server's answers have no date")
    # The header has whole seconds, and the answer took its time.
    ahead = max(theirs - answered, asked - (theirs + 1), 0.0)
    if ahead <= _SKEW_SECONDS:
        return Finding("clock", "ok", f"agrees with the server's to within {_SKEW_SECONDS:g} s")
    todo = "Let NTP set both clocks: times of jobs and logs will not fit together"
    return Finding("clock", "warn", f"differs from the server's by {ahead:.0f} s", todo)


def _token(http: httpx.Client, connection: Connection) -> Finding:
    todo = f"Set DASL_TOKEN, or `token` in {config_path()}; `dasl serve` prints one"
    if not connection.token:
        return Finding("token", "fail", "there is none for this server", todo)
    answer = http.get("/v1/tokens/current")
    said = _json(answer)
    if not answer.is_success:
        return Finding("token", "fail", str(said.get("detail") or answer.status_code), todo)
    scopes = ", ".join(said.get("scopes", []))
    return Finding("token", "ok", f"{said.get('name')} ({said.get('id')}) with scope {scopes}")


def _readiness(http: httpx.Client) -> Iterator[Finding]:
    checks: dict[str, str] = _json(http.get("/readyz")).get("checks", {})
    for name in ("database", "dispatcher", "ray"):
        told = checks.get(name, "the server does not say")
        state: State = "ok" if told == "ok" else "fail"
        remedy = "" if told == "ok" else _REMEDIES[name]
        yield Finding(f"server's {name}", state, told, remedy)


def _cluster(http: httpx.Client) -> Finding:
    answer = http.get("/v1/cluster")
    seen = _json(answer)
    if not answer.is_success:
        return Finding("cluster", "skip", str(seen.get("detail") or answer.status_code))
    if not seen.get("alive"):
        return Finding("cluster", "fail", "no node of Ray is alive", _REMEDIES["ray"])
    given = [
        # An older server does not tell what is given.
        f"{seen.get(f'allocated_{kind}', seen[f'used_{kind}']):g} of {seen[f'total_{kind}']:g} "
        f"{kind[:3].upper()}s given to jobs"
        for kind in ("cpus", "gpus")
    ]
    nodes = len(seen["nodes"])
    said = f"{nodes} node{'s' if nodes != 1 else ''}, {', '.join(given)}"
    return Finding("cluster", "ok", said)


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
