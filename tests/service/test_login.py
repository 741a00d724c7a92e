"""Login at an OpenID Connect provider, a real one on loopback, with honest and hostile answers."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from service.db.models import Login, User
from service.login import service
from service.server.app import create_app
from service.settings import Settings
from tests.support.api_under_test import Api, refused
from tests.support.oidc_provider import (
    CLIENT_ID,
    OTHER_KEY,
    PUBLIC_PEM,
    OidcProvider,
    oidc_provider,
)

# Loading the certificates of a client takes longer than a login.
BROWSER = httpx.Client(verify=False, trust_env=False)
REDIRECT = "http://127.0.0.1:45678/callback"


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with oidc_provider() as running:
        yield running


@pytest.fixture
def login_api(api: Api, provider: OidcProvider) -> Iterator[Api]:
    """An API with the provider, and with the tenant `default`."""
    api.settings.oidc_issuer, api.settings.oidc_client_id = provider.url, CLIENT_ID
    api.settings.auth_failures_per_minute = 1000
    with TestClient(create_app(api.settings, api.database)) as api.client:
        yield api


def start(api: Api) -> dict[str, str]:
    answer = api.client.post("/v1/login", json={"redirect_uri": REDIRECT})
    assert answer.status_code == 201, answer.text
    started: dict[str, str] = answer.json()
    return started


def browse(started: dict[str, str]) -> dict[str, str]:
    """Open the page as a browser does; return what it brings to the redirect URI."""
    answer = BROWSER.get(started["authorization_url"])
    assert answer.status_code == 302, answer.text
    location = answer.headers["location"]
    assert location.startswith(f"{REDIRECT}?")
    return {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}


def finish(api: Api, started: dict[str, str], **changes: str) -> Any:
    body = {"state": started["state"], "secret": started["secret"], **changes}
    return api.client.post("/v1/login/finish", json=body)


def log_in(api: Api) -> Any:
    started = start(api)
    return finish(api, started, code=browse(started)["code"])


def headers_of(answer: Any) -> dict[str, str]:
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def only_user(api: Api) -> User:
    with api.database.read() as session:
        return session.scalars(select(User)).one()


def test_login_gives_a_token_of_limited_life(login_api: Api, provider: OidcProvider) -> None:
    provider.claims = {"name": "Ada L.", "email": "ada@example.org", "email_verified": True}
    before = datetime.now(UTC)
    answer = log_in(login_api)
    headers, token = headers_of(answer), answer.json()
    assert (token["tenant"], token["scopes"]) == ("default", ["submit"])
    life = datetime.fromisoformat(token["expires_at"]) - before
    assert timedelta(hours=12) <= life <= timedelta(hours=12, minutes=1)
    assert login_api.client.get("/v1/jobs", headers=headers).status_code == 200
    user = only_user(login_api)
    assert (user.id, user.issuer, user.subject) == (token["user_id"], provider.url, "ada")
    assert (user.name, user.email, user.role) == ("Ada L.", "ada@example.org", "submit")
    assert user.last_login_at is not None
    admin = login_api.token("admin")
    [entry] = login_api.client.get("/v1/audit", headers=admin).json()["data"]
    assert (entry["path"], entry["token_id"]) == ("/v1/login/finish", token["id"])


def test_second_login_updates_the_same_user(login_api: Api, provider: OidcProvider) -> None:
    first = log_in(login_api).json()
    provider.claims = {"preferred_username": "ada", "email": "a@b.c", "email_verified": False}
    second = log_in(login_api).json()
    assert second["user_id"] == first["user_id"]
    user = only_user(login_api)
    assert (user.name, user.email) == ("ada", None), "an unverified address is not stored"
    # Without a role claim, administrators set the role.
    path = f"/v1/users/{user.id}"
    login_api.client.patch(path, json={"role": "read"}, headers=login_api.token("admin"))
    assert log_in(login_api).json()["scopes"] == ["read"]


@pytest.mark.parametrize(
    ("groups", "scopes"),
    [
        ("cn=admins,dc=lab", ["admin"]),
        (["others", "researchers", "cn=admins,dc=lab"], ["admin"]),
        (["researchers"], ["submit"]),
        (["operations"], ["operator"]),
        (["others"], None),
        ([1, None, {}], None),
        (None, None),
    ],
)
def test_role_claim_decides_the_scope(
    login_api: Api, provider: OidcProvider, groups: object, scopes: list[str] | None
) -> None:
    login_api.settings.oidc_role, login_api.settings.oidc_role_claim = "", "groups"
    login_api.settings.oidc_roles = Settings(
        oidc_role_claim="groups",
        oidc_roles="cn=admins,dc=lab=admin; researchers=submit;operations=operator",
    ).oidc_roles
    provider.claims = {"groups": groups}
    answer = log_in(login_api)
    if scopes is None:
        problem = refused(answer, 403, None, "login-refused")
        assert "DASL_OIDC_ROLES" in problem["detail"]
    else:
        assert answer.json()["scopes"] == scopes


@pytest.mark.parametrize("claim", [None, "", ["lab", "default"], {"name": "lab"}, 1, "nowhere"])
def test_tenant_claim_must_name_an_existing_tenant(
    login_api: Api, provider: OidcProvider, claim: object
) -> None:
    login_api.settings.oidc_tenant_claim = "team"
    login_api.token("read", tenant="lab")
    provider.claims = {"team": claim}
    refused(log_in(login_api), 403, None, "login-refused")
    provider.claims = {"team": "lab"}
    assert log_in(login_api).json()["tenant"] == "lab"


def test_disabled_user_and_disabled_tenant_are_refused(
    login_api: Api, provider: OidcProvider
) -> None:
    headers = headers_of(log_in(login_api))
    path = f"/v1/users/{only_user(login_api).id}"
    admin = login_api.token("admin")
    login_api.client.patch(path, json={"disabled": True}, headers=admin)
    refused(login_api.client.get("/v1/jobs", headers=headers), 401)
    problem = refused(log_in(login_api), 403, None, "login-refused")
    assert "this user is disabled" in problem["detail"]
    login_api.client.patch(path, json={"disabled": False}, headers=admin)
    operator = login_api.token("operator", tenant="operations")
    change = {"disabled": True}
    login_api.client.patch("/v1/tenants/default", json=change, headers=operator)
    problem = refused(log_in(login_api), 403, None, "login-refused")
    assert "the tenant 'default' is disabled" in problem["detail"]


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, "", "none")


def signed_with_public_key(claims: dict[str, Any]) -> str:
    """HS256 with the public key as the secret, which PyJWT itself refuses to make."""
    parts = [{"alg": "HS256", "typ": "JWT", "kid": "1"}, claims]
    body = b".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts
    )
    digest = hmac.new(PUBLIC_PEM, body, hashlib.sha256).digest()
    return (body + b"." + base64.urlsafe_b64encode(digest).rstrip(b"=")).decode()


def signed_with_other_key(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, OTHER_KEY, "RS256", headers={"kid": "1"})


def signed_with_unknown_key(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, OTHER_KEY, "RS256", headers={"kid": "2"})


@pytest.mark.parametrize(
    "sign",
    [
        unsigned,
        signed_with_public_key,
        signed_with_other_key,
        signed_with_unknown_key,
        lambda claims: "not.a.token",
        lambda claims: "",
        lambda claims: "\u00e9" * 100,
    ],
)
def test_forged_signature_is_refused(
    login_api: Api, provider: OidcProvider, sign: Callable[[dict[str, Any]], str]
) -> None:
    provider.sign = sign
    problem = refused(log_in(login_api), 401, None, "login-failed")
    assert "the ID token is not valid" in problem["detail"]
    with login_api.database.read() as session:
        assert session.scalar(select(func.count()).select_from(User)) == 0


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another"},
        {"aud": ["another"]},
        {"aud": [CLIENT_ID, "another"]},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"azp": "another"},
        {"iss": "https://elsewhere.example.org"},
        {"iss": "{url}/"},
        {"exp": None},
        {"exp": "soon"},
        {"nonce": "of another login"},
        {"nonce": None},
        {"nonce": 1},
        {"sub": None},
        {"aud": None},
        {"iss": None},
        {"iat": None},
    ],
    ids=lambda claims: str(claims)[:50],
)
def test_token_of_another_login_client_or_time_is_refused(
    login_api: Api, provider: OidcProvider, claims: dict[str, Any]
) -> None:
    provider.claims = {
        name: value.format(url=provider.url) if isinstance(value, str) else value
        for name, value in claims.items()
    }
    problem = refused(log_in(login_api), 401, None, "login-failed")
    assert "the ID token is not valid" in problem["detail"]


@pytest.mark.parametrize(
    ("shifts", "status"),
    [
        ({"exp": -120}, 401),
        ({"exp": -20}, 201),
        ({"iat": 3600}, 401),
        ({"iat": 20}, 201),
        ({"nbf": 3600}, 401),
    ],
)
def test_clocks_may_differ_by_less_than_a_minute(
    login_api: Api, provider: OidcProvider, shifts: dict[str, int], status: int
) -> None:
    provider.shifts = shifts
    assert log_in(login_api).status_code == status


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"sub": ""}, 403),
        ({"sub": "x" * 256}, 403),
        ({"sub": "a\0b"}, 403),
        ({"aud": [CLIENT_ID]}, 201),
        ({"aud": [CLIENT_ID, "another"], "azp": CLIENT_ID}, 201),
        ({"name": "x" * 1000}, 201),
        ({"name": "\0", "email": "y" * 400}, 201),
        ({"name": {"a": 1}, "email": ["a@b.c"]}, 201),
    ],
    ids=lambda value: str(value)[:50],
)
def test_unusual_claims_are_accepted_unless_the_subject_cannot_be_stored(
    login_api: Api, provider: OidcProvider, claims: dict[str, Any], status: int
) -> None:
    provider.claims = claims
    answer = log_in(login_api)
    assert (answer.status_code, answer.json().get("type")) == (
        status,
        "login-refused" if status == 403 else None,
    )


@pytest.mark.dialect
def test_state_and_nonce_are_used_once(login_api: Api) -> None:
    started = start(login_api)
    code = browse(started)["code"]
    assert finish(login_api, started, code=code).status_code == 201
    for again in (code, browse(started)["code"]):
        problem = refused(finish(login_api, started, code=again), 401, None, "login-failed")
        assert "was used before" in problem["detail"]


def test_code_of_another_login_is_refused(login_api: Api) -> None:
    """Its PKCE challenge is of another verifier."""
    mine, theirs = start(login_api), start(login_api)
    problem = refused(
        finish(login_api, mine, code=browse(theirs)["code"]), 401, None, "login-failed"
    )
    assert "the provider refuses the code (invalid_grant)" in problem["detail"]


def test_only_the_client_that_started_a_login_finishes_it(login_api: Api) -> None:
    started = start(login_api)
    brought = browse(started)
    assert brought["state"] == started["state"]
    for secret in ("x", start(login_api)["secret"]):
        refused(finish(login_api, started, code=brought["code"], secret=secret), 401)
    # One wrong secret ends the login.
    refused(finish(login_api, started, code=brought["code"]), 401, None, "login-failed")


def test_login_expires(login_api: Api) -> None:
    started = start(login_api)
    code = browse(started)["code"]
    with login_api.database.write() as session:
        session.scalars(select(Login)).one().expires_at = datetime.now(UTC)
    refused(finish(login_api, started, code=code), 401, None, "login-failed")
    start(login_api)
    with login_api.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Login)) == 1


@pytest.mark.parametrize(
    "uri",
    [
        "http://example.org:80/callback",
        "https://127.0.0.1:80/callback",
        "http://127.0.0.1:80/other",
        "http://127.0.0.1:80/callback?x=http://example.org",
        "http://127.0.0.1:80@example.org:80/callback",
        "http://127.0.0.1.example.org:80/callback",
        "http://localhost:80/callback",
        "http://0.0.0.0:80/callback",
        "http://[::2]:80/callback",
        "http://127.0.0.1/callback",
        "http://127.0.0.1:99999/callback",
        "http://127.0.0.1:80/callback\n",
        "",
    ],
)
def test_redirect_leads_to_loopback_only(login_api: Api, uri: str) -> None:
    answer = login_api.client.post("/v1/login", json={"redirect_uri": uri})
    refused(answer, 422, "redirect_uri")


def test_started_logins_are_limited_by_address(login_api: Api) -> None:
    login_api.settings.auth_failures_per_minute = 3
    with TestClient(create_app(login_api.settings, login_api.database)) as login_api.client:
        for _ in range(3):
            start(login_api)
        answer = login_api.client.post("/v1/login", json={"redirect_uri": REDIRECT})
        refused(answer, 429, None, "too-many-failures")
        assert int(answer.headers["retry-after"]) > 0


def test_metadata_and_keys_are_fetched_once(login_api: Api, provider: OidcProvider) -> None:
    for _ in range(3):
        assert log_in(login_api).status_code == 201
    assert provider.requests.count("GET /.well-known/openid-configuration") == 1
    assert provider.requests.count("GET /keys") == 1
    provider.sign = signed_with_unknown_key
    for _ in range(3):
        refused(log_in(login_api), 401)
    # Fetched within the last minute: tokens with unknown keys do not flood the provider.
    assert provider.requests.count("GET /keys") == 1


@pytest.mark.parametrize("methods", [None, ["client_secret_post"], ["client_secret_basic"]])
def test_confidential_client_sends_its_secret(
    api: Api, provider: OidcProvider, methods: list[str] | None
) -> None:
    provider.secret = "s3cret"
    if methods is not None:
        provider.metadata = {"token_endpoint_auth_methods_supported": methods}
    for secret, status in (("s3cret", 201), ("wrong", 401)):
        settings = Settings(
            home=api.settings.home,
            database_url=api.settings.database_url,
            oidc_issuer=provider.url,
            oidc_client_id=CLIENT_ID,
            oidc_client_secret=secret,
        )
        assert secret in settings.secrets
        api.token("read")
        with TestClient(create_app(settings, api.database)) as api.client:
            assert log_in(api).status_code == status


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://elsewhere.example.org"},
        {"token_endpoint": "http://169.254.169.254/latest"},
        {"jwks_uri": None},
        {"authorization_endpoint": "file:///etc/passwd"},
    ],
)
def test_wrong_metadata_are_not_used(
    login_api: Api, provider: OidcProvider, metadata: dict[str, Any]
) -> None:
    provider.metadata = metadata
    answer = login_api.client.post("/v1/login", json={"redirect_uri": REDIRECT})
    problem = refused(answer, 503, None, "login-provider-unavailable")
    assert problem["detail"].startswith("The login provider")
    assert answer.headers["retry-after"] == "10"


def test_unreachable_provider_is_a_temporary_error(api: Api) -> None:
    with oidc_provider() as gone:
        pass
    api.settings.oidc_issuer, api.settings.oidc_client_id = gone.url, CLIENT_ID
    with TestClient(create_app(api.settings, api.database)) as client:
        answer = client.post("/v1/login", json={"redirect_uri": REDIRECT})
        refused(answer, 503, None, "login-provider-unavailable")


def test_login_is_off_without_settings(api: Api) -> None:
    for path in ("/v1/login", "/v1/login/finish"):
        body = (
            {"redirect_uri": REDIRECT}
            if path == "/v1/login"
            else dict.fromkeys(("state", "secret", "code"), "x")
        )
        problem = refused(api.client.post(path, json=body), 404, None, "login-not-configured")
        assert "DASL_OIDC_ISSUER" in problem["detail"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"oidc_issuer": "http://example.org", "oidc_client_id": "x"}, "must be an https address"),
        ({"oidc_issuer": "example.org", "oidc_client_id": "x"}, "must be an https address"),
        ({"oidc_issuer": "https://example.org"}, "needs DASL_OIDC_CLIENT_ID"),
        ({"oidc_roles": "a=admin"}, "has no effect without DASL_OIDC_ROLE_CLAIM"),
        ({"oidc_roles": "a=root", "oidc_role_claim": "groups"}, "must be GROUP=ROLE"),
        ({"oidc_roles": "admin", "oidc_role_claim": "groups"}, "must be GROUP=ROLE"),
        ({"oidc_scopes": "email"}, "must contain 'openid'"),
        ({"oidc_token_hours": 0}, "greater than 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**settings)


def test_unfinished_logins_of_one_address_do_not_keep_others_out(
    login_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_MAX_PENDING_PER_ADDRESS", 2)
    first, _ = start(login_api), start(login_api)
    body = {"redirect_uri": REDIRECT}
    problem = refused(login_api.client.post("/v1/login", json=body), 429, None, "too-many-logins")
    assert "from this address" in problem["detail"]
    other = TestClient(login_api.client.app, client=("192.0.2.7", 1))
    assert other.post("/v1/login", json=body).status_code == 201
    assert finish(login_api, first, code=browse(first)["code"]).status_code == 201
    start(login_api)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_logins_are_counted_by_network(address: str, network: str) -> None:
    assert service.client_network(address) == network
