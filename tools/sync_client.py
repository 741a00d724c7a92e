"""Write the modules of the synchronous client from those of the asynchronous one.

Only `service/client/aio` is edited by hand: `python -m tools.sync_client` writes each of its modules to
`service/client`, without `async`, `await` and the prefix `Async`. `models` and `threads` are written by hand in both.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "service" / "client"
BY_HAND = {"__init__", "models", "threads"}
HEADER = "# Written by tools.sync_client from aio/{name}; edit that file.\n"
RULES = (
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync(?=contextmanager\b)", ""),
    (r"_async_(?=context\b)", "_"),
    (r"\ba(?=closing\b|close\b|iter_bytes\b|next\b|read\b)", ""),
    (r"\b__a(?=enter__|exit__)", "__"),
    (r"\bservice\.client\.aio\b", "service.client"),
)


def synchronous(source: str) -> str:
    """Return the synchronous form of asynchronous code, not formatted."""
    for pattern, replacement in RULES:
        source = re.sub(pattern, replacement, source)
    return source


def generate() -> dict[Path, str]:
    """Return the text of each synchronous module by its path."""
    modules = {}
    for path in sorted((CLIENT / "aio").glob("*.py")):
        if path.stem not in BY_HAND:
            text = HEADER.format(name=path.name) + synchronous(path.read_text(encoding="utf-8"))
            target = CLIENT / path.name
            modules[target] = _formatted(text, target)
    return modules


def _formatted(text: str, path: Path) -> str:
    # Imports in order, and `yield from` for the loops that only an asynchronous generator needs.
    fix = ("check", "--select", "F401,I,UP028", "--fix", "--unsafe-fixes", "--quiet")
    for command in (fix, ("format",)):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        ended = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True)
        text = ended.stdout
    return text


def main() -> None:
    """Write the modules that differ."""
    for path, text in generate().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
