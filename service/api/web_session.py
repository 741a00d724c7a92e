"""The cookie of the page's sessions, and the check that a request comes from the page.

A browser sends the cookie with every request to the service, from any page. A request that changes something must
therefore prove its origin: by a header that only the page knows (`X-CSRF-Token`), and by headers of the browser
(`Sec-Fetch-Site`, `Origin`). `SameSite=Strict` alone does not suffice, because all ports of a host are one site.
"""

import hashlib
import hmac
from urllib.parse import urlsplit

from fastapi import Request, Response

from service.api.problems import Problem

COOKIE = "dasl_session"
CSRF_HEADER = "X-CSRF-Token"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def csrf_token(cookie: str) -> str:
    """Return the CSRF token of a session, which is derived from its cookie and therefore not stored."""
    key = cookie.encode("utf-8", "surrogateescape")
    return hmac.new(key, b"csrf", hashlib.sha256).hexdigest()


def check_write(request: Request, cookie: str) -> None:
    """Check that a request that changes something comes from the session's page.

    Raises:
        Problem: 403, it comes from another origin or lacks the CSRF token.
    """
    if request.method in _SAFE_METHODS:
        return
    check_origin(request)
    sent = request.headers.get(CSRF_HEADER, "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(sent, csrf_token(cookie).encode()):
        raise Problem(
            403,
            "csrf-token",
            f"A request with the session cookie that changes something needs the header {CSRF_HEADER} "
            "with the `csrf` of GET /v1/session",
        )


def check_origin(request: Request) -> None:
    """Check that the request does not come from a page of another origin.

    Raises:
        Problem: 403.
    """
    # Browsers send `Sec-Fetch-Site` only over TLS and to loopback, and `none` if a person made the request.
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_same_origin = site in ("same-origin", "none")
    else:
        is_same_origin = origin is None or _host(origin) == request.headers.get("host")
    if not is_same_origin:
        raise Problem(
            403,
            "cross-origin",
            "The request comes from a page of another origin. A proxy in front of the service must keep the header Host",
        )


def set_cookie(request: Request, response: Response, cookie: str, seconds: float) -> None:
    """Set the session cookie, for some seconds; 0 removes it.

    Without a path, a browser takes that of `/v1`, below which everything lies that needs a session, as it sees it: a proxy
    may serve DASL below a path, and several of them on one host.
    """
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(seconds),
        path=None,
        # For a request through a trusted proxy, this is the scheme that the proxy reports.
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
