"""Estimates of jobs, as the API returns them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from dasl_core.spec import Estimate


class Seconds(BaseModel):
    """Expected time of a job once it starts."""

    low: float
    high: float
    source: Literal["earlier_job", "computation"]
    """`earlier_job`: the speed of a similar job on the same number of CPUs and GPUs. `computation`: floating-point
    operations and the measured speed of cores; for CPUs only."""
    job_id: str | None = None
    """The earlier job."""
    images_per_second: float | None = None
    """Its speed."""


class JobEstimate(Estimate):
    """Estimated cost of a job."""

    seconds: Seconds | None
    """null: unknown."""
