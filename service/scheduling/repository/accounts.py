"""SQL of the quotas of a token and its tenant."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import Tenant, Token


def max_gpus(session: Session, tenant: str, token_id: str | None) -> int | None:
    """Return the number of GPUs that the quotas of a token and its tenant allow; `None` if unlimited."""
    of_token = select(Token.max_gpus).where(Token.id == token_id)
    of_tenant = select(Tenant.max_gpus).where(Tenant.name == tenant)
    quotas = [session.scalar(quota) for quota in (of_token, of_tenant)]
    return min((quota for quota in quotas if quota is not None), default=None)
