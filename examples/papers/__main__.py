"""`python -m examples.papers`: write the specs of the papers and of examples/rows, and the tables of both README.md."""

import re
from collections.abc import Iterable
from pathlib import Path

from examples.papers import dar, sec
from examples.papers.row import SPECS, TITLES, Row
from examples.rows import table as published

PAGES = (SPECS.with_name("README.md"), published.SPECS.with_name("README.md"))
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def rows() -> list[Row]:
    """Return the rows of both papers."""
    return [*dar.rows(), *sec.rows()]


def files() -> dict[Path, str]:
    """Return the content of every generated file, by its path."""
    content = {row.file: row.text() for row in (*rows(), *published.rows())}
    tables = {
        "dar": table(dar.rows()),
        "not_built": not_built(),
        "sec": table(sec.rows()),
        "rows": table(published.rows()),
    }
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        content[page] = GENERATED.sub(lambda block: block[1] + tables[block[2]] + block[3], text)
    return content


def table(of_paper: Iterable[Row]) -> str:
    """Write a table of the specs of each data set, with the published figures."""
    lines, every = [], list(of_paper)
    for dataset in TITLES:
        of_dataset = [row for row in every if row.dataset == dataset]
        if not of_dataset:
            continue
        names = list(dict.fromkeys(name for row in of_dataset for name in row.published))
        header = [TITLES[dataset], *names]
        lines += ["", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        for row in of_dataset:
            title = row.title.partition(": ")[2]
            values = (row.published.get(name) for name in names)
            cells = ["" if value is None else f"{value:.2f}" for value in values]
            lines.append(f"| {' | '.join([f'[{title}](specs/{row.file.name})', *cells])} |")
    return "\n".join([*lines[1:], ""])


def not_built() -> str:
    """Write why methods of DAR's poster have no spec, and how many of its figures those are."""
    lines = ["| Method | Figures | Why |", "|---|---|---|"]
    for method, reason in dar.NOT_BUILT.items():
        number = sum(len(of) for line, of in dar.figures().items() if line.method == method)
        lines.append(f"| {method} | {number} | {reason} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the files, and remove specs that no row has."""
    written = files()
    for folder in (SPECS, published.SPECS):
        folder.mkdir(exist_ok=True)
        for path in set(folder.glob("*.yaml")) - written.keys():
            path.unlink()
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
