"""The OpenID Connect provider of the settings: its addresses and keys, and the exchange of a code.

Every address comes from the issuer, which is a setting, and never from a request.
"""

import base64
import hashlib
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx

from service.api.problems import Problem
from service.client.tls import default_context
from service.settings import Settings, is_secure

_TIMEOUT_SECONDS = 10.0
_METADATA_SECONDS = 3600.0
# An unknown key is looked up again at most this often.
_KEYS_SECONDS = 60.0


class ProviderUnavailable(Problem):
    """The provider does not answer, or violates OpenID Connect."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            503,
            "login-provider-unavailable",
            f"The login provider {detail}",
            headers={"Retry-After": "10"},
        )


@dataclass(frozen=True)
class Metadata:
    """Published metadata of a provider (OpenID Connect Discovery)."""

    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    secret_in_body: bool
    """Whether the token endpoint accepts the client's secret only in the body."""


class Provider:
    """A client of the provider, for all threads of the API."""

    def __init__(self, settings: Settings) -> None:
        self.issuer, self.client_id = settings.oidc_issuer, settings.oidc_client_id
        secret = settings.oidc_client_secret
        self._secret = None if secret is None else secret.get_secret_value()
        self._scopes = settings.oidc_scopes
        # A proxy from the environment cannot reach this machine's loopback.
        local = urlsplit(self.issuer).hostname in {"127.0.0.1", "::1"}
        self._http = httpx.Client(
            timeout=_TIMEOUT_SECONDS,
            trust_env=not local,
            verify=default_context(trust_env=not local),
        )
        self._lock = threading.Lock()
        self._metadata: tuple[float, Metadata] | None = None
        self._keys: tuple[float, dict[str, Any]] | None = None

    def authorization_url(
        self, *, redirect_uri: str, state: str, nonce: str, code_verifier: str
    ) -> str:
        """Return the page on which a person logs in.

        Raises:
            ProviderUnavailable: its address cannot be fetched.
        """
        endpoint = self.metadata().authorization_endpoint
        digest = hashlib.sha256(code_verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def redeem(self, code: str, *, redirect_uri: str, code_verifier: str) -> str:
        """Exchange a code for an ID token, which is not verified yet.

        Raises:
            Problem: 401, the provider refuses the code.
            ProviderUnavailable: it does not answer.
        """
        metadata = self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": code_verifier,
            "client_id": self.client_id,
        }
        headers: dict[str, str] = {}
        if self._secret is not None and metadata.secret_in_body:
            form["client_secret"] = self._secret
        elif self._secret is not None:
            pair = f"{quote(self.client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = self._request("POST", metadata.token_endpoint, data=form, headers=headers)
        document = _json(answer)
        if answer.status_code in (400, 401):
            raise login_failed(
                f"the provider refuses the code ({document.get('error', 'no reason')})"
            )
        id_token = document.get("id_token")
        if not answer.is_success or not isinstance(id_token, str):
            raise ProviderUnavailable(f"answers {answer.status_code} without an ID token")
        return id_token

    def metadata(self) -> Metadata:
        """Return the provider's published metadata, fetched once per hour.

        Raises:
            ProviderUnavailable: it cannot be fetched, or belongs to another issuer.
        """
        with self._lock:
            cached = self._metadata
        if cached is not None and time.monotonic() - cached[0] < _METADATA_SECONDS:
            return cached[1]
        address = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        document = self._document(address)
        if document.get("issuer") != self.issuer:
            raise ProviderUnavailable(
                f"is the issuer {document.get('issuer')!r}, and DASL_OIDC_ISSUER is {self.issuer!r}"
            )
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        for name in names:
            value = document.get(name)
            if not isinstance(value, str) or not is_secure(value):
                raise ProviderUnavailable(f"has no https address as {name}")
        methods = document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        in_body = "client_secret_basic" not in methods
        metadata = Metadata(
            document["authorization_endpoint"],
            document["token_endpoint"],
            document["jwks_uri"],
            secret_in_body=in_body,
        )
        with self._lock:
            self._metadata = (time.monotonic(), metadata)
        return metadata

    def keys(self, *, newer: bool = False) -> dict[str, Any]:
        """Return the provider's public keys, a JWK set.

        Args:
            newer: whether to fetch them again, unless that was done within the last minute.

        Raises:
            ProviderUnavailable: they cannot be fetched.
        """
        with self._lock:
            cached = self._keys
        longest = _KEYS_SECONDS if newer else _METADATA_SECONDS
        if cached is not None and time.monotonic() - cached[0] < longest:
            return cached[1]
        keys = self._document(self.metadata().jwks_uri)
        with self._lock:
            self._keys = (time.monotonic(), keys)
        return keys

    def close(self) -> None:
        self._http.close()

    def _document(self, address: str) -> dict[str, Any]:
        answer = self._request("GET", address)
        document = _json(answer)
        if not answer.is_success or not document:
            raise ProviderUnavailable(f"answers {answer.status_code} to {address}")
        return document

    def _request(self, method: str, address: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(
                method,
                address,
                headers={"Accept": "application/json"} | options.pop("headers", {}),
                **options,
            )
        except httpx.HTTPError as error:
            raise ProviderUnavailable(f"does not answer: {type(error).__name__}") from error


def login_failed(reason: str) -> Problem:
    """Build a 401 problem of a login."""
    return Problem(
        401,
        "login-failed",
        f"The login failed: {reason}. Start again (dasl login)",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
