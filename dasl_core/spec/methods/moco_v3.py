"""Settings of MoCo v3."""

from typing import Annotated, Any, ClassVar, Literal

from dasl_core.spec.base import Auto
from dasl_core.spec.methods.config import (
    FIXES_SHAPES,
    EMATeacherConfig,
    EmbeddingWidth,
    Momentum,
    Recipe,
    ResolveContext,
    ResolvedTwoViewConfig,
    Temperature,
    TwoViewConfig,
    Width,
)
from dasl_core.spec.problems import FieldProblem
from dasl_core.spec.recipes import AtMostAllEpochs, Authors, ByEpochs, ByFamily

Positions = Literal["learned", "sincos"]
InitialWeights = Literal["timm", "xavier"]


class MoCoV3(TwoViewConfig, EMATeacherConfig):
    """MoCo v3 (Chen, Xie and He, ICCV 2021, https://arxiv.org/abs/2104.02057).

    The query of one view must identify the key of the other view among the keys that a momentum encoder
    computes for the whole batch. DAR and SEC act on the queries.
    """

    recipe: ClassVar[Recipe] = Recipe(
        lr={"lars": 0.3, "adamw": 1.5e-4},
        weight_decay={"lars": 1.5e-6, "adamw": 0.1},
        blur=(1.0, 0.1),
        solarize=(0.0, 0.2),
        settings={
            "method.temperature": 0.2,
            "method.teacher_momentum": 0.99,
            "method.positions": "learned",
            "method.initial_weights": "timm",
        },
    )
    # facebookresearch/moco-v3, CONFIG.md and main_moco.py.
    authors: ClassVar[Authors | None] = Authors(
        families=("resnet", "vit"),
        settings={
            "method.separate_views": True,
            "method.positions": ByFamily(vit="sincos", other="learned"),
            "method.initial_weights": ByFamily(vit="xavier", other="timm"),
            "method.temperature": ByFamily(vit=0.2, other=1.0),
            "method.hidden_dim": 4096,
            "method.teacher_momentum": ByFamily(
                vit=0.99, other=ByEpochs({100: 0.99, 300: 0.99, 1000: 0.996})
            ),
            "augment.crop_scale": ByFamily(vit=(0.08, 1.0), other=(0.2, 1.0)),
            "augment.saturation": 0.5,
            "train.optimizer.name": ByFamily(vit="adamw", other="lars"),
            "train.optimizer.base_lr": ByFamily(
                vit=1.5e-4, other=ByEpochs({100: 0.6, 300: 0.3, 1000: 0.3})
            ),
            "train.optimizer.weight_decay": ByFamily(
                vit=0.1, other=ByEpochs({100: 1e-6, 300: 1e-6, 1000: 1.5e-6})
            ),
            "train.warmup_epochs": ByFamily(vit=AtMostAllEpochs(40), other=AtMostAllEpochs(10)),
        },
    )

    name: Literal["moco_v3"] = "moco_v3"
    temperature: Temperature | Auto = "auto"
    """Divides the cosine similarities. "auto": 0.2."""
    projection_dim: Annotated[EmbeddingWidth, FIXES_SHAPES] = 256
    """Width of queries and keys."""
    hidden_dim: Annotated[Width | Auto, FIXES_SHAPES] = "auto"
    """Width of the hidden layers of projector and predictor. "auto": 4096, at most 12 times the width of the
    backbone's features."""
    freeze_patch_projection: bool = True
    """Keep a ViT's first layer at its random weights, which stabilizes training."""
    positions: Positions | Auto = "auto"
    """Position embeddings of a ViT: "learned", as in timm, or "sincos": the fixed sines and cosines of the
    authors' code. "auto": "learned"."""
    initial_weights: InitialWeights | Auto = "auto"
    """Random weights of a ViT: "timm", or "xavier": those of the authors' code, which
    `freeze_patch_projection` then keeps. "auto": "timm"."""
    teacher_momentum: Momentum | Auto = "auto"
    """Momentum of the momentum encoder at the first step; it grows to 1 along a half cosine. "auto": 0.99."""

    def check(self, context: ResolveContext) -> list[FieldProblem]:
        """Return a problem when a start of a ViT has no effect, or would replace given weights."""
        cause = ""
        if context.patch_size is None:
            cause = f"has no effect on {context.backbone}, which is no ViT"
        elif context.starts_from_weights:
            cause = "would replace weights of backbone.pretrained"
        causes = {"positions": cause, "initial_weights": cause}
        if not cause and not context.learned_positions:
            causes["positions"] = (
                f"replaces learned positions, which {context.backbone} does not have"
            )
        usual = {"positions": "learned", "initial_weights": "timm"}
        return [
            FieldProblem(f"method.{name}", cause, repr(given), repr(usual[name]))
            for name, cause in causes.items()
            if (given := getattr(self, name)) not in ("auto", usual[name]) and cause
        ]

    def automatic(self, context: ResolveContext) -> dict[str, Any]:
        return {"hidden_dim": min(4096, 12 * context.features)}


class ResolvedMoCoV3(ResolvedTwoViewConfig, MoCoV3):
    """MoCo v3's settings without "auto"."""

    hidden_dim: Width
    temperature: Temperature
    teacher_momentum: Momentum
    positions: Positions = "learned"
    initial_weights: InitialWeights = "timm"
