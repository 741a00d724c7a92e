"""Groups of images that are held out together: patients, plates, sequences."""

import posixpath
import re
import time
from collections.abc import Iterator

from dasl_core.data.index import DatasetIndex
from dasl_core.spec.evaluate import SEARCHED_CHARACTERS, GroupRule

# Limit on the search in all paths; a million take some seconds with a usual pattern.
MOST_SECONDS = 120


def group_names(index: DatasetIndex, rule: GroupRule) -> list[str]:
    """Return each image's group, or a name that no other has; a ValueError if none has a group, or all the same."""
    names = list(_values(index, rule))
    missing = sum(name is None for name in names)
    if missing == len(names):
        raise ValueError(
            f"evaluate.holdout.group: {rule.describe()} gives none of the {len(names)} images a group, such as "
            f"{index.paths[0]}. Choose another rule, or evaluate.holdout.by: image."
        )
    # No path, column or match contains a null character.
    found = [
        "\0" + path if name is None else name for name, path in zip(names, index.paths, strict=True)
    ]
    if len({*found}) < 2:
        raise ValueError(
            f"evaluate.holdout.group: {rule.describe()} puts all {len(found)} images into one group, {found[0]!r}. "
            "Choose another rule, or evaluate.holdout.by: image."
        )
    return found


def _values(index: DatasetIndex, rule: GroupRule) -> Iterator[str | None]:
    if rule.column is not None:
        if index.groups is None or index.source.options.group_column != rule.column:
            raise ValueError(
                f"evaluate.holdout.group.column: the data set was registered without the column {rule.column!r}. "
                f"Register it with --group-column {rule.column} (source.group_column in the API)."
            )
        yield from (name or None for name in index.groups)
    elif rule.folder is not None:
        for path in index.paths:
            folders = posixpath.dirname(path).lstrip("/")
            yield "/".join(folders.split("/")[: rule.folder]) or None
    else:
        assert rule.pattern is not None, "a rule has one of the three"
        pattern, end = re.compile(rule.pattern), time.monotonic() + MOST_SECONDS
        for path in index.paths:
            match = pattern.search(path[:SEARCHED_CHARACTERS])
            yield match[1] or None if match else None
            if time.monotonic() > end:
                raise ValueError(
                    f"evaluate.holdout.group.pattern: {rule.pattern!r} takes more than {MOST_SECONDS} seconds for the "
                    f"{len(index)} paths. Use fewer repeats and alternatives."
                )
