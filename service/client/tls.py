"""TLS contexts, shared within a process because reading the certificates of all authorities takes 30 ms of CPU."""

import os
import ssl
from functools import cache

import httpx


def tls_context(url: str, *, trust_env: bool = True) -> ssl.SSLContext:
    """Return the argument `verify` for httpx clients that only use one server.

    The context for an `http` address trusts no authority, so a request to an `https` address would fail.

    Args:
        trust_env: see `default_context`.
    """
    if url.lower().startswith("http:"):
        return _trusting_none()
    return default_context(trust_env=trust_env)


def default_context(*, trust_env: bool = True) -> ssl.SSLContext:
    """Return a context with the authorities of certifi, which httpx trusts by default.

    Args:
        trust_env: whether to use the authorities of SSL_CERT_FILE or SSL_CERT_DIR instead, if set.
    """
    if not trust_env:
        return _verifying(None, None)
    return _verifying(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _trusting_none() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@cache
def _verifying(file: str | None, folder: str | None) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=bool(file or folder))
