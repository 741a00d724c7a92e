"""Response model of the demo."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from service.wire.datasets import DatasetView


class DemoView(BaseModel):
    """The data set of the demo, and the spec of its job, which can be submitted once the data set is ready."""

    dataset: DatasetView
    spec: dict[str, Any]
