"""Write the modules of the synchronous client from those of the asynchronous one.

`python -m tools.sync_client` writes each module of `service/client/aio` to `service/client/sync`, without `async`,
`await` and the prefix `Async`. Installing and building do the same (`hatch_build.py`), as do `make` and pytest after
a change; git ignores what is written. `threads` is written by hand in both.
"""

import re
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "service" / "client"
BY_HAND = {"__init__", "threads"}
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
    (r"\bservice\.client\.aio\b", "service.client.sync"),
)


def synchronous(source: str) -> str:
    """Return the synchronous form of asynchronous code."""
    for pattern, replacement in RULES:
        source = re.sub(pattern, replacement, source)
    return source


def generate() -> dict[Path, str]:
    """Return the text of each synchronous module by its path."""
    return {
        CLIENT / "sync" / path.name: HEADER.format(name=path.name)
        + synchronous(path.read_text(encoding="utf-8"))
        for path in sorted((CLIENT / "aio").glob("*.py"))
        if path.stem not in BY_HAND
    }


def main() -> None:
    """Write the modules that differ, and remove those whose source is gone."""
    modules = generate()
    for path in (CLIENT / "sync").glob("*.py"):
        if path not in modules and path.stem not in BY_HAND:
            path.unlink()
    for path, text in modules.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
