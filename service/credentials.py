"""API tokens and their scopes. Only a hash is stored; for 256 random bits a plain hash is enough."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal

Scope = Literal["read", "submit", "admin"]


def new_token() -> tuple[str, str]:
    """Create a token; returns it and its hash. The token itself is shown once and never stored."""
    token = f"dasl_{secrets.token_urlsafe(32)}"
    return token, hash_token(token)


def hash_token(token: str) -> str:
    """Hash a token for storage."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def token_matches(token: str, stored_hash: str | None) -> bool:
    """Compare a token with a stored hash in constant time."""
    return stored_hash is not None and hmac.compare_digest(hash_token(token), stored_hash)
