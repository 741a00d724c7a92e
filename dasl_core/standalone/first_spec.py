"""A first spec for a folder of images, with advice in comments: `dasl init`."""

import hashlib
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
from dasl_core.spec import (
    Advice,
    JobSpec,
    ResolvedJobSpec,
    advise,
    dump_yaml,
    estimate,
    resolve,
    seconds_on_cores,
)
from dasl_core.spec.advice import apply, describe_times
from dasl_core.standalone.console import USER_ERRORS, fail, print_line
from dasl_core.standalone.images import ImageLocation, open_images, print_warnings
from dasl_core.text import describe_duplicates

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
        self._spec: dict[str, Any] = {"name": f"{name}-simclr"[:200], "dataset": name}
        spec = JobSpec.model_validate(self._spec)
        self._advice: dict[str, Advice] = {}
        for advice in advise(spec, index.facts(), self._resolve, self._seconds):
            self._spec = apply(self._spec, advice.settings)
            self._advice[advice.field] = advice
        self._chosen = self._resolve(JobSpec.model_validate(self._spec))

    def _resolve(self, spec: JobSpec) -> ResolvedJobSpec:
        return resolve(spec, self._index.facts(), has_gpus=self._gpus > 0)

    def _seconds(self, resolved: ResolvedJobSpec) -> tuple[float, float] | None:
        if self._gpus:
            return None
        return seconds_on_cores(estimate(resolved, self._index.facts()), resolved, self._cores)

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
            dump_yaml({"train": {"epochs": resolved.train.epochs}}),
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
        default = "" if "name" in self._spec.get("backbone", {}) else ", the default"
        stem = ", with a stem for small images" if backbone.stem == "small" else ""
        yield (
            f"{backbone.name}: {backbone.info.parameters / 1e6:.1f} million parameters{default}. It sees "
            f"{backbone.image_size} px and {backbone.in_channels} channels{stem}."
        )
        if self._index.pixels.dtype != "uint8":
            low, high = backbone.window
            yield f"Values from {low:g} to {high:g} are spread over its range: backbone.window."
        yield "To start from published weights, set backbone.pretrained; others: dasl backbones. A trial: test_resnet."

    def _augment(self) -> Iterator[str]:
        if (advice := self._advice.get("augment.flip")) is not None:
            yield advice.reason
        else:
            yield "Half of the views are mirrored. Set 0 where left and right differ, as in text and X-rays."
        if self._index.labels is not None:
            yield "Which views fit depends on the images: the experiment examples/which-views.yaml compares some."

    def _evaluation(self) -> Iterator[str]:
        """Yield advice about the section `evaluate`, and the section if it differs from the default."""
        if (advice := self._advice.get("evaluate.holdout.fraction")) is not None:
            yield from _comments([advice.reason])
            if advice.settings:
                yield dump_yaml({"evaluate": self._spec["evaluate"]})
            yield ""

    def _training(self) -> Iterator[str]:
        resolved = self._chosen
        costs, bounds = estimate(resolved, self._index.facts()), self._seconds(resolved)
        yield (
            f"{costs.total_steps:,} steps with batches of {resolved.train.batch_size}, on {costs.train_images:,} images; "
            f"{costs.held_out_images:,} are held out for evaluation."
        )
        if self._gpus:
            yield "The time is not known before a first job has run on the GPU."
        elif bounds is not None:
            yield f"About {describe_times(bounds)} on {self._cores} cores, by the network's computation (docs/spec.md, Estimates)."
        if (advice := self._advice.get("train.epochs")) is not None:
            yield f"{advice.reason} For all of it, remove {' and '.join(advice.settings)}."
        yield (
            f"Disk: {costs.checkpoints_kept} checkpoints of {costs.checkpoint_bytes / 1e6:.0f} MB; "
            "checkpoints.keep_last limits them."
        )


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
