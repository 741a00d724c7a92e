"""Which views fit which images? ``python -m benchmarks.views``.

Trains the eight variants of `examples/which-views.yaml` on four kinds of images of 48 pixels, and finds the images of
a class among held-out classes: zero-shot R@1. Four tenths of the classes are trained on. The held-out images are the
gallery of one another; the queries of half of their classes choose, and those of the other half report.

* ``fonts`` and ``emoji``: the images of `examples/`. Families of one design are on one side.
* ``photographs``: patches of 106 photographs, a class being a photograph. Not included: ``--photographs`` names a folder
  into which ``dpkg-deb -x`` has unpacked three packages of Debian 12: gcompris-qt-data 3.1-2 (GPL-3+; some are CC BY,
  CC BY-SA, GFDL or in the public domain), mate-backgrounds 1.26.0-1 (GPL-2+) and lomiri-wallpapers-16.04 20.04.0-2 (CC BY, CC BY-SA or CC0).
  Their copyright files name the holders.
* ``fashion``: images of Fashion-MNIST. Not included: ``--fashion`` names the folder with its four files.

The best variant of the classes that choose is reported with the figure of the other classes. The effect of each change
is the mean of the four variants with it minus that of the other four, as `dasl experiments show` has it.
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml
from PIL import Image, ImageOps
from rich.console import Console
from rich.table import Table

from benchmarks.learning import FASHION, MetricRecorder, idx, run_missing
from dasl_core.hits import Hits
from dasl_core.vocabulary import Subject
from examples.emoji import unpack_emoji
from examples.fonts import PARTS as FONTS
from examples.fonts import unpack_fonts
from service.experiments.effects import effects, find_design

RESULTS = Path(__file__).parent / "results" / "views.json"
EXPERIMENT = yaml.safe_load(
    (Path(__file__).parents[1] / "examples" / "which-views.yaml").read_text(encoding="utf-8")
)
DATASETS = ("fonts", "emoji", "photographs", "fashion")
TRAIN, CHOOSE, REPORT = PARTS = ("train", "choose", "report")
TRAINED = 0.4  # share of the classes
SIDE = 48
PATCHES, REDUCED, TRIES = 40, 480, 400  # of a photograph, whose shorter side is reduced
PHOTOGRAPHS = (
    "usr/share/gcompris-qt/rcc/explore_*.rcc",
    "usr/share/backgrounds/mate/nature/*.jpg",
    "usr/share/backgrounds/*_by_*.jpg",
)
ABSTRACT = ("analogpattern_by_Peter_Nerlich", "umang_by_Abhishek_Mudgal")
SMALLEST = 400  # side of a photograph: the rest are parts of a surface
LEAST_CONTRAST = 12  # standard deviation of gray values: patches of sky or blur show nothing
FASHION_IMAGES = 500  # of each class


def main() -> int:
    """Run what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--fashion", type=Path, default=FASHION)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if "photographs" in arguments.datasets and arguments.photographs is None:
        parser.error("--photographs: give a folder with photographs, or other --datasets")
    specs = {
        f"{dataset}/{variant}/{seed}": spec_of(dataset, changes, seed)
        for seed in range(arguments.seeds)
        for dataset in arguments.datasets
        for variant, changes in EXPERIMENT["variants"].items()
    }
    with tempfile.TemporaryDirectory(prefix="dasl-views-") as name:
        folder = Path(name)
        for dataset in arguments.datasets:
            classes = folder / f"{dataset}-classes"
            unpack(dataset, classes, arguments.fashion, arguments.photographs)
            divide(dataset, classes, folder / dataset)
        runs = run_missing(specs, folder, arguments.output, arguments.side_by_side, train=run)
    console = Console(width=160)
    for table in show(runs, arguments.datasets):
        console.print(table)
    return 0


def spec_of(dataset: str, changes: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the spec of a variant on other images, evaluated on held-out classes."""
    spec = EXPERIMENT["spec"] | {"dataset": dataset}
    spec["augment"] = spec["augment"] | changes.get("augment", {})
    precision = "fp32" if dataset == "fashion" else "bf16"  # as the processor at hand was faster
    spec["train"] = spec["train"] | {"seed": seed, "precision": precision, "collapse": "ignore"}
    spec["evaluate"] = spec["evaluate"] | {"holdout": None, "dataset": "held-out"}
    return dict(spec)


def unpack(dataset: str, classes: Path, fashion: Path, photographs: Path | None) -> None:
    """Write the images of a data set as folders of classes."""
    with tempfile.TemporaryDirectory(prefix="dasl-views-") as name:
        if dataset == "fonts":
            for part in FONTS:
                shutil.copytree(unpack_fonts(Path(name), part), classes, dirs_exist_ok=True)
        elif dataset == "emoji":
            shutil.copytree(unpack_emoji(Path(name)), classes)
    if dataset == "fashion":
        images = idx(fashion, "train-images-idx3-ubyte")[16:].reshape(-1, 28, 28)
        labels = idx(fashion, "train-labels-idx1-ubyte")[8:]
        for label in range(10):
            (classes / str(label)).mkdir(parents=True)
            for number in (labels == label).nonzero()[0][:FASHION_IMAGES]:
                Image.fromarray(images[number]).save(classes / str(label) / f"{number:05d}.png")
    elif dataset == "photographs":
        assert photographs is not None, "checked with the arguments"
        for name, content in photographs_of(photographs):
            write_patches(content, classes / name)


def photographs_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the file of each photograph of the packages."""
    for file in sorted(each for pattern in PHOTOGRAPHS for each in folder.glob(pattern)):
        content, start = file.read_bytes(), -1
        if file.suffix == ".jpg" and file.stem not in ABSTRACT:
            yield file.stem, content
        # A collection of Qt's resources holds WebP files as they are: "RIFF", their length, "WEBP".
        while file.suffix == ".rcc" and (start := content.find(b"RIFF", start + 1)) >= 0:
            end = start + 8 + int.from_bytes(content[start + 4 : start + 8], "little")
            is_webp = content[start + 8 : start + 12] == b"WEBP"
            if is_webp and min(Image.open(BytesIO(content[start:end])).size) >= SMALLEST:
                yield f"{file.stem}-{start}", content[start:end]


def write_patches(photograph: bytes, folder: Path) -> None:
    """Write random patches of a photograph that do not overlap, each with some contrast."""
    image = ImageOps.exif_transpose(Image.open(BytesIO(photograph))).convert("RGB")
    scale = REDUCED / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    stream, kept = random.Random(folder.name), list[tuple[int, int]]()
    folder.mkdir(parents=True)
    for _ in range(TRIES):
        x, y = stream.randint(0, image.width - SIDE), stream.randint(0, image.height - SIDE)
        patch = image.crop((x, y, x + SIDE, y + SIDE))
        free = all(max(abs(x - a), abs(y - b)) >= SIDE for a, b in kept)
        if free and statistics.pstdev(patch.convert("L").getdata()) >= LEAST_CONTRAST:
            patch.save(folder / f"{len(kept):02d}.png")
            kept.append((x, y))
            if len(kept) == PATCHES:
                break


def divide(dataset: str, classes: Path, folder: Path) -> None:
    """Move classes into the folders `train` and `held-out`, where names begin with their part."""
    names = sorted(each.name for each in classes.iterdir())
    designs = sorted({design_of(dataset, name) for name in names})
    random.Random(0).shuffle(designs)
    trained = round(TRAINED * len(designs))
    half = trained + (len(designs) - trained) // 2
    for name in names:
        place = designs.index(design_of(dataset, name))
        part = TRAIN if place < trained else CHOOSE if place < half else REPORT
        to = folder / TRAIN / name if part == TRAIN else folder / "held-out" / f"{part}-{name}"
        to.parent.mkdir(parents=True, exist_ok=True)
        (classes / name).rename(to)


def design_of(dataset: str, name: str) -> str:
    """Return what classes of one design have in common."""
    return name.partition("-")[0] if dataset == "fonts" else name


def run(
    folder: Path, dataset: str, settings: dict[str, Any], metrics: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Train and evaluate in this process.

    Returns:
        The spec, R@1 in percent of each subject and part, the numbers of images, and the duration in seconds.
    """
    from dasl_core.data.ingest import ingest_folder
    from dasl_core.spec import JobSpec, resolve
    from dasl_core.train.build import RunFiles, pretrain

    train, held_out = (ingest_folder(folder / dataset / part) for part in (TRAIN, "held-out"))
    spec = resolve(JobSpec.model_validate(settings), train.facts())
    recorder, began = HitsRecorder(), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        files = RunFiles(
            cache=folder / f"cache-{dataset}",
            evaluate_cache=folder / f"cache-{dataset}-held-out",
            scratch=Path(scratch),
        )
        pretrain(spec, train, recorder, files, evaluate_on=held_out)
    seconds = round(time.monotonic() - began)
    assert held_out.labels is not None, "its images are in folders of classes"
    part_of = [held_out.class_names[label].partition("-")[0] for label in held_out.labels]
    return {
        "spec": settings,
        "figures": {
            subject: {part: share_right(hits, part_of, part) for part in (CHOOSE, REPORT)}
            for subject, hits in recorder.hits.items()
        },
        "images": {TRAIN: len(train.paths)} | {each: part_of.count(each) for each in PARTS[1:]},
        "seconds": seconds,
    }


def share_right(hits: Hits, part_of: Sequence[str], part: str) -> float:
    """Return the percentage of the images of a part that are right."""
    assert hits.images == len(part_of), "all images are queries"
    right = [hits.bits >> i & 1 for i, each in enumerate(part_of) if each == part]
    return round(100 * statistics.mean(right), 2)


def show(runs: dict[str, Any], datasets: Sequence[str]) -> tuple[Table, Table]:
    """Return the variant that half of the held-out classes choose with the other half's figures, and the effects."""
    chosen = Table(title="R@1 of the classes that report, percent")
    for heading in ("", "raw pixels", "untrained", *EXPERIMENT["variants"], "chosen", "seconds"):
        chosen.add_column(heading, justify="right" if heading else "left")
    variants: dict[str, dict[str, Any]] = EXPERIMENT["variants"]
    design = find_design(EXPERIMENT["spec"], variants, EXPERIMENT["baseline"])
    added = Table(title="What each change adds to R@1, points with 95 % intervals")
    for heading in ("", "classes", *(change.partition(" instead")[0] for change in design)):
        added.add_column(heading, justify="right" if heading else "left")
    for dataset in datasets:
        found = {each: seeds_of(runs, f"{dataset}/{each}") for each in variants}
        if not all(found.values()):
            continue
        of_part = {
            part: {
                variant: statistics.mean(run["figures"]["backbone"][part] for run in seeds)
                for variant, seeds in found.items()
            }
            for part in PARTS[1:]
        }
        everything = [run for seeds in found.values() for run in seeds]
        chosen.add_row(
            dataset,
            *(
                f"{statistics.mean(run['figures'][subject][REPORT] for run in everything):.1f}"
                for subject in ("raw", "untrained")
            ),
            *(f"{value:.1f}" for value in of_part[REPORT].values()),
            max(of_part[CHOOSE], key=of_part[CHOOSE].__getitem__),
            f"{statistics.mean(run['seconds'] for run in everything):.0f}",
        )
        for part, values in of_part.items():
            rows = {
                change: f"{effect:+.1f} ± {half:.1f}"
                for change, effect, half in effects(design, [*values.values()], None)
            }
            added.add_row(dataset, part, *(rows[change] for change in design))
    return chosen, added


def seeds_of(runs: dict[str, Any], name: str) -> list[Any]:
    """Return the runs of a name."""
    return [run for key, run in runs.items() if key.rpartition("/")[0] == name]


class HitsRecorder(MetricRecorder):
    """Keeps which images the last evaluation of each subject gets right."""

    def __init__(self) -> None:
        super().__init__("recall_at_1")
        self.hits: dict[Subject, Hits] = {}

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """Read them from the training state."""
        from dasl_core.train.serialization import load_state

        for record in load_state(folder)["progress"]["hits"]:
            self.hits[record["subject"]] = Hits.decode(record["right"]["recall_at_1"])


if __name__ == "__main__":
    raise SystemExit(main())
