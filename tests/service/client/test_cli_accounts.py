"""The commands for tenants, users and expiring tokens against the real API."""

import pytest

from service.client import ApiError, Client
from tests.support.api_server import Service
from tests.support.command_line import run, run_json


@pytest.fixture
def operator(service: Service, monkeypatch: pytest.MonkeyPatch) -> str:
    """An operator's token, which the command line uses."""
    monkeypatch.setenv("DASL_URL", service.url)
    monkeypatch.setenv("DASL_DATABASE_URL", service.settings.database_url)
    created = run_json("db", "admin-token", "ops", "--tenant", "operations", "--operator")
    assert created["scopes"] == ["operator"]
    monkeypatch.setenv("DASL_TOKEN", created["token"])
    return str(created["token"])


def test_tenant_commands(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ["--weight", "2", "--max-gpus", "8", "--max-priority", "-5", "--max-hours", "1.5"]
    created = run_json("tenants", "create", "lab", *limits)
    assert (created["weight"], created["max_gpus"], created["max_queued_jobs"]) == (2, 8, None)
    assert (created["max_priority"], created["max_hours"]) == (-5, 1.5)
    assert "lab" in run("tenants", "list").stdout
    shown = run("tenants", "show", "lab").stdout
    assert "at most 8" in shown
    changed = run_json("tenants", "set", "lab", "--max-gpus", "none", "--max-queued-jobs", "3")
    assert (changed["max_gpus"], changed["max_queued_jobs"], changed["weight"]) == (None, 3, 2)
    assert "is disabled" in run("tenants", "disable", "lab").stdout
    assert run_json("tenants", "show", "lab")["disabled_at"] is not None
    assert "is enabled" in run("tenants", "enable", "lab").stdout
    monkeypatch.setenv("DASL_TENANT", "lab")
    token = run_json("tokens", "create", "first")
    assert token["tenant"] == "lab"
    monkeypatch.delenv("DASL_TENANT")
    assert "1 valid token" in run("tenants", "rm", "lab", code=1).stderr
    with Client(tenant="lab") as client:
        client.tokens.revoke(token["id"])
    assert run_json("tenants", "rm", "lab") == {"deleted": "lab"}
    assert "dasl tenants list" in run("tenants", "show", "lab", code=1).stderr


def test_user_commands(operator: str, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = run_json("users", "create", "Ada", "--email", "ada@example.org", "--role", "admin")
    assert ada["role"] == "admin"
    assert "ada@example.org" in run("users", "list").stdout
    changed = run_json("users", "set", ada["id"], "--role", "read")
    assert (changed["role"], changed["name"]) == ("read", "Ada")
    token = run_json("tokens", "create", "laptop", "--scope", "read", "--user", ada["id"])
    assert token["user_id"] == ada["id"]
    assert "is disabled" in run("users", "disable", ada["id"]).stdout
    with Client(token=token["token"]) as client, pytest.raises(ApiError, match="is disabled"):
        list(client.jobs.list())
    assert "is enabled" in run("users", "enable", ada["id"]).stdout
    assert ada["id"] in run("users", "show", ada["id"]).stdout


def test_token_expiry_commands(operator: str) -> None:
    token = run_json("tokens", "create", "short", "--expires-in-days", "0.5")
    assert token["expires_at"] is not None
    changed = run("tokens", "set", token["id"], "--expires-in-days", "30").stdout
    assert "It expires on" in changed
    assert run_json("tokens", "set", token["id"], "--expires-in-days", "none")["expires_at"] is None
    problem = run("tokens", "set", token["id"], "--expires-in-days", "0", code=1).stderr
    assert "expires_in_days" in problem


def test_new_token_belongs_to_the_user_of_ones_own_token(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = run_json("users", "create", "Ada", "--role", "admin")["id"]
    options = ["--scope", "admin", "--user", ada, "--expires-in-days", "1"]
    hers = run_json("tokens", "create", "laptop", *options)
    monkeypatch.setenv("DASL_TOKEN", hers["token"])
    created = run_json("tokens", "create", "desktop")
    assert (created["user_id"], created["expires_at"]) == (ada, hers["expires_at"])
    assert "It expires on" in run("tokens", "create", "phone").stderr
    program = run_json("tokens", "create", "ci", "--user", "none", "--expires-in-days", "none")
    assert (program["user_id"], program["expires_at"]) == (None, None)
    with Client(token=hers["token"]) as client:
        assert client.tokens.create("ci", user_id=None).user_id is None
    usage = run_json("usage", "--by", "user")
    assert (usage["group_by"], usage["data"]) == ("user", [])


def test_token_of_another_tenant_is_not_found_with_the_tenant_that_was_searched(
    operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_json("tenants", "create", "lab")
    own = run_json("tokens", "create", "own")
    admin = run_json("tokens", "create", "admin", "--scope", "admin")["token"]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("DASL_TENANT", "lab")
        problem = run("tokens", "revoke", own["id"], code=1).stderr
        assert "of tenant lab (another one: DASL_TENANT); see: dasl tokens list" in problem
        other = run_json("tokens", "create", "other")["id"]
    monkeypatch.setenv("DASL_TOKEN", admin)
    problem = run("tokens", "revoke", other, code=1).stderr
    # Only operators can name another tenant.
    assert f"of tenant {own['tenant']}; see: dasl tokens list" in problem


def test_list_of_tokens_shows_whose_they_are(operator: str) -> None:
    ada = run_json("users", "create", "Ada")["id"]
    run_json("tokens", "create", "tablet", "--user", ada)
    header, *rows = run("tokens", "list").stdout.splitlines()
    assert header.split()[:4] == ["ID", "NAME", "USER", "SCOPES"]
    [hers] = [row for row in rows if "tablet" in row]
    assert hers.split()[2] == ada


def test_tenant_of_another_alphabet_reaches_the_server(operator: str, service: Service) -> None:
    run("db", "admin-token", "first", "--tenant", "工房 / 1")
    with Client(tenant="工房 / 1") as client:
        [token] = client.tokens.list()
        assert token.tenant == "工房 / 1"
        assert client.tenants.get("工房 / 1").name == token.tenant
    assert "工房 / 1" in run("tenants", "show", "工房 / 1").stdout
