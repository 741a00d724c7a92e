"""Loading and writing of specs (YAML or JSON), and overrides of single fields (`--set a.b=value`)."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

# Limit on nesting, which could exhaust the parser's stack; a spec has a few levels.
MOST_LEVELS = 40
_TYPE_NAMES: dict[type, str] = {type(None): "nothing", list: "a list", str: "a string"}


class _Loader(yaml.SafeLoader):
    """YAML loader for plain data. It refuses duplicate keys, and aliases, which can expand to gigabytes.

    Numbers follow YAML 1.2: 010 is ten and 1:30 a string, where YAML 1.1 reads 8 and 90. So do dates: they are strings.
    """

    level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        problem = None
        if self.check_event(yaml.AliasEvent):
            problem = "aliases are not supported; write out the value"
        elif self.level == MOST_LEVELS:
            problem = f"nested more than {MOST_LEVELS} levels deep"
        if problem is not None:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, problem, mark)
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise ConstructorError(None, None, f"duplicate key {key}", key_node.start_mark)
            keys.add(key)
        return mapping

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_OF_1_1 = (_INT, _FLOAT, "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in _OF_1_1]
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


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes a string, such as 08 or 2024-01-31, if YAML 1.1 or 1.2 would read something else."""


_Dumper.yaml_implicit_resolvers = {
    first: [
        *yaml.SafeDumper.yaml_implicit_resolvers.get(first, ()),
        *_Loader.yaml_implicit_resolvers.get(first, ()),
    ]
    for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
}


def dump_yaml(content: Mapping[str, Any], **style: Any) -> str:
    """Write plain data as YAML that `load_spec` reads as it was; `style` as for PyYAML."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style)
    return text.rstrip()


def load_spec(path: Path) -> dict[str, Any]:
    """Load the mapping in a YAML or JSON file, without validating it.

    Raises:
        ValueError: the file cannot be read, is not YAML, is not a mapping, has a duplicate key or an
            alias, or is nested too deeply.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    try:
        content = _read(text)
    except ValueError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        content_type = _TYPE_NAMES.get(type(content), "a single value")
        raise ValueError(
            f"{path} must contain a mapping, such as `dataset: NAME`; it contains {content_type}"
        )
    return content


def apply_overrides(spec: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `spec` with each override `a.b=value` applied; values are parsed as YAML.

    Raises:
        ValueError: an override has no `=` or an invalid value, or its path leads through a plain value.
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
        section = result
        for parent in parents:
            if section.get(parent) is None:  # absent or null: the override creates the section
                section[parent] = {}
            section = section[parent]
            if not isinstance(section, dict):
                raise ValueError(f"--set {override}: {parent} is a plain value without fields")
        section[leaf] = value
    return result


def _read(text: str) -> Any:
    """Parse YAML of plain data; a ValueError that names line and column if it is invalid."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        # PyYAML's placeholder for a file name, which the caller's message contains.
        raise ValueError(str(error).replace('in "<unicode string>", ', "in ")) from error


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value
