"""How large are DAR and SEC beside the loss of each method? ``python -m benchmarks.shares``.

Trains every method on the emoji of `examples/` at 32 pixels with the defaults of a job, and measures, at the first
step and after `STEPS`, the norm of the gradient of each term relative to that of the method's loss: at the outputs
of the backbone, where a job measures it (`dar.share`), and at the backbone's weights, where it acts. Beside the
defaults, DAR's chain and SEC with a weight of 0.5, and the cosine of DAR and the loss.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.machine import machine, write_results
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.methods import Outputs, Step
from dasl_core.regularizers import (
    SphericalEmbeddingConstraint,
    difference_alignment,
    gradient_shares,
)
from dasl_core.spec import METHODS, JobSpec, resolve
from dasl_core.train.build import RunFiles, build_trainer, open_run
from dasl_core.train.reporter import NullReporter
from examples.emoji import unpack_emoji

RESULTS = Path(__file__).parent / "results" / "shares.json"
STEPS = 120  # the weights are constant after 100
BATCH, SIDE = 64, 32
# Wide outputs only take time here.
SMALL = {"projection_dim": 512, "hidden_dim": 512, "out_dim": 1024, "local_crops": 2}
WIDE = ("barlow_twins", "vicreg", "dino", "ibot", "swav")


def spec_of(method: str) -> dict[str, Any]:
    """Return a spec with DAR, and SEC if the method takes it."""
    fields = METHODS[method].model_fields
    small = {name: value for name, value in SMALL.items() if name in fields and method in WIDE}
    compares = METHODS[method].compares_directions
    return {
        "dataset": "emoji",
        "method": {"name": method, **small},
        "backbone": {
            "name": "test_vit" if method == "ibot" else "test_resnet",
            "image_size": SIDE,
            "stem": "standard",
        },
        "dar": {},
        "sec": {"ramp": False} if compares else None,
        "train": {"batch_size": BATCH, "epochs": 10},
        "evaluate": {"holdout": {"fraction": 0.5, "by": "class"}, "every_epochs": 1000},
    }


def measure(method: str, index: DatasetIndex, folder: Path) -> list[dict[str, float]]:
    """Train a method and return its shares at the first step and after `STEPS`."""
    spec = resolve(JobSpec.model_validate(spec_of(method)), index.facts())
    files = RunFiles(cache=folder / "cache", scratch=folder / method)
    files.scratch.mkdir()
    trainer = build_trainer(open_run(spec, index, NullReporter(), files))
    criterion = trainer.criterion
    weights = [weight for weight in trainer.method.backbone.parameters() if weight.requires_grad]
    rows: list[dict[str, float]] = []

    def measured(
        outputs: Outputs, step: Step, backbone_outputs: Sequence[Tensor] = ()
    ) -> Mapping[str, Tensor]:
        terms = criterion(outputs, step, backbone_outputs)
        if step.index not in (0, STEPS - 1):
            return terms
        embeddings = outputs["embeddings"].float()
        chain = difference_alignment(
            embeddings.flatten(0, 1),
            step.indices.repeat(len(embeddings)),
            estimator="chain",
            generator=torch.Generator().manual_seed(0),
        )
        loss, *others = terms.values()
        added = dict(zip(("dar", "sec"), others, strict=False)) | {"dar chain 0.5": 0.5 * chain}
        if "sec" in added:
            added["sec 0.5"] = 0.5 * SphericalEmbeddingConstraint()(embeddings.flatten(0, 1))
        row = {}
        for place, tensors in (("outputs", backbone_outputs), ("weights", weights)):
            for name, share in gradient_shares(loss, added, tensors).items():
                row[f"{name}, {place}"] = share.share.item()
                row[f"{name}, cosine at {place}"] = share.cosine.item()
        rows.append(row)
        return terms

    trainer.gradients.criterion = measured  # type: ignore[assignment]
    try:
        trainer.begin_epoch(0)
        epoch = 0
        while trainer.run.progress.step < STEPS:
            for batch in trainer.loader.epoch(epoch):
                trainer.step(batch)
                if trainer.run.progress.step == STEPS:
                    break
            epoch += 1
    finally:
        trainer.close()
    return rows


def main() -> int:
    """Measure the methods, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="dasl-shares-") as name:
        unpack_emoji(Path(name))
        index = ingest_folder(Path(name) / "emoji")
        for method in arguments.methods:
            results[method] = measure(method, index, Path(name))
    write_results(arguments.output, {"machine": machine("torch", "timm"), "methods": results})
    table = Table(title=f"Gradient relative to the loss's, percent: first step / after {STEPS}")
    columns = [
        f"{term}, {place}"
        for term in ("dar chain 0.5", "dar", "sec 0.5", "sec")
        for place in ("outputs", "weights")
    ]
    table.add_column("")
    for column in (*columns, "cosine of dar, weights"):
        table.add_column(column, justify="right")
    for method, rows in results.items():
        cells = [
            " / ".join(f"{100 * row[column]:.2g}" for row in rows if column in row)
            for column in columns
        ]
        cosine = " / ".join(f"{row['dar, cosine at weights']:+.2f}" for row in rows)
        table.add_row(method, *cells, cosine)
    Console(width=200).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
