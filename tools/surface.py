"""Describe the public surface: REST paths, JSON fields, settings, CLI commands and flags, without prose.

`python -m tools.surface` writes `tests/fixtures/surface.json`. A test compares the code with that file,
so a change of the surface shows in the diff of the commit that makes it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from dasl_core.spec import JobSpec
from service.cli.app import app
from service.server.app import create_app
from service.settings import Settings

SURFACE = Path(__file__).parents[1] / "tests" / "fixtures" / "surface.json"
PROSE = ("description", "summary", "title", "examples", "example")


def surface() -> dict[str, Any]:
    """Return what clients of the API, users of the CLI and operators rely on."""
    with tempfile.TemporaryDirectory() as home:
        document = create_app(Settings(home=Path(home))).openapi()
    return {
        "openapi": without_prose(document),
        "job_spec": without_prose(JobSpec.model_json_schema()),
        "settings": sorted(Settings.model_fields),
        "cli": commands(typer.main.get_command(app)),
    }


def without_prose(schema: Any, *, names: bool = False) -> Any:
    """Drop titles and descriptions from a JSON Schema or an OpenAPI document.

    Args:
        names: the keys of `schema` are names of fields, which may be called `title`.
    """
    if isinstance(schema, list):
        items = [without_prose(item) for item in schema]
        # The order of parameters, and of the methods in a union, means nothing.
        if all(isinstance(item, dict) and ("in" in item or "$ref" in item) for item in items):
            items.sort(key=lambda item: [item.get(key, "") for key in ("in", "name", "$ref")])
        return items
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: without_prose(value, names=key == "properties" and not names)
        for key, value in sorted(schema.items())
        if names or key not in PROSE
    }


def commands(command: Any) -> dict[str, Any]:
    """Return the arguments and flags of a command, and its commands.

    Args:
        command: typer ships a copy of click, whose classes are private.
    """
    described: dict[str, Any] = {}
    for parameter in command.params:
        words = ["required"] if parameter.required else []
        words += ["repeated"] if parameter.multiple or parameter.nargs != 1 else []
        words += ["flag"] if getattr(parameter, "is_flag", False) else []
        names = " ".join([*parameter.opts, *parameter.secondary_opts])
        described[names] = ", ".join(words)
    for name, child in sorted(getattr(command, "commands", {}).items()):
        described[f"dasl {name}"] = commands(child)
    return described


def main() -> None:
    """Write the surface of the code as it is."""
    SURFACE.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
