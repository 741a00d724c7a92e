"""API tokens and their scopes, and the secrets of webhooks.

Only a hash of a token is stored; a plain hash suffices for 256 random bits.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Literal, get_args

Scope = Literal["read", "submit", "admin", "operator"]
"""Scopes of tokens; each scope includes the ones before it. `operator` is valid in all tenants."""

SCOPES: tuple[Scope, ...] = get_args(Scope)


def highest_scope(scopes: Iterable[str]) -> Scope | None:
    """Return the highest of the stored scopes; scopes of a newer version grant nothing."""
    return max((scope for scope in SCOPES if scope in set(scopes)), key=SCOPES.index, default=None)


def includes(held: Scope | None, needed: Scope) -> bool:
    """Whether one scope includes another one."""
    return held is not None and SCOPES.index(held) >= SCOPES.index(needed)


def new_token() -> tuple[str, str]:
    """Create a token; return it and its hash. The token is shown once and never stored."""
    token = f"dasl_{secrets.token_urlsafe(32)}"
    return token, hash_token(token)


def new_webhook_secret() -> str:
    """Create the secret of a webhook, in the format of Standard Webhooks. It is stored to sign messages."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def token_matches(token: str, stored_hash: str | None) -> bool:
    """Compare a token with a stored hash in constant time."""
    return stored_hash is not None and hmac.compare_digest(hash_token(token), stored_hash)
