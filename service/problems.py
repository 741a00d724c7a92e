"""Errors as RFC 9457 problem documents (`application/problem+json`) with stable types."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from dasl_core.spec import FieldProblem, SpecError
from service.lifecycle import StaleAttempt

MEDIA_TYPE = "application/problem+json"
_logger = logging.getLogger(__name__)


class FieldError(BaseModel):
    """What is wrong with one field of the request."""

    field: str
    message: str
    given: str = ""
    expected: str = ""


class ProblemDocument(BaseModel):
    """The body of every error answer (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str = ""
    errors: list[FieldError] = []


PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "A problem document; `type` is stable, `errors` name the fields.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
}


class Problem(HTTPException):
    """An error that a client is told of.

    Args:
        status: the HTTP status.
        type: stable identifier of the kind of problem, e.g. `dataset-not-ready`.
        detail: a sentence on this occurrence.
        errors: the fields at fault, if fields are.
        headers: further headers of the answer.
        extra: further members of the document.
    """

    def __init__(
        self,
        status: int,
        type: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.type = type
        self.errors = list(errors)
        self.extra = extra or {}

    def response(self) -> JSONResponse:
        """The answer that tells of it."""
        document = {
            "type": self.type,
            "title": _title(self.type),
            "status": self.status_code,
            "detail": self.detail,
            "errors": [error.as_dict() for error in self.errors],
            **self.extra,
        }
        return JSONResponse(document, self.status_code, self.headers, media_type=MEDIA_TYPE)


def field_problem(
    field: str, message: str, given: object = "", expected: str = "", *, status: int = 422
) -> Problem:
    """A problem with one field of the request."""
    error = FieldProblem(field, message, _shorten(given), expected)
    return Problem(status, "validation", f"{field}: {message}", errors=[error])


def spec_problem(problems: Sequence[FieldProblem]) -> Problem:
    """A job's spec that cannot be accepted."""
    detail = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
    return Problem(422, "validation", detail, errors=problems)


def not_found(kind: str, name: str) -> Problem:
    """What was asked for does not exist, or belongs to another tenant: both look the same."""
    return Problem(404, "not-found", f"No {kind} {_shorten(name)}")


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document, those of the framework included."""
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(StaleAttempt, _on_stale_attempt)
    for kind in (OperationalError, PoolTimeout):
        app.add_exception_handler(kind, _on_database)
    app.add_exception_handler(Exception, _on_defect)


async def _on_http(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Problem):
        return error.response()
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    kind = status.phrase.lower().replace(" ", "-")
    headers = dict(error.headers or {})
    return Problem(status.value, kind, error.detail, headers=headers).response()


async def _on_validation(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems: list[FieldProblem] = []
    for detail in error.errors():
        cause = detail.get("ctx", {}).get("error")
        problems += cause.problems if isinstance(cause, SpecError) else [_translate(detail)]
    return spec_problem(problems).response()


async def _on_stale_attempt(_: Request, error: Exception) -> JSONResponse:
    return Problem(409, "stale-attempt", f"{error}; this process must exit").response()


async def _on_database(request: Request, error: Exception) -> JSONResponse:
    _logger.error("%s %s: %s", request.method, request.url.path, error)
    problem = Problem(
        503, "database-unavailable", "The database does not answer", headers={"Retry-After": "2"}
    )
    return problem.response()


async def _on_defect(_: Request, error: Exception) -> JSONResponse:
    # The framework raises it again after this answer, so that the server logs it.
    return Problem(500, "internal-error", "A defect of the service; it was logged").response()


def _translate(detail: dict[str, Any]) -> FieldProblem:
    where = [str(part) for part in detail["loc"]]
    kind, parts = where[0], where[1:]
    if detail["type"] == "json_invalid":
        return FieldProblem("body", f"is not JSON: {detail['ctx']['error']}", "", "a JSON object")
    field = ".".join(parts) or kind
    given = "" if detail["type"] == "missing" else _shorten(detail.get("input"))
    return FieldProblem(field, detail["msg"], given, "")


def _title(kind: str) -> str:
    return kind.replace("-", " ").capitalize()


def _shorten(value: object, limit: int = 80) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."
