"""Validation errors name the field, the given value and what is expected."""

from typing import Any

import pytest

from tests.support.api_under_test import Api, refused

PAGE = "the `next` of the previous page"
LOCATION = "an absolute path, a file:// URI, or a URI of an object store such as s3://bucket/folder"
NAME = "a name without slashes, line breaks and other control characters"


@pytest.mark.parametrize(
    ("request_", "body", "error"),
    [
        ("POST /v1/datasets", {"name": "a\nb", "uri": "/x"}, ("name", "'a\\nb'", NAME)),
        ("POST /v1/datasets", {"name": "x", "uri": "pictures"}, ("uri", "'pictures'", LOCATION)),
        ("POST /v1/datasets", {"name": "x"}, ("uri", "", "")),
        ("POST /v1/datasets", {"name": "x", "uri": 5}, ("uri", "5", "a string in quotes")),
        (
            "POST /v1/tokens",
            {"name": "x", "scopes": ["write"]},
            ("scopes.0", "'write'", "'read', 'submit', 'admin' or 'operator'"),
        ),
        ("POST /v1/tokens", {"name": "x", "scopes": []}, ("scopes", "[]", "at least 1 entry")),
        ("PATCH /v1/jobs/{job}", {"priority": "high"}, ("priority", "'high'", "a whole number")),
        (
            "PATCH /v1/jobs/{job}",
            {"priority": 1e9},
            ("priority", "1000000000.0", "a number <= 1000"),
        ),
        ("GET /v1/jobs?limit=many", None, ("limit", "'many'", "a whole number")),
        ("GET /v1/jobs?limit=0", None, ("limit", "'0'", "a number >= 1")),
        ("GET /v1/jobs?after=zzz", None, ("after", "'zzz'", PAGE)),
        ("GET /v1/jobs?after=", None, ("after", "''", PAGE)),
        ("GET /v1/datasets?after=zzz", None, ("after", "'zzz'", PAGE)),
        ("GET /v1/tokens?after=%00", None, ("after", "'\\x00'", PAGE)),
    ],
)
def test_validation_error_names_field_given_and_expected(
    api: Api, request_: str, body: Any, error: tuple[str, str, str]
) -> None:
    api.dataset()
    method, path = request_.format(job=api.submit()["id"]).split(" ", 1)
    answer = api.client.request(method, path, json=body, headers=api.token("submit", "admin"))
    (reported,) = refused(answer, 422, error[0], "validation")["errors"]
    assert (reported["field"], reported["given"], reported["expected"]) == error


@pytest.mark.parametrize(
    ("method", "path", "key", "near"),
    [
        ("POST", "/v1/datasets", "nmae", "name"),
        ("POST", "/v1/tokens", "scope", "scopes"),
        ("PATCH", "/v1/jobs/{job}", "prority", "priority"),
        ("POST", "/v1/jobs", "trian", "train"),
    ],
)
def test_unknown_key_error_suggests_known_key(
    api: Api, method: str, path: str, key: str, near: str
) -> None:
    api.dataset()
    path = path.format(job=api.submit()["id"])
    answer = api.client.request(method, path, json={key: 1}, headers=api.token("submit", "admin"))
    errors = {error["field"]: error for error in refused(answer, 422, key)["errors"]}
    assert errors[key]["message"] == f"unknown key; did you mean {near!r}?"


def test_unknown_filter_value_error_suggests_known_values(api: Api) -> None:
    problem = refused(api.client.get("/v1/jobs?method=simlcr"), 422, "method")
    assert "did you mean 'simclr'?" in problem["detail"]
    assert "simclr" in problem["errors"][0]["expected"]
    problem = refused(api.client.get("/v1/jobs?status=done"), 422, "status.0")
    assert "'succeeded'" in problem["errors"][0]["expected"]
