"""Reading a spec from a file, and changing single fields of it from the command line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


def load_spec(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, not yet validated.

    Raises:
        ValueError: the file cannot be read, is not YAML, or holds something other than a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping of settings, not {type(content).__name__}")
    return content


def apply_overrides(spec: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of `spec` with each `a.b=value` applied; the value is read as YAML.

    Raises:
        ValueError: an override has no `=`, an unreadable value, or goes through a plain value.
    """
    result: dict[str, Any] = _copy(spec)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ValueError(f"--set {override}: expected field=value, such as train.epochs=10")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {override}: the value is not valid YAML: {error}") from error
        *parents, leaf = path.strip().split(".")
        place = result
        for parent in parents:
            if place.get(parent) is None:  # absent or null: the override makes the part
                place[parent] = {}
            place = place[parent]
            if not isinstance(place, dict):
                raise ValueError(f"--set {override}: {parent} has no fields of its own")
        place[leaf] = value
    return result


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value
