"""The page of a run: tables of its figures, the profiles, and what was cut."""

from collections.abc import Iterator
from typing import Any

_SPEEDS = (
    ("train", "DASL: training from the image cache, {form}"),
    ("lightly", "lightly: training from its transforms in a DataLoader"),
)
_STEPS = (
    ("step", "DASL: step on views on the device"),
    ("model alone", "model alone on views on the device"),
    ("step of lightly", "lightly: step on views on the device"),
)


def page(document: dict[str, Any]) -> str:
    """Return the page, in Markdown."""
    machine, result = document["machine"], document["result"]
    lines = [
        "# One GPU",
        "",
        f"{machine['device']}, {machine['cores']} cores, torch {machine['torch']}, Python {machine['python']}, "
        f"commit {machine['commit'] or 'unknown'}; {result['seconds']:.0f} seconds. `-`: not measured.",
        *(["", "**A test of the script with tiny networks: its figures mean nothing.**"] * result["tiny"]),
        "",
        *_table(("", "images/s", "of the model alone", "ms a step", "data wait", "peak memory"), _speeds(result)),
        "",
        *_table(("", "alone", "share of a step", "difference of steps with and without"), _shares(result)),
        "",
        *_table(("a batch", "views", "views made", "read from the cache", "copied"), _inputs(result)),
        "",
        "Images: " + ", ".join(f"{name} {_number(value)}" for name, value in result["images"].items()),
        "",
        "## Cut, skipped or failed",
        "",
        *([f"* {line}" for line in result["cut"]] or ["Nothing."]),
    ]  # fmt: skip
    for scenario, parts in result["scenarios"].items():
        profile = parts.get("profile", {})
        if "table" in profile:
            title = f"## Profile of a step: {scenario}, {profile['step_ms']:.1f} ms"
            lines += ["", title, "", "```", profile["table"].rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _speeds(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for scenario, parts in result["scenarios"].items():
        rows = [(text, parts.get(part, {})) for part, text in _SPEEDS]
        rows += [(text, parts.get("steps", {}).get(name, {})) for name, text in _STEPS]
        alone = parts.get("steps", {}).get("model alone", {}).get("images_per_second")
        for text, row in rows:
            speed = row.get("images_per_second")
            yield (
                f"{scenario}: {text.format(form=row.get('form', '-'))}",
                _number(speed),
                _share(speed / alone if speed and alone else None),
                _number(row.get("step_ms")),
                _share(row.get("data_wait_share")),
                _number(row.get("peak_bytes"), " GiB", 1 << 30),
            )


def _shares(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for scenario, parts in result["scenarios"].items():
        for name in ("DAR", "SEC"):
            row = parts.get("steps", {}).get(name, {})
            yield (
                f"{scenario}: {name}",
                _number(row.get("alone_ms"), " ms"),
                _share(row.get("share_of_step")),
                f"{_number(row.get('difference_ms'), ' ms')}, {_share(row.get('difference_share'))}",
            )


def _inputs(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for scenario, parts in result["scenarios"].items():
        row = parts.get("inputs", {})
        copied = _number(row.get("copy_gigabytes_per_second"), " GB/s")
        yield (
            f"{scenario}: {row.get('images', '-')} images, {_number(row.get('batch_megabytes'), ' MB')}",
            ", ".join(row.get("views", [])) or "-",
            _number(row.get("views_ms"), " ms"),
            f"{_number(row.get('read_ms'), ' ms')}, {row.get('form', '-')}",
            f"{_number(row.get('copy_ms'), ' ms')}, {copied}",
        )


def _table(headings: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _number(value: float | None, unit: str = "", of: int = 1) -> str:
    return "-" if value is None else f"{value / of:,.4g}{unit}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
