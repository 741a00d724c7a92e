"""The model card: network, training, data, evaluation, and how to load the backbone."""

from typing import Any

from dasl_core.spec import ResolvedJobSpec
from dasl_core.text import counted
from dasl_core.vocabulary import TRAINED


def model_card(spec: ResolvedJobSpec, model: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Write the README.md of a checkpoint, with the header that Hugging Face reads.

    Args:
        model: the content of `model.json`.
        metrics: the content of `metrics.json`. If it has "data", the card describes the images; see
            `export_backbone`.
    """
    library = None if spec.backbone.is_own else "timm"
    return _card(spec, model, metrics, _load_checkpoint(model), library=library)


def hub_card(spec: ResolvedJobSpec, model: dict[str, Any], metrics: dict[str, Any]) -> str:
    """Write the README.md of a folder in Hugging Face's layout."""
    images = model["preprocessing"]
    # timm's transform requires 8-bit images in color or gray.
    fits = "window" not in images and images["channels"] in (1, 3)
    return _card(spec, model, metrics, LOAD_HUB_FOLDER + (TIMM_TRANSFORM if fits else "```\n"))


def transformers_card(
    spec: ResolvedJobSpec, model: dict[str, Any], metrics: dict[str, Any], features: str
) -> str:
    """Write the README.md of a folder in the layout of transformers.

    Args:
        features: Python expression of the backbone's features from `tokens`, the last hidden state.
    """
    images = model["preprocessing"]
    unscaled = ""
    if "window" in images:
        low, high = images["window"]
        unscaled = (
            f" The processor does not clamp: clip raw values to [{low:g}, {high:g}] before, and pass arrays with "
            '`input_data_format="channels_first"`.'
        )
    load = f"""```python
from transformers import AutoImageProcessor, AutoModel

network = AutoModel.from_pretrained(".").eval()
processor = AutoImageProcessor.from_pretrained(".")


def model(images):
    tokens = network(images).last_hidden_state
    return {features}
```

`processor(pictures, return_tensors="pt")["pixel_values"]` gives `images`.{unscaled}
"""
    return _card(spec, model, metrics, load, library="transformers")


LOAD_HUB_FOLDER = """```python
import timm

# "local-dir:" reads safetensors from timm 1.0.26 on. After an upload: "hf-hub:USER/NAME".
model = timm.create_model("local-dir:.", pretrained=True)
model.eval()
"""

TIMM_TRANSFORM = """
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
```
"""


def loading_lines(stem: list[str] | None) -> list[str]:
    """Return the lines that load a checkpoint's backbone in its folder.

    Args:
        stem: lines that change timm's stem, as in `model.json`; None for a network that is not timm's, which must
            exist as `model`.
    """
    build = ["from safetensors.torch import load_file", ""]
    if stem is not None:
        build = ["import json", *["import torch"] * bool(stem), "import timm", *build]
        build += ['about = json.load(open("model.json"))']
        build += ['model = timm.create_model(**about["timm"])']
        # In the folder of another checkpoint, these lines could load another network without an error.
        build += stem or ['assert not about["stem"], about["stem"]']
    return [*build, 'model.load_state_dict(load_file("backbone.safetensors"))', "model.eval()"]


def _certificate(metrics: dict[str, Any]) -> str:
    """Say how to check the run; nothing for a checkpoint without a certificate."""
    digest = metrics.get("certificate")
    if digest is None:
        return ""
    return f"""
`dasl verify` checks the run by its `certificate.json`, which has the SHA-256
`{digest}`."""


def _load_checkpoint(model: dict[str, Any]) -> str:
    is_own = model["timm"] is None
    where = "With timm and safetensors, in this folder:"
    if is_own:
        where = """The network is not timm's, and this folder has only its weights: its architecture is in the code that
trained it. Build it there as `model`, then, with safetensors, in this folder:"""
    lines = "\n".join(loading_lines(None if is_own else model["stem"]))
    return f"""{where}

```python
{lines}
```
{_load_head(model)}{_onnx(model)}{_feed(model["preprocessing"])}"""


def _feed(images: dict[str, Any]) -> str:
    """Feed an image file as the evaluation does; nothing for images that Pillow cannot hold."""
    if "window" in images or images["channels"] not in (1, 3):
        return ""
    mode, side = "L" if images["channels"] == 1 else "RGB", images["image_size"]
    bleed = round((1 - images["crop_pct"]) / 2, 9)
    return f"""
An image file, preprocessed with torchvision as for the evaluation (composite a transparent image on white first):

```python
import torch
from PIL import Image, ImageOps
from torchvision.transforms.functional import normalize, to_tensor

picture = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("{mode}")
picture.thumbnail(({2 * side}, {2 * side}), Image.Resampling.BILINEAR)
picture = ImageOps.fit(picture, ({side}, {side}), Image.Resampling.BILINEAR, bleed={bleed})
images = normalize(to_tensor(picture), {images["mean"]}, {images["std"]})[None]
with torch.no_grad():
    features = model(images)
```

"""


def _onnx(model: dict[str, Any]) -> str:
    """Describe how to load `backbone.onnx`, or how to create it from a network of timm's."""
    onnx = model["onnx"]
    if onnx is None:
        is_own = model["timm"] is None
        return "" if is_own else "\nONNX and other formats: `dasl export FOLDER --format onnx`.\n"
    if "error" in onnx:
        return f"\n{' '.join(onnx['error'].split())[:500]}\n"
    return f"""
With onnxruntime (opset {onnx["opset"]}, any batch size; on random images it differed from torch by
{onnx["largest_difference_from_torch"]:.1g} of the largest feature):

```python
import onnxruntime

session = onnxruntime.InferenceSession("{onnx["file"]}")
features = session.run(["{onnx["output"]}"], {{"{onnx["input"]}": images}})[0]
```
"""


def _load_head(model: dict[str, Any]) -> str:
    head = model["head"]
    if head is None:
        return ""
    lines = "\n".join(head["lines"])
    return f"""
After these lines, with the embedding layer, whose L2-normalized output is the embedding:

```python
import torch

{lines}
head.load_state_dict(load_file("{head["file"]}"))
head.eval()


def embed(images):
    return torch.nn.functional.normalize(head(model(images)), dim=-1)
```
"""


def _card(
    spec: ResolvedJobSpec,
    model: dict[str, Any],
    metrics: dict[str, Any],
    load: str,
    *,
    library: str | None = "timm",
) -> str:
    images = model["preprocessing"]
    side = images["image_size"]
    versions = ", ".join(f"{name} {number}" for name, number in model["versions"].items())
    network, start = "A network outside timm", "the weights that it was given with"
    if not spec.backbone.is_own:
        weights = spec.backbone.pretrained
        network = f"`{spec.backbone.name}`"
        start = "random weights" if weights is None else f"the weights of `{weights}`"
    regularizers = [settings.title for settings in spec.active_regularizers().values()]
    terms = f" with {' and '.join(regularizers)}" if regularizers else ""
    crop = spec.evaluate.crop_pct
    square = f"the central square of {crop:g} of the shorter side"
    if crop == 1:
        square = "the largest central square"
    # Only the last checkpoint has a verdict.
    verdict = metrics.get("verdict")
    judged = "" if verdict is None else f"Verdict: {verdict['message']}\n\n"
    return f"""{_header(spec, library, regularizers)}
# {spec.name}

{network} pretrained with {spec.method.name}{terms} on `{spec.dataset}`,
{metrics["epoch"]:g} of {counted(spec.train.epochs, "epoch")}, from {start}. The weights are yours.

## Load

{load}
`images` is float32, (batch, {images["channels"]}, {side}, {side}): {square} of each image,
resized to {side} x {side} ({images["interpolation"]}, with antialiasing, as Pillow does), {_values(images)}. No exported network does this itself.
Images whose longer side has more than {2 * side} px were first scaled down to that, in training and evaluation.
`model(images)` gives features of width {model["num_features"]}.

## Measured on held-out images

{judged}{_results(metrics)}

All evaluations and the loss of every epoch are in `metrics.json` of the checkpoint.{_certificate(metrics)}

## Data

{_data(spec, metrics.get("data"))}

## Training

{_table(_training(spec, metrics, versions))}

## Settings

```json
{spec.model_dump_json(indent=2)}
```
"""


def _values(images: dict[str, Any]) -> str:
    """Describe the conversion of pixels; `images` is the preprocessing in `model.json`."""
    channels = images["channels"]
    mean, std = f"mean {images['mean']}", f"{images['std']}"
    bands = f"its {channels} bands in the order of the file, "
    if channels in (1, 3):
        bands = "color as its luminance, " if channels == 1 else "gray repeated in all 3 channels, "
    if "window" not in images:
        return f"{bands}values in [0, 1] minus {mean},\ndivided by {std}"
    low, high = images["window"]
    converted = {
        "uint16": ". For a file of 8 bits x is its values times 257",
        "float32": ". For a file of 8 or 16 bits x is its values\ndivided by 255 or 65535",
    }
    return (
        f"{bands}raw values x\n(of DICOM after slope and intercept) as `(clip((x - {low:g}) / ({high:g} - {low:g}), 0, 1) - mean) / std`, with {mean}\n"
        f"and std {std} of each channel{converted.get(images['type'], '')}"
    )


def _header(spec: ResolvedJobSpec, library: str | None, regularizers: list[str]) -> str:
    libraries = [] if library is None else [library]
    names = ["image-feature-extraction", *libraries, spec.method.name, *regularizers]
    tags = "\n".join(f"- {name.lower()}" for name in names)
    line = "" if library is None else f"library_name: {library}\n"
    return f"""---
{line}pipeline_tag: image-feature-extraction
# license: the weights are yours, and so is the choice
tags:
{tags}
---
"""


def _results(metrics: dict[str, Any]) -> str:
    """Build a table of each subject's last evaluation: the baselines and the trained backbone."""
    last = {evaluation["subject"]: evaluation for evaluation in metrics["evaluations"]}
    if not last:
        return "No evaluation was recorded."
    names = dict.fromkeys(name for evaluation in last.values() for name in evaluation["metrics"])
    titles = {"raw": "raw pixels"}
    for subject in (subject for subject in TRAINED if subject in last):
        epoch = f"epoch {last[subject]['epoch']:g}"
        titles[subject] = f"{subject}, {epoch}" if "embedding" in last else epoch
    rows = [
        ["metric", *(titles.get(subject, subject) for subject in last)],
        ["---"] * (len(last) + 1),
    ]
    for name in names:
        values = (evaluation["metrics"].get(name) for evaluation in last.values())
        rows.append([name, *("" if value is None else f"{value:.4f}" for value in values)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _data(spec: ResolvedJobSpec, data: dict[str, Any] | None) -> str:
    holdout = spec.evaluate.holdout
    if spec.evaluate.dataset is not None:
        held_out = f"the data set `{spec.evaluate.dataset}`"
    elif holdout is None:
        held_out = "none"
    elif holdout.by == "class":
        held_out = f"{holdout.fraction:.4g} of the classes, chosen by a hash of their names"
    elif holdout.group is not None:
        held_out = (
            f"{holdout.fraction:.4g} of the images, in whole groups by {holdout.group.describe()}"
        )
    else:
        held_out = f"{holdout.fraction:.4g} of the images, chosen by a hash of their names"
    rows = {"data set": f"`{spec.dataset}`", "held out, never trained on": held_out}
    if data is not None:
        rows |= {
            "images": f"{data['images']:,}",
            "classes": "no labels" if data["classes"] is None else f"{data['classes']:,}",
            "trained on": f"{data['train_images']:,} images",
            "evaluated on": f"{data['held_out_images']:,} images",
        }
    return _table(rows)


def _training(spec: ResolvedJobSpec, metrics: dict[str, Any], versions: str) -> dict[str, str]:
    train, optimizer, workers = spec.train, spec.train.optimizer, spec.resources.workers
    rows = {"method": _settings(spec.method), "DAR": "none", "SEC": "none"}
    rows |= {settings.title: _settings(settings) for settings in spec.given_regularizers().values()}
    return rows | {
        "step": f"{metrics['step']:,}, epoch {metrics['epoch']:g} of {train.epochs}",
        "global batch": f"{train.batch_size} on {workers} worker{'s' if workers > 1 else ''}",
        "optimizer": _settings(optimizer),
        "precision": str(train.precision),
        "seed": str(train.seed),
        "versions": versions,
    }


def _settings(part: Any) -> str:
    """Format a part of the spec on one line: its name, if any, and every setting."""
    settings = part.model_dump(mode="json")
    name = settings.pop("name", None)
    rest = ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in settings.items()
    )
    return ": ".join(text for text in (name, rest) if text)


def _table(rows: dict[str, str]) -> str:
    cells = (f"| {key} | {value.replace('|', chr(92) + '|')} |" for key, value in rows.items())
    return "\n".join(["| | |", "|---|---|", *cells])
