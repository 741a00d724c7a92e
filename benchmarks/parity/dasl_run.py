"""Trainings with DASL, for `benchmarks.parity`."""

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.parity import recipe
from benchmarks.parity.jobs import Job, run_jobs
from dasl_core.data.ingest import ingest_folder
from dasl_core.spec import JobSpec, resolve
from dasl_core.train.build import RunFiles, pretrain
from dasl_core.train.reporter import NullReporter

WIDE = {"hidden_dim": recipe.EXPANDED, "projection_dim": recipe.EXPANDED, "separate_views": True}
NARROW = {"hidden_dim": recipe.HIDDEN, "projection_dim": recipe.OUTPUTS, "separate_views": True}
METHODS: dict[str, dict[str, Any]] = {
    "simclr": {"temperature": recipe.TEMPERATURE, "last_batch_norm": True, **NARROW},
    "byol": NARROW,
    "dino": {
        "local_crops": 0,
        "hidden_dim": recipe.HIDDEN,
        "bottleneck_dim": recipe.BOTTLENECK,
        "out_dim": recipe.PROTOTYPES,
        "head_batch_norm": True,
        "student_temperature": recipe.STUDENT,
        "teacher_temperature": recipe.TEACHER,
        "teacher_temperature_start": recipe.TEACHER,
        "center_momentum": recipe.CENTER,
        "freeze_last_layer_epochs": 0,
        "keep": "student",
    },
    "vicreg": WIDE,
    "barlow_twins": {"redundancy": recipe.REDUNDANCY, "loss_scale": 1.0, **WIDE},
}


class Weights(NullReporter):
    """Keeps the backbone of the last checkpoint."""

    def __init__(self) -> None:
        self.backbone: dict[str, Tensor] = {}

    def checkpoint(
        self, folder: Path, step: int, epoch: float, metrics: dict[str, float], final: bool
    ) -> None:
        """Read the weights before the folder vanishes."""
        from safetensors.torch import load_file

        self.backbone = load_file(folder / "backbone.safetensors")


def spec_of(job: Job) -> dict[str, Any]:
    """Return the job's spec."""
    r = job.recipe
    teacher = {"teacher_momentum": r.momentum} if job.method in ("byol", "dino") else {}
    return {
        "dataset": job.dataset,
        "backbone": {
            "name": r.backbone,
            "image_size": r.image_size,
            "in_channels": len(r.mean),
            "stem": "standard",
        },
        "method": {"name": job.method, **METHODS[job.method], **teacher},
        "augment": {
            "crop_scale": [r.crop_scale, 1.0],
            "flip": r.flip,
            "jitter": r.jitter,
            "grayscale": r.grayscale,
            "saturation": 1.0,
            "blur": 0.0,
            "solarize": 0.0,
        },
        "train": {
            "epochs": r.epochs,
            "batch_size": r.batch_size,
            "warmup_epochs": r.warmup,
            "precision": "fp32",
            "seed": job.seed,
            "clip": None,
            "collapse": "ignore",
            "checkpoint_every_epochs": r.epochs,
            "optimizer": {
                "name": "adamw",
                "lr": r.lr,
                "lr_end": 0.0,
                "weight_decay": r.weight_decay,
                "weight_decay_end": r.weight_decay,
            },
        },
        "evaluate": {"holdout": None, "every_epochs": r.epochs},
    }


def train(job: Job) -> dict[str, Tensor]:
    """Run the job and return the backbone's weights."""
    index = ingest_folder(Path(job.data) / job.dataset)
    spec = resolve(JobSpec.model_validate(spec_of(job)), index.facts())
    kept = Weights()
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(job.data) / f"cache-{job.dataset}"
        pretrain(spec, index, kept, RunFiles(cache=cache, scratch=Path(scratch)))
    return kept.backbone


if __name__ == "__main__":
    run_jobs(train)
