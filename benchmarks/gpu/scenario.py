"""What is trained, at which size."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from benchmarks import own_run


@dataclass(frozen=True)
class Scenario:
    """A method and a backbone, with their sizes.

    Attributes:
        name: for tables.
        backbone: timm's name of it.
        local_size: pixels a side of local crops.
        dino_head: hidden width, width of the bottleneck, and number of outputs.
    """

    name: str
    method: Literal["simclr", "dino"]
    backbone: str
    image_size: int = 224
    batch_size: int = 256
    local_crops: int = 8
    local_size: int = 96
    dino_head: tuple[int, int, int] = (2048, 256, 65_536)

    def settings(self, device: torch.device, cores: int, **more: Any) -> dict[str, Any]:
        """Return the fields of a job spec, and `more` of them."""
        on_gpu = device.type == "cuda"
        return {
            "method": self._method(),
            "backbone": {
                "name": self.backbone,
                "image_size": self.image_size,
                "stem": "standard",
            },
            # DINO's default views are those of its paper, and of lightly's `DINOTransform`.
            "augment": own_run.SIMCLR_VIEWS if self.method == "simclr" else {},
            "train": {
                "batch_size": self.batch_size,
                "epochs": 1000,
                "precision": "bf16" if on_gpu else "fp32",
                # As jobs resolve it for ImageNet; for the few images here they would take "exact".
                "image_cache": "jpeg",
            },
            "resources": {"gpus_per_worker": int(on_gpu), "cpus_per_worker": cores},
        } | more

    def _method(self) -> dict[str, Any]:
        if self.method == "simclr":
            return {"name": "simclr", "projection_dim": 128, "temperature": 0.5}
        hidden, bottleneck, outputs = self.dino_head
        return {
            "name": "dino",
            "hidden_dim": hidden,
            "bottleneck_dim": bottleneck,
            "out_dim": outputs,
            "local_crops": self.local_crops,
            "local_size": self.local_size,
        }


SCENARIOS = (
    Scenario("ResNet-50, SimCLR", "simclr", "resnet50"),
    Scenario("ViT-S/16, DINO", "dino", "vit_small_patch16_224"),
)


def tiny(scenario: Scenario) -> Scenario:
    """Return the same with a tiny network, for a test on a CPU."""
    return replace(
        scenario,
        backbone="test_resnet" if scenario.method == "simclr" else "test_vit",
        image_size=32,
        batch_size=4,
        local_crops=2,
        local_size=16,
        dino_head=(32, 16, 64),
    )
