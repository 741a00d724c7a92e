"""Ids of jobs as parameters of a list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator

from dasl_core.spec.base import problem
from service import ids


def _job_id(value: str) -> str:
    if not ids.is_id("job", value):
        raise problem("is not the id of a job", value, "an `id` of GET /v1/jobs")
    return value


JobId = Annotated[str, Query(max_length=40), AfterValidator(_job_id)]
