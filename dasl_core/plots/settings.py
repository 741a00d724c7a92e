"""Settings of a run as table rows, and those with the value of "auto"."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dasl_core.spec import JobSpec, ResolvedJobSpec, resolve
from dasl_core.spec.resolve.facts import DatasetFacts


def flatten_settings(spec: ResolvedJobSpec) -> Iterator[tuple[str, str]]:
    """Yield each setting's name, such as `train.epochs`, and value."""
    for path, value in _leaves(spec.model_dump(mode="json"), ()):
        yield (
            ".".join(path),
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        )


def automatic_settings(spec: ResolvedJobSpec, facts: DatasetFacts) -> Iterator[str]:
    """Yield the settings with default "auto" whose value "auto" would choose given all others."""
    settings = spec.model_dump(mode="json")
    for path in _automatic(spec, ()):
        value = _at(settings, path)
        try:
            resolved = resolve(
                JobSpec.model_validate(_with(settings, path, "auto")), facts, from_checkpoint=True
            )
        except ValueError:  # "auto" cannot be resolved with the others
            continue
        if _at(resolved.model_dump(mode="json"), path) == value:
            yield ".".join(path)


def _automatic(part: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield from _automatic(value, (*path, name))
        elif any(
            name in base.model_fields and base.model_fields[name].default == "auto"
            for base in type(part).__mro__
            if issubclass(base, BaseModel)
        ):
            yield (*path, name)


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    else:
        yield path, value


def _at(settings: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings


def _with(settings: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a copy of nested settings with one change."""
    name, *rest = path
    return settings | {name: _with(settings[name], tuple(rest), value) if rest else value}
