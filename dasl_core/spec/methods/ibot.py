"""Settings of iBOT."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    FIXES_SHAPES,
    Outputs,
    Recipe,
    ResolveContext,
    range_of_areas,
)
from dasl_core.spec.methods.dino import ResolvedSelfDistillationConfig, SelfDistillationConfig
from dasl_core.spec.problems import FieldProblem, Problems
from dasl_core.spec.recipes import AtMostAllEpochs, Authors

LARGEST_OUT_DIM = 8192
# Below it, the exponentials of Sinkhorn-Knopp underflow float32.
SINKHORN_TEMPERATURE = 0.03


class IBOT(SelfDistillationConfig):
    """iBOT (Zhou et al., ICLR 2022, https://arxiv.org/abs/2111.07832), with the choices of DINOv2.

    DINO's loss on class tokens, and the same for patches: the student, from whose global views blocks of patches
    are hidden, predicts what its EMA teacher computes for them. DAR and SEC act on the student's
    bottleneck of the class tokens of the two global views. Needs a Vision Transformer with a class token.
    `{centering: sinkhorn, koleo: 0.1, shared_head: false}` is the objective of DINOv2 (Oquab et al., TMLR 2024).
    `train.compile` only affects evaluations.
    """

    # The authors' command for a ViT-S (bytedance/ibot, README).
    recipe: ClassVar[Recipe] = Recipe(
        lr={"adamw": 5e-4},
        weight_decay={"adamw": (0.04, 0.4)},
        clip=3.0,
        clip_each=True,
        crop_scale=(0.25, 1.0),
        blur=(1.0, 0.1, 0.5),
        solarize=(0.0, 0.2, 0.0),
        settings={"method.local_scale": (0.05, 0.25)},
    )
    # bytedance/ibot, README.md and main_ibot.py: a ViT-S. The arguments of larger ViTs were not at hand.
    authors: ClassVar[Authors | None] = Authors(
        families=("vit",),
        settings={
            "method.hidden_dim": 2048,
            "method.out_dim": 8192,
            "method.local_scale": (0.05, 0.25),
            "method.teacher_temperature": 0.07,
            "method.teacher_temperature_epochs": AtMostAllEpochs(30),
            "method.teacher_momentum": 0.996,
            "augment.crop_scale": (0.25, 1.0),
            "augment.interpolation": "bicubic",
            "augment.saturation": 0.5,
            "backbone.drop_path": 0.1,
            "train.optimizer.name": "adamw",
            # 1e-6 at their batch of 1024.
            "train.optimizer.lr_end": 1e-6 / 0.002,
            "train.warmup_epochs": AtMostAllEpochs(10),
        },
    )

    name: Literal["ibot"] = "ibot"
    local_crops: int = Field(10, ge=0, le=98)
    """Number of local (small) crops of each image, in addition to the two global views; they are not masked."""
    local_scale: tuple[float, float] | Auto = "auto"
    """Smallest and largest fraction of the image area that a local crop keeps. "auto": 0.05 to 0.25."""
    out_dim: Annotated[Outputs | Auto, FIXES_SHAPES] = "auto"
    """Number of outputs of each head. "auto": DINO's, at most 8192, the paper's value for ImageNet; DINOv2
    has 65,536."""
    shared_head: Annotated[bool, FIXES_SHAPES] = True
    """One head for class tokens and patches, as in the paper; DINOv2's large models have two."""
    mask_probability: float = Field(0.5, ge=0, le=1)
    """Probability that patches of a global view are hidden."""
    mask_ratio: tuple[float, float] = (0.1, 0.5)
    """Smallest and largest fraction of the patches that are hidden in such a view, in rectangular blocks."""
    centering: Literal["ema", "sinkhorn"] = "ema"
    """What keeps the teacher's outputs from collapsing: "ema" subtracts a moving mean, "sinkhorn" makes the
    batch use all outputs evenly (DINOv2)."""
    koleo: float = Field(0.0, ge=0, le=1000)
    """Weight of KoLeo, which spreads the class tokens of each global view; 0.1 in DINOv2."""

    @field_validator("mask_ratio")
    @classmethod
    def _check_ratio(cls, ratio: tuple[float, float]) -> tuple[float, float]:
        return range_of_areas(ratio)

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return what keeps patches from being hidden, and settings without effect."""
        problems = Problems(super().check(context))
        patch = context.patch_size or context.token_patch_size
        if patch is None or context.token_patch_size is None:
            problems.append(_without_tokens(context))
        elif self.mask_ratio[1] * (context.image_size // patch) ** 2 < 1:
            problems.add(
                "method.mask_ratio",
                f"masks none of the {(context.image_size // patch) ** 2} patches of an image",
                str(list(self.mask_ratio)),
                "larger ratios, or a larger backbone.image_size",
            )
        if self.centering == "sinkhorn":
            if self.center_momentum != type(self).model_fields["center_momentum"].default:
                cause, instead = "method.centering: sinkhorn", "method.centering: ema"
                problems.add_no_effect(
                    "method.center_momentum", self.center_momentum, cause, instead
                )
            for field in ("teacher_temperature", "teacher_temperature_start"):
                value = getattr(self, field)
                if value != "auto" and value < SINKHORN_TEMPERATURE:
                    problems.add(
                        f"method.{field}",
                        "is too low for method.centering: sinkhorn in float32",
                        str(value),
                        f"at least {SINKHORN_TEMPERATURE}",
                    )
        return problems

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        values = super().automatic(context)
        return values | {"out_dim": min(LARGEST_OUT_DIM, values["out_dim"])}


def _without_tokens(context: ResolveContext) -> FieldProblem:
    """Describe what the backbone lacks."""
    if context.class_token:
        message = "has a class token, but no patch tokens that ibot could mask"
    else:
        message = "has no class token, which ibot trains beside the patch tokens"
    expected = "a Vision Transformer with a class token, such as 'vit_small_patch16_224'"
    return FieldProblem("backbone.name", message, context.backbone, expected)


class ResolvedIBOT(ResolvedSelfDistillationConfig, IBOT):
    """iBOT's settings without "auto"."""
