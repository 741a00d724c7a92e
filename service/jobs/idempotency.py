"""Requests with an `Idempotency-Key`: a repeated one gets the first answer."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from service.api.problems import Problem
from service.jobs import repository

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$"),
]


def respond(
    kind: str, answer: dict[str, Any], repeated: bool, *, status: int = 201
) -> JSONResponse:
    """Respond to a submission. A stored answer is not validated, as an older version may have written it."""
    headers = {"Location": f"/v1/{kind}/{answer['id']}"}
    if repeated:
        headers["Idempotency-Replayed"] = "true"
    return JSONResponse(answer, status, headers)


@dataclass(frozen=True)
class Request:
    """A request that adds a resource, with or without a key.

    Attributes:
        body: the content that the key identifies.
        noun: the kind of resource, for messages.
        exists: whether the resource that an earlier request added still exists, by its id.
    """

    tenant: str
    key: str | None
    body: dict[str, Any]
    noun: str
    exists: Callable[[str], bool]

    @property
    def hash(self) -> str:
        """Hash of the body."""
        return hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).hexdigest()

    def replay(self, session: Session) -> dict[str, Any] | None:
        """Return the answer to an earlier request with this key, if any.

        Raises:
            Problem: 422, the key was used for another request; 410, the resource was deleted.
        """
        stored = None
        if self.key is not None:
            stored = repository.stored_answer(session, self.tenant, self.key)
        if stored is None:
            return None
        stored_hash, answer = stored
        if stored_hash != self.hash:
            raise Problem(
                422,
                "idempotency-key-reused",
                f"This Idempotency-Key was used for another {self.noun}; use a new key for a new {self.noun}",
            )
        if not self.exists(answer["id"]):
            detail = (
                f"This Idempotency-Key submitted {answer['id']}, which was deleted; use a new key for a new "
                f"{self.noun}"
            )
            raise Problem(410, f"{self.noun}-deleted", detail)
        return answer

    def store(
        self, session: Session, answer: dict[str, Any], at: datetime
    ) -> tuple[dict[str, Any], bool]:
        """Store the answer; return the stored answer, and whether it is a concurrent request's."""
        row = {
            "tenant": self.tenant,
            "key": self.key,
            "body_hash": self.hash,
            "answer": answer,
            "created_at": at,
        }
        if self.key is None or repository.store_answer(session, row):
            return answer, False
        # A concurrent request with the same key committed first: undo this one and return that answer.
        session.rollback()
        replay = self.replay(session)
        assert replay is not None, "the answer of the other request is committed"
        return replay, True
