"""A first spec for a folder of images, with advice in comments: `dasl init`."""

import hashlib
import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dasl_core.atomic import write_atomically
from dasl_core.data.index import DatasetIndex
from dasl_core.machine import usable_cores
from dasl_core.outputs import check_replaceable
from dasl_core.spec import JobSpec, ResolvedJobSpec, dump_yaml, estimate, resolve, seconds_on_cores
from dasl_core.spec.resolve.estimate import MOST_AROUND
from dasl_core.standalone.console import USER_ERRORS, fail, print_line
from dasl_core.standalone.images import ImageLocation, open_images, print_warnings
from dasl_core.text import describe_duplicates
from dasl_core.verdict import FEWEST_IMAGES
from dasl_core.vocabulary import DICOM_EXTENSIONS

# Largest fraction to hold out for a meaningful accuracy.
_LARGEST_HOLDOUT = 0.3
# On CPUs, the image size and then the epochs are reduced until the upper time estimate is at most this.
LONGEST_SECONDS = 600.0
# In pixels, largest first; below, photographs lose what is to be learned.
_SMALLER_SIZES = (160, 128, 96)
_WIDTH = 100


def init(location: ImageLocation, name: str, output: Path, *, force: bool) -> int:
    """Write a spec for the images of a data set to a file, with `force` over other content; return the exit code."""
    try:
        location.check_outside(output, output.parent)
        index, _ = open_images(location)
        print_warnings(index)
        text = FirstSpec(location, name, index, output).text()
        check_replaceable({output: hashlib.sha256(text.encode()).hexdigest()}, force=force)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, text.encode())
    except USER_ERRORS as error:
        return fail(error)
    print_line(
        f"{output}: a spec for {len(index):,} images. Its comments say what was found, and what to do."
    )
    return 0


class FirstSpec:
    """The spec for a data set, with comments; a SpecError if there are too few images for a job."""

    def __init__(
        self, location: ImageLocation, name: str, index: DatasetIndex, output: Path
    ) -> None:
        self._location, self._name, self._index, self._output = location, name, index, output
        self._gpus = torch.cuda.device_count()
        self._cores = usable_cores()
        self._has_dicom = any(
            path.rpartition(".")[2].lower() in DICOM_EXTENSIONS for path in index.paths
        )
        self._spec: dict[str, Any] = {"name": f"{name}-simclr"[:200], "dataset": name}
        if self._has_dicom:
            self._spec["augment"] = {"flip": 0.0}
        automatic = self._resolved()
        self._default_held_out = estimate(automatic, index.facts()).held_out_images
        # More than the default, if there are enough images.
        fraction = math.ceil(100 * FEWEST_IMAGES / len(index)) / 100
        if self._default_held_out < FEWEST_IMAGES and fraction <= _LARGEST_HOLDOUT:
            self._spec["evaluate"] = {"holdout": {"fraction": fraction}}
            automatic = self._resolved()
        self._automatic = chosen = automatic
        for size in _SMALLER_SIZES:
            if self._lasts(chosen) and size < chosen.backbone.image_size:
                self._spec["backbone"] = {"image_size": size}
                chosen = self._resolved()
        self._epochs = chosen.train.epochs
        bounds = self._seconds(chosen)
        if bounds is not None and bounds[1] > LONGEST_SECONDS:
            share = (LONGEST_SECONDS - MOST_AROUND) / (bounds[1] - MOST_AROUND)
            self._epochs = max(1, int(self._epochs * share))
        self._spec["train"] = {"epochs": self._epochs}
        self._chosen = self._resolved()

    def _resolved(self) -> ResolvedJobSpec:
        spec = JobSpec.model_validate(self._spec)
        return resolve(spec, self._index.facts(), has_gpus=self._gpus > 0)

    def _seconds(self, resolved: ResolvedJobSpec) -> tuple[float, float] | None:
        if self._gpus:
            return None
        return seconds_on_cores(estimate(resolved, self._index.facts()), resolved, self._cores)

    def _lasts(self, resolved: ResolvedJobSpec) -> bool:
        """Whether a job takes too long for a first one, or may."""
        bounds = self._seconds(resolved)
        return bounds is not None and bounds[1] > LONGEST_SECONDS

    def text(self) -> str:
        """Return the content of the file."""
        resolved = self._chosen
        parts = [
            *map(_comment, self._usage()),
            "#",
            *_comments(self._image_notes()),
            "",
            dump_yaml({"name": self._spec["name"], "dataset": self._spec["dataset"]}),
            "",
            *_comments(self._method()),
            dump_yaml({"method": {"name": resolved.method.name}}),
            "",
            *_comments(self._backbone()),
            dump_yaml(
                {"backbone": {"name": resolved.backbone.name} | self._spec.get("backbone", {})}
            ),
            "",
            *_comments(self._augment()),
            dump_yaml({"augment": {"flip": resolved.augment.flip}}),
            "",
            *self._evaluation(),
            *_comments(self._training()),
            dump_yaml({"train": {"epochs": self._epochs}}),
        ]
        return "\n".join(parts) + "\n"

    def _usage(self) -> Iterator[str]:
        images, spec = shlex.quote(self._location.uri), shlex.quote(str(self._output))
        split = f" --split {shlex.quote(self._location.split)}" if self._location.split else ""
        yield f"Written by: dasl init {images}{split}"
        name, folder = shlex.quote(self._name), shlex.quote(f"build/{self._name}")
        yield f"With the service: dasl datasets add {images}{split} --name {name}; dasl submit {spec} --watch"
        yield f"Without it: dasl train {spec} --data {images}{split} -o {folder}"
        yield f"See the views first: dasl preview {spec} --data {images}{split}"
        yield "All fields: docs/spec.md. Those that are not here are chosen for the images (dasl validate shows them)."

    def _image_notes(self) -> Iterator[str]:
        index, facts = self._index, self._index.facts()
        shorter, longer = index.sizes.min(axis=1), index.sizes.max(axis=1)
        yield f"Images: {len(index):,}, from {shorter.min()} to {longer.max()} px; the median of shorter sides is {facts.median_size} px."
        if index.skipped:
            yield f"Skipped: {len(index.skipped):,}, such as {index.skipped[0].path}: {index.skipped[0].reason}."
        yield from index.unused
        yield f"Pixels: {', '.join(f'{count:,} of {kind}' for kind, count in index.pixels.kinds)}."
        if index.labels is None:
            yield "Labels are not needed. A folder for each class would allow to measure accuracy."
        else:
            counts = Counter(np.asarray(index.labels).tolist())
            fewest, most = min(counts.values()), max(counts.values())
            sizes = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
            yield f"Labels: {len(index.class_names):,} classes of {sizes} images, used only to evaluate."
        yield from describe_duplicates(index.duplicates)
        for warning in index.warnings:
            yield f"{warning}."
        gpu = f"{self._gpus} GPUs ({torch.cuda.get_device_name(0)})" if self._gpus else "no GPU"
        yield f"This machine: {self._cores} CPU cores, {gpu}."

    def _method(self) -> Iterator[str]:
        yield (
            "SimCLR alone is the default. `dasl experiments` answers whether DAR or SEC pay on these images; what "
            "they added to SimCLR on those of DASL's repository may be chance (docs/regularizers.md)."
        )
        if self._index.labels is not None:
            yield "The classes can also be learned: method.name proxy_anchor or npair (docs/spec.md)."

    def _backbone(self) -> Iterator[str]:
        backbone = self._chosen.backbone
        stem = ", with a stem for small images" if backbone.stem == "small" else ""
        yield (
            f"{backbone.name}: {backbone.info.parameters / 1e6:.1f} million parameters, the default. It sees "
            f"{backbone.image_size} px and {backbone.in_channels} channels{stem}."
        )
        if self._index.pixels.dtype != "uint8":
            low, high = backbone.window
            yield f"Values from {low:g} to {high:g} are spread over its range: backbone.window."
        yield "To start from published weights, set backbone.pretrained; others: dasl backbones. A trial: test_resnet."

    def _augment(self) -> Iterator[str]:
        if self._has_dicom:
            yield "No view is mirrored: there are DICOM files, and in medical images left and right usually differ."
        else:
            yield "Half of the views are mirrored. Set 0 where left and right differ, as in text and X-rays."
        if self._index.labels is not None:
            yield "Which views fit depends on the images: the experiment examples/which-views.yaml compares some."

    def _evaluation(self) -> Iterator[str]:
        """Yield the section `evaluate` with its comment if it differs from the default."""
        if "evaluate" in self._spec:
            yield from _comments(
                [
                    f"More than the default, {self._default_held_out} images: on fewer than {FEWEST_IMAGES} held-out images "
                    "an accuracy decides nothing."
                ]
            )
            yield dump_yaml({"evaluate": self._spec["evaluate"]})
            yield ""

    def _training(self) -> Iterator[str]:
        resolved, facts = self._chosen, self._index.facts()
        costs, bounds = estimate(resolved, facts), self._seconds(resolved)
        held_out = costs.held_out_images
        yield (
            f"{costs.total_steps:,} steps with batches of {resolved.train.batch_size}, on {costs.train_images:,} images; "
            f"{held_out:,} are held out for evaluation."
        )
        if held_out < FEWEST_IMAGES:
            yield (
                f"Fewer than {FEWEST_IMAGES} held-out images decide nothing, and the verdict will say so; "
                f"{FEWEST_IMAGES} would be more than {_LARGEST_HOLDOUT:.0%} of the images. More images help, or a data set of "
                "its own in evaluate.dataset."
            )
        if self._gpus:
            yield "The time is not known before a first job has run on the GPU."
        elif bounds is not None:
            yield f"About {_times(bounds)} on {self._cores} cores, by the network's computation (docs/spec.md, Estimates)."
        automatic, of_all = self._automatic, self._seconds(self._automatic)
        if of_all is not None and self._lasts(automatic):
            yield (
                f"Chosen to end within {LONGEST_SECONDS / 60:g} minutes on this machine. What is chosen for the images alone, "
                f"{automatic.backbone.image_size} px and {automatic.train.epochs} epochs, learns more, and takes "
                f"{_times(of_all)} here; for it, remove backbone.image_size and train.epochs."
            )
        yield (
            f"Disk: {costs.checkpoints_kept} checkpoints of {costs.checkpoint_bytes / 1e6:.0f} MB; "
            "checkpoints.keep_last limits them."
        )


def _times(bounds: tuple[float, float]) -> str:
    """Describe bounds in seconds in minutes, or in hours where they are that long."""
    unit, seconds = ("hour", 3600.0) if bounds[0] >= 7200 else ("minute", 60.0)
    low, high = (max(1, round(bound / seconds)) for bound in bounds)
    range_ = f"{low}" if low == high else f"{low} to {high}"
    return f"{range_} {unit}{'' if high == 1 else 's'}"


def _comments(sentences: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a comment for each sentence."""
    for sentence in sentences:
        yield from textwrap.wrap(
            _comment(sentence),
            _WIDTH,
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _comment(sentence: str) -> str:
    # File names may contain control characters.
    return "# " + "".join(char if char.isprintable() else "?" for char in sentence)
