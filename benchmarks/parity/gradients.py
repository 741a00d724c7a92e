"""One step of each method in the same network, on the same views: ``PYTHON -m benchmarks.parity.gradients``.

What no seed can tell: whether the libraries compute the same loss. Backbone and heads get the same random weights,
and the gradient at the backbone is compared with DASL's, by its length and its direction. `PYTHON` has all three
libraries (the peers' virtual environment may lie upon DASL's).
"""

import copy
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from stable_pretraining import Module
from torch import Tensor, nn

from benchmarks.machine import machine, write_results
from benchmarks.parity import dasl_run, lightly_run, stable_run
from benchmarks.parity.jobs import Job
from benchmarks.parity.recipe import METHODS, RECIPES
from dasl_core.methods import build_method
from dasl_core.methods.base import Step
from dasl_core.spec import DatasetFacts, JobSpec, resolve

RESULTS = Path(__file__).parents[1] / "results" / "parity_gradients.json"
IMAGES = 32
FACTS = DatasetFacts(num_images=4000, num_classes=None, median_size=28)


class Computed(NamedTuple):
    """A loss, and its gradient at the backbone."""

    loss: float
    gradient: Tensor


def main() -> None:
    """Compare, print a line for each, and write the results."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    r = RECIPES["fashion"]
    images = torch.rand(IMAGES, len(r.mean), r.image_size, r.image_size)
    views = [images + 0.3 * torch.randn_like(images) for _ in range(2)]
    rows = []
    for method in METHODS:
        ours, model = of_dasl(method, views)
        theirs = {
            "lightly": of_lightly(method, views, model, joint=False),
            "stable-pretraining": of_stable(method, views, model),
        }
        if method == "dino":
            theirs["lightly, both views in one pass"] = of_lightly(method, views, model, joint=True)
        for library, computed in theirs.items():
            row = {
                "method": method,
                "library": library,
                "loss": computed.loss,
                "loss_of_dasl": ours.loss,
                "length": (computed.gradient.norm() / ours.gradient.norm()).item(),
                "cosine": torch.cosine_similarity(
                    computed.gradient.double(), ours.gradient.double(), dim=0
                ).item(),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    versions = machine("torch", "timm", "lightly", "stable-pretraining")
    write_results(RESULTS, {"machine": versions, "rows": rows})


def of_dasl(method: str, views: list[Tensor]) -> tuple[Computed, nn.Module]:
    """Return what DASL computes, and its model as it was before."""
    settings = dasl_run.spec_of(Job("fashion", method, 0, "", ""))
    spec = resolve(JobSpec.model_validate(settings), FACTS)
    model = build_method(spec).train()
    without_biases(model)
    before = copy.deepcopy(model)
    step = Step(0, 1000, 125, torch.arange(IMAGES))
    loss = model.loss(model(views), step)
    return computed(loss, model.backbone), before


def of_lightly(method: str, views: list[Tensor], model: nn.Module, *, joint: bool) -> Computed:
    """Return what lightly computes from the weights of DASL's model.

    Args:
        joint: DINO's views share one pass, and so the statistics of batch normalization.
    """
    backbone = copied_backbone(model)
    theirs = lightly_run.build(method, backbone).train()
    predictors = [theirs.predictor] if isinstance(theirs, lightly_run.BYOL) else []
    copy_weights(model, [theirs.head, *predictors])
    theirs.update_teacher(0.0)
    if not joint:
        return computed(theirs.loss(views), backbone)
    assert isinstance(theirs, lightly_run.DINO)
    targets = theirs.targets([torch.cat(views)])[0].chunk(2)
    students = theirs.head(backbone(torch.cat(views))).chunk(2)
    return computed(theirs.criterion(list(targets), list(students)), backbone)


def of_stable(method: str, views: list[Tensor], model: nn.Module) -> Computed:
    """Return what stable-pretraining computes from the weights of DASL's model."""
    backbone = copied_backbone(model)
    theirs = Module(**stable_run.parts(method, backbone, RECIPES["fashion"])).train()
    taught = method in ("byol", "dino")
    heads = [theirs.projector.student if taught else theirs.projector]
    copy_weights(model, [*heads, theirs.predictor] if method == "byol" else heads)
    if taught:
        for pair in (theirs.backbone, theirs.projector):
            pair.teacher.load_state_dict(pair.student.state_dict())
    batch: dict[str, Any] = {"views": [{"image": view} for view in views]}
    if method == "dino":
        batch = {f"global_{number}": {"image": view} for number, view in enumerate(views)}
    return computed(theirs.forward(batch, stage="fit")["loss"], backbone)


def computed(loss: Tensor, backbone: nn.Module) -> Computed:
    """Return the loss and the gradient at the backbone."""
    gradients = torch.autograd.grad(loss, list(backbone.parameters()))
    return Computed(loss.item(), torch.cat([each.flatten() for each in gradients]))


def copied_backbone(model: nn.Module) -> nn.Module:
    """Return a copy of the model's backbone."""
    backbone = model.get_submodule("backbone")
    return copy.deepcopy(backbone)


def without_biases(model: nn.Module) -> None:
    """Set the biases of linear layers to 0: not all libraries have them before a batch normalization."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


def copy_weights(model: nn.Module, heads: list[nn.Module]) -> None:
    """Copy the matrices of the model's heads to those of another library, which are in the same order."""
    ours = [
        weight.detach()
        for name, weight in model.named_parameters()
        if weight.requires_grad and weight.ndim > 1 and not name.startswith("backbone.")
    ]
    theirs = list(itertools.chain.from_iterable(head.parameters() for head in heads))
    matrices = [weight for weight in theirs if weight.requires_grad and weight.ndim > 1]
    for source, target in zip(ours, matrices, strict=True):
        target.data.copy_(source)
    for head in heads:
        without_biases(head)


if __name__ == "__main__":
    main()
