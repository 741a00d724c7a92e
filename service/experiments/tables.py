"""Results of an experiment as CSV and Markdown."""

import csv
from io import StringIO

from dasl_core.text import formula_safe
from service.wire.experiments import DifferenceView, MetricResult, Results, VariantResult

_SUMMARY = ("n", "mean", "std", "min", "max")
_COLUMNS = (
    "metric",
    "variant",
    *_SUMMARY,
    *(f"difference_{name}" for name in _SUMMARY),
    *(f"{kind}_{end}" for kind in ("t", "bootstrap") for end in ("low", "high")),
    "verdict",
)
_DIRECTIONS = {None: "", True: " (higher is better)", False: " (lower is better)"}
_WORDS = {None: "", "no_difference": "no difference", "too_few_seeds": "too few seeds"}


def as_csv(results: Results) -> str:
    """Return a row for each metric and variant."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for table in results.metrics:
        for result in table.variants:
            writer.writerow(_row(table, result))
    return text.getvalue()


def _row(table: MetricResult, result: VariantResult) -> list[object]:
    row: list[object] = [formula_safe(table.metric), formula_safe(result.variant)]
    for part in (result.summary, result.difference):
        if part is None:
            row += [0, *[None] * (len(_SUMMARY) - 1)]
        else:
            row += [getattr(part, name) for name in _SUMMARY]
    difference = result.difference
    row += (difference.t_interval if difference else None) or (None, None)
    row += (difference.bootstrap_interval if difference else None) or (None, None)
    return [*row, result.verdict]


def as_markdown(results: Results) -> str:
    """Return a table for each metric, with the sentences and notes."""
    parts = []
    for table in results.metrics:
        lines = [
            f"**{table.metric}**{_DIRECTIONS[table.larger_is_better]}",
            "",
            f"| variant | n | mean | std | min to max | minus {_cell(results.baseline)} | t interval | bootstrap "
            "interval | verdict |",
            "|---|--:|--:|--:|--:|--:|--:|--:|---|",
            *map(_line, table.variants),
        ]
        parts.append("\n".join(lines))
    for lines in (results.sentences, results.notes):
        if lines:
            parts.append("\n".join(f"* {_cell(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _line(result: VariantResult) -> str:
    summary, difference = result.summary, result.difference
    cells = [_cell(result.variant)]
    if summary is None:
        cells += ["0", "", "", ""]
    else:
        spread = f"{summary.min:.4g} to {summary.max:.4g}"
        std = "" if summary.std is None else f"{summary.std:.3g}"
        cells += [str(summary.n), f"{summary.mean:.4g}", std, spread]
    cells += ["", "", ""] if difference is None else _difference_cells(difference)
    cells.append(_WORDS.get(result.verdict, str(result.verdict)))
    return f"| {' | '.join(cells)} |"


def _difference_cells(difference: DifferenceView) -> list[str]:
    intervals = (difference.t_interval, difference.bootstrap_interval)
    cells = [
        "" if bounds is None else f"{bounds[0]:+.3g} to {bounds[1]:+.3g}" for bounds in intervals
    ]
    return [f"{difference.mean:+.3g} (n {difference.n})", *cells]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
