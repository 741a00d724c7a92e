"""The part of a checkpoint that people use: a backbone that timm loads, and a card that says how."""

import json
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import nn

from dasl_core.data.augment import statistics
from dasl_core.models.backbone import stem_lines, timm_arguments
from dasl_core.spec import BACKBONES, JobSpec

WEIGHTS, MODEL, METRICS, CARD = "backbone.safetensors", "model.json", "metrics.json", "README.md"


def export_backbone(
    backbone: nn.Module, spec: JobSpec, metrics: dict[str, Any], folder: Path
) -> None:
    """Write weights, `model.json`, `metrics.json` and the model card into `folder`.

    Args:
        backbone: as `build_backbone` made it; saved in float32.
        spec: the resolved spec of the run.
        metrics: step, epoch, evaluations and losses; JSON-ready.
    """
    weights = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in backbone.state_dict().items()
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    mean, std = statistics(spec.backbone.in_channels)
    model = {
        "timm": timm_arguments(spec.backbone),
        "stem": stem_lines(spec.backbone),
        "num_features": BACKBONES[spec.backbone.name].features,
        "preprocessing": {
            "image_size": spec.backbone.image_size,
            "channels": spec.backbone.in_channels,
            "crop": "largest central square",
            "mean": mean,
            "std": std,
        },
        "timm_version": timm.__version__,
        "torch_version": torch.__version__,
    }
    _write_json(folder / MODEL, model)
    _write_json(folder / METRICS, metrics)
    (folder / CARD).write_text(model_card(spec, model, metrics), encoding="utf-8")


def model_card(spec: JobSpec, model: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Markdown: how to load, what was measured, every setting of the run."""
    stem = "".join(f"{line}\n" for line in model["stem"])
    needs_torch = "import torch\n" if model["stem"] else ""
    preprocessing = model["preprocessing"]
    rows = [
        f"| {evaluation['subject']} | {evaluation['epoch']:g} | {name} | {value:.4f} |"
        for evaluation in metrics["evaluations"]
        for name, value in evaluation["metrics"].items()
        if evaluation in (metrics["evaluations"][-1], *metrics["evaluations"][:2])
    ]
    return f"""# {spec.name}

`{spec.backbone.name}` pretrained with {spec.method.name}{_regularizers(spec)} on `{spec.dataset}`,
{metrics["epoch"]:g} of {spec.train.epochs} epochs. The weights are yours.

## Load

```python
import json
{needs_torch}import timm
from safetensors.torch import load_file

model = timm.create_model(**json.load(open("model.json"))["timm"])
{stem}model.load_state_dict(load_file("backbone.safetensors"))
model.eval()
```

Images: {preprocessing["channels"]} channels, largest central square, resized to
{preprocessing["image_size"]} x {preprocessing["image_size"]}, values in [0, 1] less mean {preprocessing["mean"]},
divided by {preprocessing["std"]}. `model(images)` gives features of width {model["num_features"]}.

## Measured on held-out images

| subject | epoch | metric | value |
|---|---|---|---|
{chr(10).join(rows)}

All evaluations and the loss of every epoch are in `metrics.json`.

## Settings

```json
{spec.model_dump_json(indent=2)}
```
"""


def _regularizers(spec: JobSpec) -> str:
    names = [name for name, part in (("DAR", spec.dar), ("SEC", spec.sec)) if part is not None]
    return " and ".join(["", *names]).replace(" and ", " with ", 1) if names else ""


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
