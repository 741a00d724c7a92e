"""The forms of specs that the SDK accepts.

The classes of specs are imported on first use, because that takes long and most commands do not need them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from service.client.errors import InvalidSpec

if TYPE_CHECKING:
    from dasl_core.spec import JobSpec

Spec: TypeAlias = "JobSpec | Mapping[str, Any] | str | os.PathLike[str]"
"""A spec, an equivalent mapping, or the path of a YAML or JSON file."""


def spec_body(spec: Spec) -> dict[str, Any]:
    """Convert a spec to the body of a request.

    Raises:
        InvalidSpec: its file cannot be read.
    """
    from dasl_core.spec import JobSpec, load_spec

    if isinstance(spec, JobSpec):
        # Send only the fields that were set, so that the server chooses the defaults.
        body = spec.model_dump(mode="json", exclude_unset=True)
        if "method" in body:
            body["method"]["name"] = (
                spec.method.name
            )  # the server needs it to know the method's settings
        return body
    if isinstance(spec, Mapping):
        return dict(spec)
    try:
        return load_spec(Path(spec))
    except ValueError as error:
        raise InvalidSpec(str(error)) from error
