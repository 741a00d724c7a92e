"""Trainings with stable-pretraining, by its forward functions and callbacks, for `benchmarks.parity`.

Needs stable-pretraining 0.1.8 and timm, and nothing of DASL.
"""

import itertools
from typing import Any

import lightning
import numpy as np
import stable_pretraining as spt
import timm
import torch
from PIL import Image
from stable_pretraining import forward, losses
from stable_pretraining.backbone import BatchNorm1dNoBias, L2Norm, TeacherStudentWrapper
from stable_pretraining.callbacks import TeacherStudentCallback
from stable_pretraining.data import transforms
from torch import nn

from benchmarks.parity import recipe
from benchmarks.parity.jobs import Job, run_jobs
from benchmarks.parity.recipe import Recipe

# Default callbacks that only write files and tables.
REPORTS = ("progress_bar", "env_dump", "trainer_info", "module_summary")


class Images(torch.utils.data.Dataset[tuple[Any]]):
    """Images in memory."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = [Image.fromarray(image) for image in images]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any]:
        return (self.images[index],)


def mlp(*widths: int, bias: bool = False) -> list[nn.Module]:
    """Return linear layers with batch normalization and ReLU between them; `bias` is of the last."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
    return [*layers, nn.Linear(widths[-2], widths[-1], bias=bias)]


def dino_head(width: int) -> nn.Module:
    """Return DINO's head, for which the library has only loss and forward function."""
    sizes = (width, recipe.HIDDEN, recipe.HIDDEN)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.GELU()]
    layers.append(nn.Linear(recipe.HIDDEN, recipe.BOTTLENECK))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    last = nn.Linear(recipe.BOTTLENECK, recipe.PROTOTYPES, bias=False)
    last = nn.utils.parametrizations.weight_norm(last)
    lengths = last.parametrizations.weight.original0
    lengths.data.fill_(1.0)
    lengths.requires_grad_(False)
    return nn.Sequential(*layers, L2Norm(), last)


def parts(method: str, backbone: nn.Module, r: Recipe) -> dict[str, Any]:
    """Return the arguments of `spt.Module` for a method."""

    def taught(student: nn.Module) -> Any:
        return TeacherStudentWrapper(student, base_ema_coefficient=r.momentum)

    widths = recipe.HIDDEN, recipe.OUTPUTS
    if method == "simclr":
        return {
            "forward": forward.simclr,
            "backbone": backbone,
            "projector": nn.Sequential(*mlp(r.width, *widths), BatchNorm1dNoBias(recipe.OUTPUTS)),
            "simclr_loss": losses.NTXEntLoss(temperature=recipe.TEMPERATURE),
        }
    if method == "byol":
        return {
            "forward": forward.byol,
            "backbone": taught(backbone),
            "projector": taught(nn.Sequential(*mlp(r.width, *widths, bias=True))),
            "predictor": nn.Sequential(*mlp(recipe.OUTPUTS, *widths, bias=True)),
            "byol_loss": losses.BYOLLoss(),
        }
    if method == "dino":
        return {
            "forward": forward.dino,
            "backbone": taught(backbone),
            "projector": taught(dino_head(r.width)),
            "dino_loss": losses.DINOv1Loss(recipe.STUDENT, recipe.CENTER),
            "warmup_temperature_teacher": recipe.TEACHER,
            "temperature_teacher": recipe.TEACHER,
            "warmup_epochs_temperature_teacher": 0,
        }
    head = mlp(r.width, recipe.EXPANDED, recipe.EXPANDED, recipe.EXPANDED)
    shared = {"backbone": backbone, "projector": nn.Sequential(*head)}
    if method == "vicreg":
        return shared | {"forward": forward.vicreg, "vicreg_loss": losses.VICRegLoss()}
    barlow_loss = losses.BarlowTwinsLoss(lambd=recipe.REDUNDANCY)
    return shared | {"forward": forward.barlow_twins, "barlow_loss": barlow_loss}


def train(job: Job) -> nn.Module:
    """Train, and return the backbone."""
    r = job.recipe
    spt.set(default_callbacks=dict.fromkeys(REPORTS, False), cache_dir=f"{job.data}/stable")
    lightning.seed_everything(job.seed)
    strength = 0.8 * r.jitter
    view = transforms.Compose(
        transforms.RandomResizedCrop(r.image_size, scale=(r.crop_scale, 1.0)),
        transforms.RandomHorizontalFlip(p=r.flip),
        transforms.ColorJitter(strength, strength, strength, 0.2 * r.jitter, p=0.8),
        transforms.RandomGrayscale(p=r.grayscale),
        transforms.ToImage(mean=list(r.mean), std=list(r.std)),
    )
    named = job.method == "dino"  # its forward function tells views apart by their names
    views = transforms.MultiViewTransform(
        {"global_1": view, "global_2": view} if named else [view, view]
    )
    images = spt.data.FromTorchDataset(
        Images(np.load(job.array)), names=["image"], transform=views, add_sample_idx=False
    )
    an_epoch, total = r.lengths(len(images))
    backbone: nn.Module = timm.create_model(r.backbone, num_classes=0, in_chans=len(r.mean))
    module = spt.Module(
        **parts(job.method, backbone, r),
        optim={
            "optimizer": {
                "type": "AdamW",
                "lr": r.lr,
                "weight_decay": r.weight_decay,
                "exclude_bias_norm": True,
            },
            "scheduler": {
                "type": "LinearWarmupCosineAnnealing",
                "total_steps": total,
                "peak_step": r.warmup * an_epoch,
            },
            "interval": "step",
        },
    )
    trainer = lightning.Trainer(
        max_epochs=r.epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[TeacherStudentCallback()],
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(images, r.batch_size, shuffle=True, drop_last=True)
    trainer.fit(module, datamodule=spt.data.DataModule(train=loader, val=loader))
    return backbone  # the student, where there is a teacher


if __name__ == "__main__":
    run_jobs(train)
