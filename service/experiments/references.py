"""Experiments by a reference that a person types: an id or its beginning, a name, or `last`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy.orm import Session

from dasl_core.spec.errors import NAME_PATTERN
from service import ids
from service.api.auth import Caller
from service.api.problems import not_found
from service.db.models import Experiment
from service.experiments import repository
from service.jobs.references import LAST, MOST_CANDIDATES, ambiguous


def find(session: Session, caller: Caller, reference: str) -> Experiment:
    """Return the experiment that a reference denotes.

    Args:
        reference: as of a job; `last` is the newest experiment with jobs that the caller's user or token has submitted.

    Raises:
        Problem: 404; 409, it fits several experiments, which the answer lists.
    """
    found = _fitting(session, caller, reference)
    if not found:
        raise not_found("experiment", reference)
    if len(found) > 1:
        candidates = [(each.id, each.name, f"{each.created_at:%Y-%m-%d %H:%M}") for each in found]
        raise ambiguous("experiment", reference, candidates)
    return found[0]


def _fitting(session: Session, caller: Caller, reference: str) -> Sequence[Experiment]:
    tenant, limit = caller.tenant, MOST_CANDIDATES + 1
    if ids.is_id("exp", reference):
        experiment = repository.get(session, tenant, reference)
        return [] if experiment is None else [experiment]
    if reference == LAST:
        return repository.newest_of_account(session, tenant, caller.account_id)
    # PostgreSQL refuses some texts, such as one with NUL, that are no names.
    is_name = re.fullmatch(NAME_PATTERN, reference) is not None
    if is_name and (named := repository.named(session, tenant, reference, limit)):
        return named
    ends = ids.ids_beginning_with("exp", reference)
    return [] if ends is None else repository.between(session, tenant, *ends, limit)
