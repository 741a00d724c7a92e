"""Settings of DINO."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    FIXES_SHAPES,
    EMATeacherConfig,
    EmbeddingWidth,
    Epochs,
    Momentum,
    MultiCropConfig,
    Outputs,
    Recipe,
    ResolveContext,
    ResolvedMultiCropConfig,
    Temperature,
    Width,
)
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByEpochs, ByFamily, ByFeatures

CLIP = {"norm": 3.0, "each": True}


def _vit(vanilla: Any, small: Any, base: Any) -> ByEpochs:
    """Values of a ViT: of any in 100 epochs, of a ViT-S in 300, and of a ViT-B in 400."""
    return ByEpochs({100: vanilla, 300: ByFeatures({384: small, 768: base})})


class SelfDistillationConfig(MultiCropConfig, EMATeacherConfig):
    """Settings of DINO, and of methods that add to its loss."""

    local_crops: int = Field(8, ge=0, le=98)
    """Number of local (small) crops of each image, in addition to the two global views."""
    bottleneck_dim: Annotated[EmbeddingWidth, FIXES_SHAPES] = 256
    """Width of the head's bottleneck, which DAR and SEC use."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the head's hidden layers. "auto": 2048, at most 8 times the width of the backbone's features."""
    out_dim: Annotated[Outputs | Auto, FIXES_SHAPES] = "auto"
    """Number of outputs of the head. "auto": the largest power of two that is at most 1/16 of the number of
    training images, from 1024 to 65,536, the paper's value for ImageNet."""
    student_temperature: Temperature = 0.1
    """Divides the student's outputs before the softmax."""
    teacher_temperature: Temperature | Auto = "auto"
    """Divides the teacher's outputs after its warm-up. "auto": 0.07, or `teacher_temperature_start` in a run
    of fewer than 10,000 steps, because targets that soften before there are features become uniform."""
    teacher_temperature_start: Temperature = 0.04
    """Divides the teacher's outputs in the first epoch."""
    teacher_temperature_epochs: Epochs | Auto = "auto"
    """Epochs in which the teacher's temperature grows linearly. "auto": 30% of the epochs, at most 30."""
    center_momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of the moving mean of the teacher's outputs, which is subtracted from them."""
    teacher_momentum: Momentum | Auto = "auto"
    """Momentum of the EMA teacher at the first step; it grows to 1 along a half cosine. "auto": 0.996, or 1 -
    40/steps (at least 0.97) in a run of fewer than 10,000 steps, so that the teacher leaves its random
    weights in time."""
    freeze_last_layer_epochs: int = Field(1, ge=0, le=100_000)
    """Epochs in which the head's last layer keeps its initial weights."""
    keep: Literal["student", "teacher"] = "teacher"
    """Which network's backbone is evaluated and exported."""

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        steps = context.epochs * max(1, context.train_images // context.batch_size)
        fitting = 2 ** (max(1, context.train_images // 16).bit_length() - 1)
        return super().automatic(context) | {
            "hidden_dim": min(2048, 8 * context.features),
            "out_dim": min(65_536, max(1024, fitting)),
            # Targets that soften before the student has features become uniform and stay so; the
            # authors' code, too, starts at a constant 0.04 and calls more an option for long runs.
            "teacher_temperature": 0.07 if steps >= 10_000 else self.teacher_temperature_start,
            "teacher_temperature_epochs": min(30, round(0.3 * context.epochs)),
            # The paper's 0.996 looks back over 250 steps of 10^5. A training of a few hundred steps
            # would end before its teacher had left the random weights.
            "teacher_momentum": round(min(0.996, max(0.97, 1 - 40 / steps)), 4),
        }


class ResolvedSelfDistillationConfig(ResolvedMultiCropConfig):
    """A head and a teacher with known settings."""

    hidden_dim: Width
    out_dim: Outputs
    teacher_temperature: Temperature
    teacher_temperature_epochs: Epochs
    teacher_momentum: Momentum


class DINO(SelfDistillationConfig):
    """DINO (Caron et al., ICCV 2021, https://arxiv.org/abs/2104.14294).

    A student that sees many crops of an image learns the output that its EMA teacher computes for the two
    global views. DAR and SEC act on the student's bottleneck for these two.
    """

    recipe: ClassVar[Recipe] = Recipe(
        # Beside AdamW, for ViTs, what the authors' code gives for a ResNet-50 and SGD.
        lr={"adamw": 5e-4, "sgd": 0.03},
        weight_decay={"adamw": (0.04, 0.4), "sgd": 1e-4},
        clip=3.0,
        clip_each=True,
        crop_scale=(0.4, 1.0),
        blur=(1.0, 0.1, 0.5),
        solarize=(0.0, 0.2, 0.0),
        settings={"method.norm_last_layer": True},
    )
    # facebookresearch/dino, README.md and main_dino.py; for a ViT-B the arguments of its published weights.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet", "vit"),
        settings={
            "method.hidden_dim": 2048,
            "method.out_dim": 65_536,
            "method.norm_last_layer": ByFamily(vit=_vit(True, False, True), other=True),
            "method.local_scale": ByFamily(
                vit=_vit((0.05, 0.4), (0.05, 0.4), (0.05, 0.25)), other=(0.05, 0.14)
            ),
            "method.teacher_temperature": ByFamily(vit=_vit(0.04, 0.07, 0.07), other=0.04),
            "method.teacher_temperature_epochs": ByFamily(vit=_vit(0, 30, 50), other=0),
            "method.teacher_momentum": 0.996,
            "augment.crop_scale": ByFamily(
                vit=_vit((0.4, 1.0), (0.4, 1.0), (0.25, 1.0)), other=(0.14, 1.0)
            ),
            "augment.interpolation": "bicubic",
            "augment.saturation": 0.5,
            "backbone.drop_path": ByFamily(vit=0.1, other=0.0),
            "train.optimizer.name": ByFamily(vit="adamw", other="sgd"),
            "train.optimizer.base_lr": ByFamily(vit=_vit(5e-4, 5e-4, 7.5e-4), other=0.03),
            # 1e-6 at their batch of 512; of a ViT-B 2e-6 at 1024.
            "train.optimizer.lr_end": ByFamily(
                vit=_vit(1e-6 / 0.001, 1e-6 / 0.001, 2e-6 / 0.003), other=1e-6 / 0.06
            ),
            "train.clip": ByFamily(vit=_vit(CLIP, CLIP, {"norm": 0.3, "each": True}), other=CLIP),
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )

    name: Literal["dino"] = "dino"
    head_batch_norm: Annotated[bool, FIXES_SHAPES] = False
    """Batch normalization in the head's hidden layers; it helps a small ResNet with random weights."""
    norm_last_layer: Annotated[bool | Auto, FIXES_SHAPES] = "auto"
    """Keep the rows of the head's last layer at length 1. false lets their lengths learn, which the authors
    do for a ViT-S; less stable. "auto": true."""


class ResolvedDINO(ResolvedSelfDistillationConfig, DINO):
    """DINO's settings without "auto"."""

    norm_last_layer: bool = True
