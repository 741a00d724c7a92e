"""Inputs of a standalone run: the job and its image locations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dasl_core.data.sources.base import DEFAULT_OPTIONS
from dasl_core.models.warm_start import pretrained_path
from dasl_core.spec import (
    JobSpec,
    ResolvedJobSpec,
    WeightsRecord,
    apply_overrides,
    load_spec,
    read_record,
)
from dasl_core.spec.source import SourceOptions, is_missing
from dasl_core.spec.weights import weights_problem
from dasl_core.spec.weights_record import NO_RECORD
from dasl_core.standalone.images import ImageLocation
from dasl_core.standalone.ranks import with_local_resources


@dataclass(frozen=True)
class DataOptions:
    """Image locations on the command line: paths, patterns or URIs; None: those in the spec.

    Attributes:
        data: training images.
        split: the only split of `data` to use.
        evaluate_data: images to evaluate on.
        evaluate_split: the only split of `evaluate_data` to use.
        source: further options of `data`, such as columns, as a service registers them.
    """

    data: str | None = None
    split: str | None = None
    evaluate_data: str | None = None
    evaluate_split: str | None = None
    source: SourceOptions = DEFAULT_OPTIONS


@dataclass(frozen=True)
class Locations:
    """Locations of the images to train on, and of those to evaluate on; None: held-out ones."""

    data: ImageLocation
    evaluate_data: ImageLocation | None

    def all(self) -> list[ImageLocation]:
        return [self.data] if self.evaluate_data is None else [self.data, self.evaluate_data]


def read_spec(path: Path, options: DataOptions, overrides: list[str]) -> tuple[JobSpec, Locations]:
    """Read the spec with this machine's resources, and the image locations.

    Raises:
        ValidationError: the spec is not valid.
        ValueError: the file cannot be read, or names no images.
    """
    settings = apply_overrides(load_spec(path), overrides)
    data = _location(settings, options.data, options.split, "dataset", "--data")
    evaluate = settings.setdefault("evaluate", {})
    evaluate_data = None
    if isinstance(evaluate, dict) and (options.evaluate_data or evaluate.get("dataset")):
        evaluate_data = _location(
            evaluate,
            options.evaluate_data,
            options.evaluate_split,
            "evaluate.dataset",
            "--evaluate-data",
        )
        # Names distinguish the two, and parts of a data set may have folders of the same name.
        if evaluate_data.is_same(data):
            evaluate["dataset"] = settings["dataset"]  # refused by the spec
        elif evaluate["dataset"] == settings["dataset"]:
            evaluate["dataset"] = evaluate_data.name_with_parent
    elif options.evaluate_split is not None:
        raise ValueError(
            "--evaluate-split: needs images to evaluate on. Pass --evaluate-data LOCATION."
        )
    settings.pop("resources", None)  # set by the launcher and this machine
    spec = with_local_resources(JobSpec.model_validate(settings))
    return spec, Locations(data, evaluate_data)


def _location(
    settings: dict[str, Any], uri: str | None, split: str | None, field: str, option: str
) -> ImageLocation:
    """Get the image location from the option or else from the field, and set the field to its name."""
    given_by = field if uri is None else option
    if uri is None:
        uri = settings.get("dataset")
        if not isinstance(uri, str):
            raise ValueError(
                f"{field}: missing. Set it to the folder of images, or pass {option} DIR."
            )
        if is_missing(uri):
            raise ValueError(
                f"{field}: {uri} does not exist. Pass the folder of images with {option} DIR."
            )
    location = ImageLocation(uri, split, given_by)
    settings["dataset"] = location.name
    return location


def locations_of(spec: ResolvedJobSpec, options: DataOptions) -> Locations:
    """Return the image locations of a resolved spec, whose data sets have only names; a ValueError without images."""
    evaluated = spec.evaluate.dataset
    given = [(options.data, spec.dataset, options.split, "--data", options.source)]
    if evaluated is not None:
        where, split = options.evaluate_data, options.evaluate_split
        given.append((where, evaluated, split, "--evaluate-data", DEFAULT_OPTIONS))
    found = []
    for uri, name, split, option, source in given:
        if is_missing(uri or name):
            raise ValueError(
                f"{option}: {uri or name} does not exist. Pass the images of {name} with {option}."
            )
        found.append(ImageLocation(uri or name, split, option, source))
    return Locations(found[0], found[1] if len(found) > 1 else None)


def start_weights(spec: JobSpec) -> WeightsRecord:
    """Read the record of the initial weights, if any; a ValueError if they are unreadable, or do not fit."""
    if spec.backbone.pretrained is None:
        return NO_RECORD
    weights = pretrained_path(spec.backbone.pretrained)
    if problem := weights_problem(weights, spec.backbone):
        raise ValueError(f"backbone.pretrained: {weights} {problem}")
    return read_record(weights)
