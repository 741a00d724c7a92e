"""Dependencies that load the row whose id the request path has, if it belongs to the caller's tenant."""

from collections.abc import Callable
from typing import Any

from fastapi import Depends, Path
from sqlalchemy.orm import Session

from service.api.auth import Reader, Submitter
from service.api.transaction import InTransaction, ReadSession, WriteSession

Find = Callable[[Session, str, str], Any]
"""Returns a tenant's row, by the session, the tenant and the row's id; raises `Problem` 404 without one."""


def to_read(parameter: str, find: Find) -> Any:
    """Return the dependency of a parameter of the path, for callers who may read. Needs a `ReadSession`."""

    async def get(
        caller: Reader, session: ReadSession, row_id: str = Path(alias=parameter)
    ) -> InTransaction:
        return InTransaction(session, lambda: find(session, caller.tenant, row_id))

    return Depends(get)


def to_change(parameter: str, find: Find) -> Any:
    """Return the dependency of a parameter of the path, for callers who may submit. Needs a `WriteSession`."""

    async def get(
        caller: Submitter, session: WriteSession, row_id: str = Path(alias=parameter)
    ) -> InTransaction:
        return InTransaction(session, lambda: find(session, caller.tenant, row_id))

    return Depends(get)
