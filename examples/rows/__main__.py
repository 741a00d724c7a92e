"""`python -m examples.rows NAME --data FOLDER --output OUT`: train a row, and print ours beside the published one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dasl_core.data.published import PUBLISHED, prepare
from dasl_core.standalone.inputs import DataOptions
from dasl_core.standalone.main import train
from examples.papers.compare import compare, measured
from examples.papers.row import TITLES
from examples.rows.table import PublishedRow, rows


def parts(row: PublishedRow, source: Path, target: Path) -> tuple[Path, Path]:
    """Return the folders to train and to evaluate on.

    Args:
        source: folders of classes in `train` and in `test` or `val`; for CIFAR also what `dasl prepare` takes, which
            is then written to `target`.

    Raises:
        ValueError: it is neither.
    """
    train_part, test_part = source / "train", source / row.test_part
    if train_part.is_dir() and test_part.is_dir():
        return train_part, test_part
    if row.dataset not in PUBLISHED:
        raise ValueError(
            f"{source} has no folders train and {row.test_part}; expected the unpacked archive's folder, such as "
            "imagenette2-160"
        )
    for part in prepare(row.dataset, source, target):
        if part.warning is not None:
            print(f"Warning: {part.warning}.", file=sys.stderr)
    return target / "train", target / row.test_part


def report(row: PublishedRow, run: Path, changes: Sequence[str]) -> str:
    """Write what the run measured beside the row."""
    lines = [
        f"{row.title}, on {TITLES[row.dataset]} ({row.source})",
        compare(row, measured(run)),
        *([f"Changed here: {', '.join(changes)}."] if changes else []),
        *([f"Differences: {row.note}"] if row.note else []),
    ]
    return "\n\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a row and print its table; return the exit code."""
    by_name = {row.name: row for row in rows()}
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m examples.rows")
    parser.add_argument(
        "name", choices=by_name, metavar="NAME", help=f"one of {', '.join(by_name)}"
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="see README.md")
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="OUT")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    options = parser.parse_args(arguments)
    row, run = by_name[options.name], options.output / "run"
    try:
        folders = parts(row, options.data, options.output / "data")
    except ValueError as error:
        parser.error(f"--data: {error}")
    data = DataOptions(data=str(folders[0]), evaluate_data=str(folders[1]))
    code = train(row.file, data, run, options.changes, resume=options.resume)
    if code == 0:
        print(report(row, run, options.changes))
    return code


if __name__ == "__main__":
    sys.exit(main())
