"""Requests about logins."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from dasl_core.spec.base import StrictModel, problem

_LOOPBACK = re.compile(r"http://(127\.0\.0\.1|\[::1\]):([1-9][0-9]{0,4})/callback")


def _on_loopback(uri: str) -> str:
    match = _LOOPBACK.fullmatch(uri)
    if match is None or int(match[2]) > 65535:
        # With another address, the code of a login could reach another machine.
        expected = "http://127.0.0.1:PORT/callback or http://[::1]:PORT/callback"
        raise problem("is not an address of the client's own machine", uri, expected)
    return uri


Opaque = Annotated[str, Field(min_length=1, max_length=4096)]


class LoginRequest(StrictModel):
    """The start of a login; the browser sends its result to `redirect_uri`."""

    redirect_uri: Annotated[str, Field(max_length=200), AfterValidator(_on_loopback)]


class LoginResult(StrictModel):
    """The result of a login, with the `code` that the provider gave to the browser."""

    state: Opaque
    secret: Opaque
    code: Opaque
