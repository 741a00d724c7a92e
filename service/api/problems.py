"""Errors as RFC 9457 problem documents (`application/problem+json`) with stable types."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any, TypeVar, cast
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.routing import Match

from dasl_core.spec import FieldProblem, SpecError, field_problems
from dasl_core.spec.errors import translate
from dasl_core.spec.versions import UnreadableSpec
from dasl_core.text import cut
from service.artifacts import free_space
from service.db.session import AWAY, first_line, is_full, is_timeout
from service.object_store import StoreError
from service.states import StaleAttempt

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "X-Request-ID"
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the current request, which is also in its log records."""
logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)


class FieldError(BaseModel):
    """A problem with one field of the request."""

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
    request_id: str = ""


_DOCUMENT = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
UNAVAILABLE: dict[int | str, dict[str, Any]] = {
    503: {"description": "A dependency is unavailable; retry later.", "content": _DOCUMENT}
}
FULL: dict[int | str, dict[str, Any]] = {
    507: {"description": "The disk of the artifacts has no room.", "content": _DOCUMENT}
}
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "A problem document; `type` is stable, `errors` name the fields.",
        "content": _DOCUMENT,
    },
    **UNAVAILABLE,
}


class Problem(HTTPException):
    """An HTTP error that is answered with a problem document.

    Args:
        status: the HTTP status.
        type: stable identifier of the kind of problem, e.g. `dataset-not-ready`.
        detail: a sentence about this occurrence.
        errors: the invalid fields, if any.
        headers: additional headers of the response.
        extra: additional members of the document.
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
        """Build the response with the problem document."""
        document = {
            "type": self.type,
            "title": self.type.replace("-", " ").capitalize(),
            "status": self.status_code,
            "detail": self.detail,
            "errors": [error.as_dict() for error in self.errors],
            **self.extra,
        }
        headers = dict(self.headers or {})
        if (id := request_id.get()) is not None:
            document["request_id"] = headers[REQUEST_ID] = id
        return JSONResponse(document, self.status_code, headers, media_type=MEDIA_TYPE)


def field_problem(field: str, message: str, given: object = "", expected: str = "") -> Problem:
    """Build a problem with one field of the request."""
    error = FieldProblem(field, message, _quoted(given), expected)
    return Problem(422, "validation", f"{field}: {message}", errors=[error])


def spec_problem(problems: Sequence[FieldProblem]) -> Problem:
    """Build a 422 problem for an invalid job spec."""
    detail = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
    return Problem(422, "validation", detail, errors=problems)


def quota_exceeded(quota: str, limit: int, used: int, detail: str) -> Problem:
    """Build a 429 problem for a quota that is used up."""
    extra = {"quota": quota, "limit": limit, "used": used}
    return Problem(429, "quota-exceeded", detail, extra=extra)


def validated(document: dict[str, Any], model: type[Model]) -> Model:
    """Validate a document against a model that depends on the state of the service.

    Raises:
        Problem: 422.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise spec_problem(field_problems(error, model, whole="body")) from error


# Commands that list the objects of a kind.
_LISTED_BY = {
    "data set": "dasl datasets list",
    "experiment": "dasl experiments list",
    "job": "dasl jobs",
    "tenant": "dasl tenants list",
    "token": "dasl tokens list",
    "user": "dasl users list",
    "webhook": "dasl webhooks list",
}


def not_found(kind: str, name: str, where: str = "") -> Problem:
    """Build a 404 problem, the same for a missing object and for another tenant's.

    Args:
        where: where it was searched, as the end of a sentence.
    """
    remedy = f"; see: {_LISTED_BY[kind]}" if kind in _LISTED_BY else ""
    return Problem(404, "not-found", f"No {kind} {_quoted(name)}{where}{remedy}")


def install(app: FastAPI) -> None:
    """Answer every error of `app`, including the framework's, with a problem document."""
    for kind in (HTTPException, StaleAttempt, UnreadableSpec, *AWAY, StoreError, Exception):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    return _problem(request, error).response()


def _problem(request: Request, error: Exception) -> Problem:
    # Quote the path: a line break in it could forge a log record.
    where = f"{request.method} {quote(request.url.path)}"
    match error:
        case Problem():
            return error
        case HTTPException():
            kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
            headers = dict(error.headers or {})
            if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                headers["Allow"] = ", ".join(_methods(request))
            return Problem(error.status_code, kind, error.detail, headers=headers)
        case StaleAttempt():
            return Problem(409, "stale-attempt", f"{error}; this process must exit")
        case UnreadableSpec():
            detail = f"This server cannot read the job's spec: {error}"
            return Problem(409, "spec-unreadable", detail)
        case StoreError():
            logger.error("%s: %s", where, error)
            detail = (
                "The artifact store does not answer, or refuses the service; its log has the reason"
            )
            return _retry_later("store-unavailable", detail, seconds=2)
    if not isinstance(error, AWAY):
        # The framework raises the error again after this response, and the server logs it.
        return Problem(500, "internal-error", "An internal error of the service; it was logged")
    logger.error("%s: %s", where, first_line(error))
    if is_timeout(error):
        detail = "The database took longer than DASL_STATEMENT_SECONDS to read this. Request less, or retry later"
        return _retry_later("read-timeout", detail, seconds=10)
    if is_full(error):
        # Answer 503 instead of 507, because workers and clients repeat a request only after a 503.
        detail = f"Nothing can be stored: {free_space.full(free_space.DATABASE)}"
        return _retry_later("storage-full", detail, seconds=5)
    return _retry_later("database-unavailable", "The database does not answer", seconds=2)


def _methods(request: Request) -> Iterator[str]:
    """Yield the methods of a path; the framework names only those of the first route (RFC 9110, 15.5.6)."""
    for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            yield method


def _retry_later(kind: str, detail: str, *, seconds: int) -> Problem:
    return Problem(503, kind, detail, headers={"Retry-After": str(seconds)})


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems: list[FieldProblem] = []
    # The first element of `loc` names the part of the request: body, query, path or header.
    details: list[ErrorDetails] = []
    for detail in error.errors():
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, SpecError):
            problems += cause.problems
        elif detail["type"] == "json_invalid":
            message = f"is not JSON: {detail['ctx']['error']}"
            problems.append(FieldProblem("body", message, "", "a JSON object"))
        else:
            location = {"loc": detail["loc"][1:] or detail["loc"]}
            details.append(cast(ErrorDetails, {**detail, **location}))
    problems += translate(details, _body_model(request))
    return spec_problem(problems).response()


def _body_model(request: Request) -> type[BaseModel] | None:
    """Return the model of the request's body."""
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return cut(text.encode("utf-8", "replace").decode())
