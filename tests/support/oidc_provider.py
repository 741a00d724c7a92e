"""An OpenID Connect provider on loopback, which signs real tokens and can be told to sign wrong ones."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CLIENT_ID = "dasl"
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_PEM = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(claims: dict[str, Any]) -> str:
    """Sign an ID token as the provider should."""
    return jwt.encode(claims, _KEY, "RS256", headers={"kid": "1"})


@dataclass
class OidcProvider:
    """A provider where everybody is logged in already.

    Attributes:
        claims: of the person, added to those of the protocol, which they may replace; None removes one.
        shifts: seconds by which times of the protocol are changed.
        sign: makes the ID token of its claims.
        metadata: replaces entries of the discovery document.
        denial: why the person is not logged in.
        secret: of the client, if it is a confidential one.
        requests: methods and paths of the requests.
    """

    url: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    shifts: dict[str, int] = field(default_factory=dict)
    sign: Callable[[dict[str, Any]], str] = sign
    metadata: dict[str, Any] = field(default_factory=dict)
    denial: str | None = None
    secret: str | None = None
    requests: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        } | self.metadata

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address to which the browser is sent."""
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT_ID
        assert "openid" in query["scope"].split()
        assert query["code_challenge_method"] == "S256"
        if self.denial is not None:
            error = {"error": "access_denied", "error_description": self.denial}
            return f"{query['redirect_uri']}?{urlencode(error | {'state': query['state']})}"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def redeem(self, form: dict[str, str], authorization: str | None) -> dict[str, Any]:
        """Return an ID token for a code, or an error."""
        query = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if query is None or query["redirect_uri"] != form.get("redirect_uri"):
            return {"error": "invalid_grant"}
        if query["code_challenge"] != challenge or form.get("client_id") != CLIENT_ID:
            return {"error": "invalid_grant"}
        if self.secret is not None:
            pair = base64.b64encode(f"{CLIENT_ID}:{self.secret}".encode()).decode()
            if authorization != f"Basic {pair}" and form.get("client_secret") != self.secret:
                return {"error": "invalid_client"}
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": "ada",
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": query["nonce"],
        } | self.claims
        for name, seconds in self.shifts.items():
            claims[name] = now + seconds
        known = {name: value for name, value in claims.items() if value is not None}
        return {"access_token": "unused", "token_type": "Bearer", "id_token": self.sign(known)}

    def keys(self) -> dict[str, Any]:
        key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(_KEY.public_key()))
        return {"keys": [key | {"kid": "1", "use": "sig", "alg": "RS256"}]}


@contextmanager
def oidc_provider() -> Iterator[OidcProvider]:
    """Run a provider."""
    provider = OidcProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            provider.requests.append(f"GET {address.path}")
            if address.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(address.query).items()}
                self.send_response(302)
                self.send_header("Location", provider.authorize(query))
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif address.path == "/keys":
                self._answer(200, provider.keys())
            elif address.path == "/.well-known/openid-configuration":
                self._answer(200, provider.discovery())
            else:
                self._answer(404, {})

        def do_POST(self) -> None:
            provider.requests.append(f"POST {self.path}")
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            answer = provider.redeem(form, self.headers.get("Authorization"))
            self._answer(400 if "error" in answer else 200, answer)

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
