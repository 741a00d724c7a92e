"""Describe the public surface: REST operations, JSON fields, settings, CLI commands and flags, without prose.

`python -m tools.surface` writes `tests/fixtures/surface.txt`, a line for each of them. A test compares
the code with that file, so a change of the surface shows in the diff of the commit that makes it.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from service.cli.app import app
from service.server.app import create_app
from service.settings import Settings

SURFACE = Path(__file__).parents[1] / "tests" / "fixtures" / "surface.txt"
PROSE = ("description", "summary", "title", "examples", "example")


def surface() -> list[str]:
    """Return what clients of the API, users of the CLI and operators rely on, in sorted lines."""
    with tempfile.TemporaryDirectory() as home:
        document = create_app(Settings(home=Path(home))).openapi()
    settings = [f"setting {name}" for name in Settings.model_fields]
    command = typer.main.get_command(app)
    return sorted([*api(without_prose(document)), *commands("dasl", command), *settings])


def api(document: dict[str, Any]) -> Iterator[str]:
    """Describe operations with their parameters, and schemas (the spec's among them) with their fields."""
    paths, parts = document.pop("paths"), document.pop("components")
    schemas = parts.pop("schemas")
    yield f"api {short(document)} {short(parts)}"
    for path, operations in paths.items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            for parameter in operation.pop("parameters", []):
                place, key = parameter.pop("in"), parameter.pop("name")
                schema, required = parameter.pop("schema"), parameter.pop("required", False)
                yield f"{name} {place} {key}: {short(schema | parameter)}{' required' * required}"
            yield f"{name}: {short(operation)}"
    for name, schema in schemas.items():
        required = schema.pop("required", [])
        for field, of_field in schema.pop("properties", {}).items():
            yield f"{name}.{field}: {short(of_field)}{' required' * (field in required)}"
        yield f"{name}: {short(schema)}"


def short(value: Any) -> str:
    """Write a schema, or a part of a document, shorter than JSON, and with all that is in it."""
    if isinstance(value, list):
        return f"[{', '.join(map(nested, value))}]"
    if not isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    rest = dict(value)
    words = [rest.pop("$ref", "").rpartition("/")[2]]
    words.append(" | ".join(map(nested, rest.pop("anyOf", []))))
    if isinstance(rest.get("type"), str):
        words.append(rest.pop("type"))
    words += [f"{key}={nested(part)}" for key, part in rest.items()]
    return " ".join(filter(None, words))


def nested(value: Any) -> str:
    """Write a part of another value, in parentheses where it needs them."""
    text = short(value)
    return f"({text})" if isinstance(value, Mapping) and " " in text else text


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


def commands(name: str, command: Any) -> Iterator[str]:
    """Describe a command of typer's copy of click, whose classes are private: arguments, flags and commands."""
    yield name
    for parameter in command.params:
        words = ["required"] if parameter.required else []
        words += ["repeated"] if parameter.multiple or parameter.nargs != 1 else []
        words += ["flag"] if getattr(parameter, "is_flag", False) else []
        names = " ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"{name} {names}: {', '.join(words)}".rstrip(": ")
    for child_name, child in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {child_name}", child)


def main() -> None:
    """Write the surface of the code as it is."""
    SURFACE.write_text("\n".join(surface()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
