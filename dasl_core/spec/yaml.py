"""Reading a spec from a file, and changing single fields of it from the command line."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

# A spec is a few levels deep; far more would only be there to exhaust its reader.
MOST_LEVELS = 40
_HELD: dict[type, str] = {type(None): "nothing", list: "a list", str: "a string"}


class _Loader(yaml.SafeLoader):
    """Plain data: no aliases, which can stand for themselves or for gigabytes, and no key twice.

    Numbers follow YAML 1.2: 010 is ten and 1:30 a string, where YAML 1.1 reads 8 and 90.
    """

    level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        refused = None
        if self.check_event(yaml.AliasEvent):
            refused = "aliases, such as this one, are not read: write out what it stands for"
        elif self.level == MOST_LEVELS:
            refused = f"this is nested more than {MOST_LEVELS} levels deep"
        if refused is not None:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, refused, mark)
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
            seen.add(key)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in (_INT, _FLOAT)]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT, re.compile(r"^([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)


def load_spec(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file, not yet validated.

    Raises:
        ValueError: the file cannot be read, is not YAML, holds something other than a mapping, a key
            twice, an alias, or what is nested too deep.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    try:
        content = _read(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        held = _HELD.get(type(content), "one value")
        raise ValueError(
            f"{path} must hold a mapping of settings, such as `dataset: NAME`; it holds {held}"
        )
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
            value = _read(text)
        except ValueError as error:
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


def _read(text: str) -> Any:
    """Raises ValueError, with the place, where `text` is not YAML or not plain data."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:  # which is no ValueError
        # PyYAML's name for what is read from no file; the caller has a better one.
        raise ValueError(str(error).replace('in "<unicode string>", ', "in ")) from error


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value
