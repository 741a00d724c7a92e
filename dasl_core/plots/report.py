"""report.html: the results of a run in one self-contained file without scripts."""

import base64
import io
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

from PIL import Image

from dasl_core.export.card import loading_lines
from dasl_core.headlines import PLOTTED, VERIFICATION, format_metric, larger_is_better
from dasl_core.models.backbone import stem_lines
from dasl_core.plots.data import query_positions
from dasl_core.plots.facts import RunFacts, count, metric_title
from dasl_core.plots.history import History, Shown
from dasl_core.plots.images import ShownImages
from dasl_core.plots.neighbors import distance_text, ordinal, searched_text, when
from dasl_core.plots.settings import flatten_settings

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
_SIDE = 72
_CAPTIONS = {
    "map": "Principal components of the features of held-out images (dark) and training images (light). Near points are "
    "similar; the axes have no meaning of their own, and are turned to fit the map before.",
    "distances": "Between images of different classes, or, without labels, different images: the distances of the embeddings that the loss compares. DAR makes them equal; all near 0 is a "
    "collapse.",
    "norms": "The lengths of these embeddings before they are normalized, which SEC makes equal.",
    "norms_by_group": "Whether some classes, or groups of the data set's column, have longer embeddings than others. The "
    "share of the variance is eta squared; beyond chance, omega squared.",
}
_EXPLAINED = {
    "knn_top1": "Share of held-out images whose class wins the vote of their nearest training images.",
    "recall_at_1": "Share of held-out images whose nearest other held-out image is of the same class.",
    "instance_recall_at_1": "Share of random views that find their own image among the held-out ones. Needs no labels.",
    VERIFICATION: "Share of pairs of held-out images that a threshold tells right to be of one class, or of two.",
    "effective_rank": "How many dimensions the features use (RankMe).",
}
_SHOWN = (*PLOTTED, "recall_at_5", "linear_top1", "finetune_top1", "nmi", VERIFICATION)


def write_report(
    run: RunFacts, svgs: Mapping[str, str], history: History, images: ShownImages, path: Path
) -> None:
    """Write the report of a run, with its figures as SVG elements by name."""
    title = escape(run.spec.name)
    parts = [
        f"<header><h1>{title}</h1><p class=muted>{escape(run.subtitle)}</p></header>",
        _verdict(run),
        _key_figures(run),
        _figure("Curves", svgs["curves"], "", wide=True),
        _neighbors(run, history, images),
        *(_figure(name.replace("_", " ").capitalize(), svgs[name], caption, wide=name == "map")
          for name, caption in _CAPTIONS.items() if name in svgs),
        _data(run),
        _time(run),
        _settings(run),
        _load(run),
    ]  # fmt: skip
    style = files("dasl_core.plots").joinpath("report.css").read_text(encoding="utf-8")
    path.write_text(
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{style}</style></head><body><main>"
        + "\n".join(parts)
        + "</main></body></html>\n",
        encoding="utf-8",
        errors="replace",  # a file name may have bytes that are not text
    )


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(content)}</section>"


def _figure(title: str, svg: str, caption: str, *, wide: bool) -> str:
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    kind = "wide" if wide else "narrow"
    return _section(title, f'<figure class="{kind}">{svg}{below}</figure>')


def _verdict(run: RunFacts) -> str:
    if run.verdict is None:
        text = "No verdict: nothing was measured both before and after training."
        return f'<section class="verdict"><p>{text}</p></section>'
    word, _, rest = run.verdict.partition(": ")
    said = rest if rest.startswith("k-") else rest[:1].upper() + rest[1:]
    kind = "good" if word == "healthy" else "bad" if word == "collapsed" else "mixed"
    text = f"<strong>{escape(word[:1].upper() + word[1:])}.</strong> {escape(said)}"
    return f'<section class="verdict {kind}"><p>{text}</p></section>'


def _key_figures(run: RunFacts) -> str:
    """Build a table of the last evaluation and its baselines."""
    rows = []
    for metric in _SHOWN:
        trained = run.series(metric, run.spec.evaluate.on)
        if not trained:
            continue
        last = trained[-1][1]
        others = (run.before(metric), run.raw(metric), run.anchors.chance.get(metric))
        cells = [_cell(metric, value) for value in others]
        better = larger_is_better(metric) is not False
        finite = [value for value in others if value is not None]
        best = " class=best" if finite and better and last > max(finite) else ""
        about = _EXPLAINED.get(metric)
        note = f"<br><small>{about}</small>" if about else ""
        rows.append(
            f"<tr><th scope=row>{escape(metric_title(metric))}{note}</th><td{best}>{format_metric(metric, last)}</td>"
            + "".join(cells) + "</tr>"
        )  # fmt: skip
    if not rows:
        return ""
    head = "".join(
        f"<th scope=col>{name}</th>" for name in ("", "Trained", "Start", "Raw pixels", "Chance")
    )
    note = (
        f"<p class=muted>Measured on {count(run.held_out, 'held-out image')}: one image is "
        f"{100 / max(run.held_out, 1):.2g} %. Chance: a neighbor drawn at random.</p>"
    )
    return _section("Key figures", f"<div class=scroll><table class=figures><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>", note)  # fmt: skip


def _cell(metric: str, value: float | None) -> str:
    return "<td class=muted>–</td>" if value is None else f"<td>{format_metric(metric, value)}</td>"


def _neighbors(run: RunFacts, history: History, images: ShownImages) -> str:
    columns = history.ends[::-1]
    if not columns or not columns[0].neighbors.size:
        return ""
    queries = query_positions(len(images.held_out)).tolist()
    needed = dict.fromkeys(
        [*queries, *(int(p) for evaluation in columns for p in evaluation.neighbors.flatten())]
    )
    uris = dict(zip(needed, map(_data_uri, images.pictures(list(needed), _SIDE)), strict=True))
    labeled = images.held_out.index.labels is not None
    rows = []
    for row, query in enumerate(queries):
        label = images.label(query)
        lines = [
            f"<div class=row><span class=when>{when(evaluation, evaluation is columns[0])}</span>"
            + "".join(_neighbor(evaluation, row, place, images, uris, label) for place in range(evaluation.neighbors.shape[1]))
            + "</div>"
            for evaluation in columns
        ]  # fmt: skip
        name = label if label is not None else images.key(query)
        rows.append(
            f"<div class=query><figure><img src=\"{uris[query]}\" alt=\"\"><figcaption title=\"{escape(images.key(query))}\">"
            f"{escape(name)}</figcaption></figure><div class=rows>{''.join(lines)}</div></div>"
        )  # fmt: skip
    about = (
        f"Each held-out image on the left, and its nearest ones in order, searched among {searched_text(run)}. "
        "Below each: the cosine distance; its file is in the tooltip."
    )
    if labeled:
        about += " ✓ and a green frame: of the same class."
    return _section("Nearest neighbors", f"<p class=muted>{about}</p>", *rows)


def _neighbor(
    shown: Shown,
    row: int,
    place: int,
    images: ShownImages,
    uris: Mapping[int, str],
    query_label: str | None,
) -> str:
    position = int(shown.neighbors[row, place])
    distance = distance_text(float(shown.similarities[row, place]))
    right = query_label is not None and images.label(position) == query_label
    mark = " class=right" if right else ""
    said = f"{ordinal(place + 1)}: {images.key(position)}"
    tick = "✓ " if right else ""
    return (
        f'<figure{mark}><img src="{uris[position]}" alt="{escape(said)}" title="{escape(said)}">'
        f"<figcaption>{tick}{distance}</figcaption></figure>"
    )


def _data_uri(picture: Image.Image) -> str:
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=82, method=2)
    return f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th scope=row>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in rows)
    return f"<div class=scroll><table>{cells}</table></div>"


def _data(run: RunFacts) -> str:
    evaluated = run.spec.evaluate.dataset
    rows = [
        ("Data set", run.spec.dataset),
        ("Images", f"{run.images:,}"),
        ("Trained on", count(run.train_images, "image")),
        ("Evaluated on", count(run.held_out, "image") + (f" of {evaluated}" if evaluated else ", held out")),
        ("Classes", "no labels" if run.classes is None else f"{run.classes:,}"),
    ]  # fmt: skip
    return _section("Data", _table(rows))


def _time(run: RunFacts) -> str:
    speeds = [means["images_per_second"] for means in run.epochs if means.get("images_per_second")]
    batch, workers = run.spec.train.batch_size, run.spec.resources.workers
    rows = [
        ("Epochs", f"{len(run.losses)} of {run.spec.train.epochs}"),
        ("Steps", f"{len(run.losses) * run.steps_per_epoch:,} of {count(int(batch), 'image')}"),
        ("Ranks", str(workers)),
    ]
    if speeds:
        seconds = sum(run.steps_per_epoch * int(batch) / speed for speed in speeds)
        rows += [
            ("Speed", f"{len(speeds) / sum(1 / speed for speed in speeds):,.0f} images/s"),
            ("Time of the steps", _hours(seconds)),
            ("Cost", f"{seconds * workers / 3600:.3g} hours of ranks, without evaluations"),
        ]
    return _section("Time and cost", _table(rows))


def _hours(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _settings(run: RunFacts) -> str:
    rows = "".join(
        f"<tr><th scope=row><code>{escape(name)}</code></th><td>{escape(value)}</td>"
        f"<td>{'<span class=auto>auto</span>' if name in run.automatic else ''}</td></tr>"
        for name, value in flatten_settings(run.spec)
    )
    note = '<p class=muted>As resolved. <span class="auto">auto</span>: the value that "auto" chooses here.</p>'
    return _section("Settings", f"{note}<div class=scroll><table>{rows}</table></div>")


def _load(run: RunFacts) -> str:
    is_custom = run.spec.backbone.is_own
    code = escape("\n".join(loading_lines(None if is_custom else stem_lines(run.spec.backbone))))
    where = "In the folder of the checkpoint"
    where += (
        ", with the network built before as <code>model</code>."
        if is_custom
        else ", with timm and safetensors."
    )
    content = [f"<p class=muted>{where}</p><pre><code>{code}</code></pre>"]
    if run.certificate is not None:
        content.append(
            "<p class=muted><code>dasl verify</code> checks the run by its certificate, whose SHA-256 is "
            f"<code>{run.certificate}</code></p>"
        )
    return _section("Load the backbone", *content)
