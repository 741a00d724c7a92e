"""The timm models that can be trained, as facts that need no torch to know.

`backbones.json` is made by `python -m dasl_core.models.catalog`; a test compares it with timm.
"""

import json
from importlib.resources import files
from typing import Literal

from dasl_core.spec.base import SpecModel


class BackboneInfo(SpecModel):
    """One timm model.

    Attributes:
        family: which stem rules hold.
        parameters: of the network without classifier, RGB input, at its own image size.
        features: width of the pooled feature.
        image_size: the size it was published at, in pixels a side.
        patch_size: ViT only, in pixels.
    """

    family: Literal["resnet", "vit"]
    parameters: int
    features: int
    image_size: int
    patch_size: int | None


BACKBONES: dict[str, BackboneInfo] = {
    name: BackboneInfo.model_validate(facts)
    for name, facts in json.loads(
        files("dasl_core.spec").joinpath("backbones.json").read_text(encoding="utf-8")
    ).items()
}
