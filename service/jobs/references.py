"""Jobs by a reference that a person types: an id or its beginning, a name, or `last`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Row
from sqlalchemy.orm import Session

from dasl_core.spec.errors import NAME_PATTERN
from service import ids
from service.api.auth import Caller
from service.api.problems import Problem, not_found
from service.db.models import Job
from service.jobs import repository
from service.jobs.schemas import JobView

LAST = "last"
# A reference that fits more jobs than these is answered with the newest of them.
MOST_CANDIDATES = 10


def view(session: Session, caller: Caller, reference: str) -> JobView:
    """Return the API's view of the job that a reference denotes.

    Args:
        reference: an id; `last`, the newest job that the caller's user or token has submitted; a name that one job
            has; or the beginning of one id, with or without `job_`.

    Raises:
        Problem: 404; 409, it fits several jobs, which the answer lists.
    """
    rows = _rows(session, caller, reference)
    if not rows:
        raise not_found("job", reference)
    if len(rows) > 1:
        raise ambiguous("job", reference, [(row[0].id, row[0].name, row[0].status) for row in rows])
    return JobView.of(rows[0][0], rows[0][1])


def _rows(session: Session, caller: Caller, reference: str) -> Sequence[Row[Job, str]]:
    tenant, limit = caller.tenant, MOST_CANDIDATES + 1
    if ids.is_id("job", reference):
        row = repository.get(session, tenant, reference)
        return [] if row is None else [row]
    if reference == LAST:
        return repository.newest_of_account(session, tenant, caller.account_id)
    # PostgreSQL refuses some texts, such as one with NUL, that are no names.
    is_name = re.fullmatch(NAME_PATTERN, reference) is not None
    if is_name and (named := repository.named(session, tenant, reference, limit)):
        return named
    ends = ids.ids_beginning_with("job", reference)
    return [] if ends is None else repository.between(session, tenant, *ends, limit)


def ambiguous(kind: str, reference: str, found: Sequence[tuple[str, ...]]) -> Problem:
    """Return the problem of a reference that fits several things: id, name and more of each, newest first."""
    shown = found[:MOST_CANDIDATES]
    number = str(len(shown)) if len(found) == len(shown) else f"more than {len(shown)}"
    listed = ", ".join(f"{each[0]} ({', '.join(each[1:])})" for each in shown)
    return Problem(
        409,
        "ambiguous",
        f"{reference!r} fits {number} {kind}s, newest first: {listed}. Use an id, or more of it",
        extra={f"{kind}s": [each[0] for each in shown]},
    )
