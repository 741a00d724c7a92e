"""Verification of ID tokens (OpenID Connect Core, section 3.1.3.7) with PyJWT, from the extra `oidc`."""

import hmac
from typing import Any

import jwt

from service.api.problems import Problem
from service.login.provider import Provider, login_failed

# Only asymmetric ones: with HS256, the public key would suffice to sign.
_ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
_REQUIRED = ["iss", "sub", "aud", "exp", "iat"]
_CLOCK_SKEW_SECONDS = 60


def verified_claims(token: str, nonce: str, provider: Provider) -> dict[str, Any]:
    """Return the claims of an ID token that the provider issued for this login.

    Raises:
        Problem: 401, with the reason; 503, the provider's keys cannot be fetched.
    """
    try:
        header = jwt.get_unverified_header(token)
        if header.get("alg") not in _ALGORITHMS:
            raise _invalid(f"it is signed with {header.get('alg')!r}")
        claims: dict[str, Any] = jwt.decode(
            token,
            _key(header.get("kid"), provider),
            algorithms=_ALGORITHMS,
            audience=provider.client_id,
            issuer=provider.issuer,
            leeway=_CLOCK_SKEW_SECONDS,
            options={"require": _REQUIRED},
        )
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise _invalid(str(error)) from error
    several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    # With several audiences, the authorized party is the one that the token was issued for.
    if claims.get("azp", None if several else provider.client_id) != provider.client_id:
        raise _invalid("it was issued for another client")
    received = claims.get("nonce")
    if not isinstance(received, str) or not hmac.compare_digest(received.encode(), nonce.encode()):
        raise _invalid("its nonce is not the one of this login")
    return claims


def _key(name: object, provider: Provider) -> jwt.PyJWK:
    for newer in (False, True):
        keys = [
            key
            for key in jwt.PyJWKSet.from_dict(provider.keys(newer=newer)).keys
            if key.public_key_use in (None, "sig") and key.key_type != "oct"
        ]
        named = [key for key in keys if key.key_id == name]
        if len(named) == 1:
            return named[0]
        if name is None and len(keys) == 1:
            return keys[0]
    raise _invalid("it is signed with an unknown key")


def _invalid(reason: str) -> Problem:
    return login_failed(f"the ID token is not valid, {reason}")
