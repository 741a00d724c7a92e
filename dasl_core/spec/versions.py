"""Versions of stored specs, and upgraders to the current version.

Specs are read long after they were written, from the database and from checkpoints. Stored specs are not
rewritten, but upgraded whenever they are read.

A change of the models that breaks stored specs (a field renamed, removed or narrowed, or one added to
`resources`) needs an upgrader in the same commit. So does a new field of a resolved spec whose
default would change what an old job computes when it is resumed.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dasl_core.spec.job import Resources
from dasl_core.spec.resolved import ResolvedJobSpec, StepSettings

Content = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

UPGRADERS: list[Callable[[Content], Content]] = []
"""Item n - 1 turns a spec of version n into one of version n + 1.

An upgrader is a pure function that returns a new dict. It gets resolved specs, the part of one in a training state,
and specs written by users, in which any field may be missing.
"""

_KEY = "spec_version"


class UnreadableSpec(ValueError):
    """Raised for a stored spec that this version of DASL cannot read."""


def current() -> int:
    return len(UPGRADERS) + 1


def upgrade(spec: Any, version: int) -> Content:
    """Upgrade a stored spec to the current version; an UnreadableSpec if it is newer, or the upgraders cannot."""
    if _check_version(version) > current():
        raise UnreadableSpec(
            f"the spec is of version {version}, and this DASL reads versions up to {current()}; "
            "upgrade the server, or for a checkpoint the DASL that reads it"
        )
    try:
        for upgrader in UPGRADERS[version - 1 :]:
            spec = upgrader(spec)
    # An upgrader gets any content, and one bad spec must not stop a reader of many.
    except Exception as error:
        raise UnreadableSpec(
            f"the spec of version {version} cannot be upgraded: {error!r}; submit the job again"
        ) from error
    if not isinstance(spec, dict):
        raise UnreadableSpec("the spec is not a mapping; submit the job again")
    return spec


def load(spec: Any, version: int) -> ResolvedJobSpec:
    """Read a stored resolved spec; an UnreadableSpec as in `upgrade`, or if a field is missing or invalid."""
    return _checked(ResolvedJobSpec, upgrade(spec, version), "spec")


def load_step_settings(state: Any, version: int) -> Content:
    """Read the settings in a training state; newer fields get their defaults.

    Other content of the state is unchanged.

    Raises:
        UnreadableSpec: as in `load`.
    """
    state = upgrade(state, version)
    stored = {name: value for name, value in state.items() if name in StepSettings.model_fields}
    return {**state, **_checked(StepSettings, stored, "spec").deciding()}


def load_resources(spec: Any, version: int) -> Resources:
    """Read only the resources of a stored resolved spec, which is 20 times faster than `load`.

    All of its fields must be stored, because the current defaults may differ from those at submission.

    Raises:
        UnreadableSpec: as in `upgrade`, or a field of the resources is missing or invalid.
    """
    resources = _checked(Resources, upgrade(spec, version).get("resources"), "spec.resources")
    missing = Resources.model_fields.keys() - resources.model_fields_set
    if missing:
        raise _unreadable(f"spec.resources.{min(missing)}")
    return resources


def version_entry() -> dict[str, int]:
    """Return the entry that records the version of a spec in a file."""
    return {_KEY: current()}


def read_version(content: Mapping[str, Any]) -> int:
    """Return the version of the spec in a file's content, by its `version_entry`; an UnreadableSpec without one."""
    return _check_version(content.get(_KEY))


def _check_version(version: object) -> int:
    if type(version) is not int or version < 1:
        raise UnreadableSpec(
            f"{_KEY}: {version!r} is not a version of specs; it must be an integer from 1 on"
        )
    return version


def _checked(model: type[Model], content: object, place: str) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _unreadable(".".join(map(str, (place, *error.errors()[0]["loc"])))) from error


def _unreadable(field: str) -> UnreadableSpec:
    return UnreadableSpec(
        f"the spec was written by another version of DASL, or changed later: this one cannot read {field}; "
        "use that version, or submit the job again"
    )
