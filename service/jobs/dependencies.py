"""Dependencies that load the job of the request path, if it belongs to the caller's tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from service.api.auth import Reader, Submitter
from service.api.transaction import InTransaction, ReadSession, WriteSession
from service.db.models import Job
from service.jobs import service


async def _get(job_id: str, caller: Reader, session: ReadSession) -> InTransaction:
    return InTransaction(session, lambda: service.get(session, caller.tenant, job_id))


async def _get_to_change(job_id: str, caller: Submitter, session: WriteSession) -> InTransaction:
    return InTransaction(session, lambda: service.get(session, caller.tenant, job_id))


OwnJob = Annotated[Job, Depends(_get)]
"""The job of the path, if it belongs to the caller's tenant; otherwise 404. Needs a `ReadSession`."""
OwnJobToChange = Annotated[Job, Depends(_get_to_change)]
"""Like `OwnJob`, for callers who may submit. Needs a `WriteSession`."""
