"""Check the types of the page's modules: `python -m tools.page_types`.

TypeScript knows the syntax of JSX, not that of htm's templates. It therefore checks copies of the modules in
`tools/page/build`, in which each template is written as JSX on the same lines, so that the properties of
components are checked, too. `api.d.ts` beside them has the types of the API, made from its OpenAPI document.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.server.app import create_app
from service.settings import Settings

PAGE = Path(__file__).parents[1] / "service" / "web"
TOOLS = Path(__file__).parent / "page"
BUILD = TOOLS / "build"

# What may stand before a regular expression; after anything else, a slash divides.
_BEFORE_PATTERN = "(,=:[!&|?{};>"
_SKIPPED = re.compile(r"//[^\n]*|/\*[\s\S]*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_PATTERN = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/\w*")
_MARKUP = re.compile(r"<//>|</[\w-]+\s*>|<(?=[\w$])|/>|>|\.\.\.\$\{|\$\{|`")


class _Reader:
    """Translates one module; `at` is the position in its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def code(self, end: str = "") -> str:
        """Translate JavaScript up to the brace that closes it, or all of it."""
        parts: list[str] = []
        depth = 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if match := _SKIPPED.match(self.text, self.at):
                parts.append(self._take(match[0]))
            elif character == "/" and self._begins_pattern(parts):
                match = _PATTERN.match(self.text, self.at)
                assert match, self.text[self.at : self.at + 60]
                parts.append(self._take(match[0]))
            elif self.text.startswith("html`", self.at):
                self.at += len("html`")
                parts.append(f"<>{self._template()}</>")
            elif character == "`":
                self.at += 1
                parts.append(f"`{self._string()}`")
            elif character == end and depth == 0:
                self.at += 1
                break
            else:
                depth += {"{": 1, "}": -1}.get(character, 0)
                parts.append(self._take(character))
        return "".join(parts)

    def _take(self, text: str) -> str:
        self.at += len(text)
        return text

    @staticmethod
    def _begins_pattern(parts: list[str]) -> bool:
        before = "".join(parts[-40:]).rstrip()
        return not before or before[-1] in _BEFORE_PATTERN or before.endswith("return")

    def _string(self) -> str:
        """Translate a template literal that is only a text, from after its first backtick."""
        parts: list[str] = []
        while (character := self.text[self.at]) != "`":
            if self.text.startswith("${", self.at):
                self.at += 2
                parts.append(f"${{{self.code('}')}}}")
            else:
                parts.append(
                    self._take(self.text[self.at : self.at + 2] if character == "\\" else character)
                )
        self.at += 1
        return "".join(parts)

    def _template(self) -> str:
        """Translate markup, from after its first backtick to its last."""
        parts: list[str] = []
        opened: list[str] = []
        inside = False  # a tag
        while True:
            match = _MARKUP.search(self.text, self.at)
            assert match, "a template does not end"
            parts.append(self.text[self.at : match.start()])
            self.at = match.end()
            token = match[0]
            if token == "`":
                assert not opened, f"{opened} are not closed"
                return "".join(parts)
            if token == "<//>" or token.startswith("</"):
                parts.append("</" + opened.pop() + "\n" * token.count("\n") + ">")
            elif token == "<":
                inside = True
                name = self.code("}") if self._starts("${") else self._take(self._name())
                opened.append(name)
                parts.append(f"<{name}")
            elif token in ("/>", ">"):
                if inside and token == "/>":
                    opened.pop()
                inside = False
                parts.append(token)
            else:
                spread = "..." if token.startswith("...") else ""
                parts.append(f"{{{spread}{self.code('}')}}}")

    def _starts(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def _name(self) -> str:
        match = re.compile(r"[\w-]+").match(self.text, self.at)
        assert match
        return match[0]


def as_jsx(module: str) -> str:
    """Return a module with JSX in place of its templates, line by line."""
    return _Reader(module).code()


class Declarations:
    """TypeScript types of an OpenAPI document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.schemas: dict[str, Any] = document["components"]["schemas"]
        self.paths: dict[str, Any] = document["paths"]
        self.requested: set[str] = set()
        """Schemas of requests, which may leave out what has a default; answers have it."""
        for operations in self.paths.values():
            for operation in operations.values():
                self._request(operation.get("requestBody"))

    def text(self) -> str:
        """Return the declarations of all schemas, and of each operation by method and path."""
        lines = ["declare namespace Api {"]
        for name, schema in self.schemas.items():
            lines.append(f"  type {name} = {self._type(schema, name not in self.requested)};")
        lines += ["  interface Operations {", *self._operations(), "  }", "}", ""]
        return "\n".join(lines)

    def _request(self, part: Any) -> None:
        if isinstance(part, list):
            for each in part:
                self._request(each)
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in self.requested:
                self.requested.add(name)
                self._request(self.schemas[name])
            for each in part.values():
                self._request(each)

    def _operations(self) -> Iterator[str]:
        for path, operations in self.paths.items():
            for method, operation in operations.items():
                parameters = operation.get("parameters", [])
                query = {
                    each["name"]: each["schema"] for each in parameters if each["in"] == "query"
                }
                fields = {"type": "object", "properties": query}
                answers = (
                    self._content(answer, answered=True)
                    for status, answer in operation["responses"].items()
                    if status.startswith("2")
                )
                yield (
                    f'    "{method.upper()} {re.sub(r"{[^}]*}", "{}", path)}": {{ '
                    f"query: {self._type(fields, False)}; "
                    f"body: {self._content(operation.get('requestBody', {}), answered=False)}; "
                    f"answer: {' | '.join(dict.fromkeys(answers))} }};"
                )

    def _content(self, message: dict[str, Any], *, answered: bool) -> str:
        content = message.get("content", {})
        if "application/json" in content:
            return self._type(content["application/json"]["schema"], answered)
        return "string" if "text/plain" in content else "unknown"

    def _type(self, schema: dict[str, Any], answered: bool) -> str:
        if "$ref" in schema:
            return str(schema["$ref"]).rpartition("/")[2]
        if "enum" in schema or "const" in schema:
            return " | ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
        if options := schema.get("anyOf", schema.get("oneOf")):
            return " | ".join(dict.fromkeys(self._type(option, answered) for option in options))
        match schema.get("type"):
            case "integer":
                return "number"
            case "string" | "number" | "boolean" | "null" as name:
                return str(name)
            case "array" if "prefixItems" in schema:
                items = (self._type(item, answered) for item in schema["prefixItems"])
                return f"[{', '.join(items)}]"
            case "array":
                return f"({self._type(schema.get('items', {}), answered)})[]"
            case "object" if "properties" in schema:
                required = set(schema.get("required", ()))
                fields = (
                    f"{name}{'' if name in required or (answered and 'default' in field) else '?'}: "
                    f"{self._type(field, answered)}"
                    for name, field in schema["properties"].items()
                )
                return f"{{ {'; '.join(fields)} }}"
            case "object":
                values = schema.get("additionalProperties", True)
                item = self._type(values, answered) if isinstance(values, dict) else "any"
                return f"Record<string, {item}>"
        return "any"


def main() -> int:
    """Write the copies and the types, and run the type checker on them."""
    compiler = TOOLS / "node_modules" / ".bin" / "tsc"
    if not compiler.exists():
        print("The type checker is not installed: run `make lint`, which needs Node.js and npm.")
        return 1
    shutil.rmtree(BUILD, ignore_errors=True)
    for path in sorted((PAGE / "js").rglob("*.js")):
        copy = BUILD / path.relative_to(PAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(as_jsx(path.read_text()))
    with tempfile.TemporaryDirectory() as home:
        document = create_app(Settings(home=Path(home))).openapi()
    (BUILD / "api.d.ts").write_text(Declarations(document).text())
    answer = subprocess.run(
        [compiler, "--project", TOOLS, "--pretty", "false"],
        cwd=BUILD,
        stdout=subprocess.PIPE,
        text=True,
    )
    print(re.sub(r"^js/", "service/web/js/", answer.stdout, flags=re.MULTILINE), end="")
    return answer.returncode


if __name__ == "__main__":
    sys.exit(main())
