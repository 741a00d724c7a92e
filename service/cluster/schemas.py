"""Requests about drains."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dasl_core.spec.fields import NodeName


class DrainRequest(BaseModel):
    """Which node to drain, and how."""

    model_config = ConfigDict(extra="forbid")

    node: Annotated[
        NodeName | None, Field(description="Id, name or address; null: the whole cluster.")
    ] = None
    save: Annotated[
        bool,
        Field(
            description="Attempts with ranks there save a checkpoint, and their jobs are queued."
        ),
    ] = True
    reason: Annotated[str, Field(max_length=500)] = ""


class UndrainRequest(BaseModel):
    """Which drain to end."""

    model_config = ConfigDict(extra="forbid")

    node: Annotated[
        NodeName | None,
        Field(description="Id, name or address; null: the drain of the whole cluster."),
    ] = None
