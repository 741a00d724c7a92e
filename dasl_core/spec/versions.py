"""Versions of stored specs, and the upgraders to today's version.

Specs are read long after they were written: from rows of the database and files of checkpoints. What is
stored stays as it is; it is upgraded whenever it is read.

A change of the models that a stored spec does not survive (a field renamed, removed or narrowed, or one
added to `resources`) needs an upgrader, in the same commit. So does a new field of a resolved spec whose
default would change what an old job computes when it is resumed.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from dasl_core.spec.fields import EIGHT_BIT
from dasl_core.spec.job import Resources
from dasl_core.spec.normalization import IMAGENET
from dasl_core.spec.resolved import ResolvedJobSpec, StepSettings
from dasl_core.spec.rivals import Rivals
from dasl_core.spec.track import Track

Content = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

_PARTS_OF_VERSION_1 = frozenset(
    [
        "name",
        "dataset",
        "method",
        "backbone",
        "augment",
        "dar",
        "sec",
        "train",
        "evaluate",
        "checkpoints",
        "resources",
        "priority",
        "tags",
    ]
)

# "images" is no part of a spec: nothing that a person wrote has it.
_PARTS_OF_A_TRAINING_STATE = frozenset(
    ["method", "backbone", "augment", "dar", "sec", "train", "images"]
)


def is_resolved(spec: Content) -> bool:
    """Whether a stored spec has every part: what a person wrote leaves out the defaults."""
    return spec.keys() >= _PARTS_OF_VERSION_1


def decides_steps(spec: Content) -> bool:
    """Whether a stored spec has all settings of a step: a resolved one, or the part in a training state."""
    return is_resolved(spec) or spec.keys() >= _PARTS_OF_A_TRAINING_STATE


def keep_evaluations_of_version_1(spec: Content) -> Content:
    """Version 1 had at most 50,000 images in the bank of k-NN, and one start of k-means."""
    if not is_resolved(spec):
        return spec
    evaluate = dict(spec["evaluate"])
    if evaluate.get("knn") is not None:
        evaluate["knn"] = {**evaluate["knn"], "bank": 50_000}
    if evaluate.get("clustering") is True:
        evaluate["clustering"] = {"restarts": 1}
    return {**spec, "evaluate": evaluate}


def keep_evaluating_the_backbone(spec: Content) -> Content:
    """Version 2 evaluated the backbone of supervised methods, too."""
    if not is_resolved(spec):
        return spec
    return {**spec, "evaluate": {**spec["evaluate"], "on": "backbone"}}


def keep_all_semihard_triplets(spec: Content) -> Content:
    """Up to version 3, `mining: semihard` was the mean over all semi-hard triplets."""
    if not decides_steps(spec) or spec["method"].get("mining") != "semihard":
        return spec
    return {**spec, "method": {**spec["method"], "mining": "all_semihard"}}


def keep_normalizing_as_imagenet(spec: Content) -> Content:
    """Up to version 4, ImageNet's mean and std were those of every job, whatever its weights expect."""
    if not decides_steps(spec):
        return spec
    channels = 1 if spec["backbone"].get("in_channels") == 1 else 3
    usual = IMAGENET.with_channels(channels).model_dump(mode="json", include={"mean", "std"})
    return {**spec, "backbone": {**spec["backbone"], **usual}}


def without_rivals(spec: Content) -> Content:
    """Up to version 5, there were no regularizers besides DAR and SEC."""
    if not decides_steps(spec):
        return spec
    return {**spec, "rivals": Rivals().model_dump(mode="json")}


def keep_small_recipe(spec: Content) -> Content:
    """Up to version 6, there was one recipe, one strength of the jitter, and one filter for crops."""
    if not decides_steps(spec):
        return spec
    augment = {"saturation": 1.0, "interpolation": "bilinear", **spec["augment"]}
    upgraded = {**spec, "augment": augment}
    if spec["method"].get("name") == "simclr":
        upgraded["method"] = {"last_batch_norm": False, **spec["method"]}
    return {"recipe": "small", **upgraded} if is_resolved(spec) else upgraded


def keep_evaluating_the_largest_square(spec: Content) -> Content:
    """Up to version 7, images of every size were evaluated at their largest central square."""
    if not is_resolved(spec):
        return spec
    return {**spec, "evaluate": {**spec["evaluate"], "crop_pct": 1.0}}


_ANY_NODE: Content = {
    "min_workers": None,
    "memory_gb_per_worker": None,
    "gpu_type": None,
    "node_labels": {},
    "same_node": False,
    "exclude_nodes": [],
}


def place_on_any_node(spec: Content) -> Content:
    """Up to version 8, a job's ranks ran on any nodes, all of them in every attempt."""
    if not is_resolved(spec):
        return spec
    return {**spec, "resources": {**_ANY_NODE, **spec["resources"]}}


_EIGHT_BIT_RGB: Content = {"window": [*EIGHT_BIT], "extra_bands": "repeat"}
_UPRIGHT: Content = {"vertical_flip": 0.0, "rotate": 0.0, "channel_drop": 0.0}


def for_older(spec: Content) -> Content:
    """Leave out what version 9 has more than version 8 where it is the default, for readers of version 8.

    While a service is upgraded, they may run beside it; they refuse fields that they do not know.
    """

    def without(content: Content, added: Content) -> Content:
        return {
            key: value for key, value in content.items() if key not in added or value != added[key]
        }

    return {
        **without(spec, {"preemptible": False, "track": Track().model_dump(mode="json")}),
        "augment": without(spec["augment"], _UPRIGHT),
        "backbone": without(spec["backbone"], _EIGHT_BIT_RGB),
        "resources": without(spec["resources"], _ANY_NODE),
        "train": without(spec["train"], {"image_cache": "exact"}),
    }


UPGRADERS: list[Callable[[Content], Content]] = [
    keep_evaluations_of_version_1,
    keep_evaluating_the_backbone,
    keep_all_semihard_triplets,
    keep_normalizing_as_imagenet,
    without_rivals,
    keep_small_recipe,
    keep_evaluating_the_largest_square,
    place_on_any_node,
]
"""Item n - 1 turns a spec of version n into one of version n + 1.

An upgrader is a pure function: it returns a new dict. It gets resolved specs, and specs as a person wrote
them, in which any field may be missing.
"""

_KEY = "spec_version"


class UnreadableSpec(ValueError):
    """Raised for a stored spec that this version of DASL cannot read."""


def current() -> int:
    """Return the version of specs that are written today."""
    return len(UPGRADERS) + 1


def upgrade(spec: Any, version: int) -> Content:
    """Return a stored spec in today's version.

    Raises:
        UnreadableSpec: a newer DASL wrote it, or it is not what the upgraders expect.
    """
    if _check_version(version) > current():
        raise UnreadableSpec(
            f"the spec is of version {version}, and this DASL reads versions up to {current()}; "
            "upgrade the server, or for a checkpoint the DASL that reads it"
        )
    try:
        for upgrader in UPGRADERS[version - 1 :]:
            spec = upgrader(spec)
    # An upgrader meets any content, and one spec must not stop what reads many.
    except Exception as error:
        raise UnreadableSpec(
            f"the spec of version {version} cannot be upgraded: {error!r}; submit the job again"
        ) from error
    if not isinstance(spec, dict):
        raise UnreadableSpec("the spec is not a mapping; submit the job again")
    return spec


def load(spec: Any, version: int) -> ResolvedJobSpec:
    """Read a stored resolved spec.

    Raises:
        UnreadableSpec: as in `upgrade`, or a field is missing or invalid.
    """
    return _checked(ResolvedJobSpec, upgrade(spec, version), "spec")


def load_step_settings(state: Any, version: int) -> Content:
    """Read the settings in a training state; a field that is newer than the state gets its default.

    What the state holds besides settings stays as it is.

    Raises:
        UnreadableSpec: as in `load`.
    """
    state = upgrade(state, version)
    stored = {name: value for name, value in state.items() if name in StepSettings.model_fields}
    return {**state, **_checked(StepSettings, stored, "spec").deciding()}


def load_resources(spec: Any, version: int) -> Resources:
    """Read only the resources of a stored resolved spec, which is 20 times faster than `load`.

    All of its fields must be stored: today's default may not be what the job was submitted with.

    Raises:
        UnreadableSpec: as in `upgrade`, or a field of the resources is missing or invalid.
    """
    resources = _checked(Resources, upgrade(spec, version).get("resources"), "spec.resources")
    missing = Resources.model_fields.keys() - resources.model_fields_set
    if missing:
        raise _unreadable(f"spec.resources.{min(missing)}")
    return resources


def beside() -> dict[str, int]:
    """Return what a file holds beside a spec: its version. Files of version 1 hold none."""
    return {_KEY: current()} if current() > 1 else {}


def of(content: Mapping[str, Any]) -> int:
    """Return the version of the spec in a file, given the content that `beside` is part of.

    Raises:
        UnreadableSpec: it is not a version.
    """
    return _check_version(content.get(_KEY, 1))


def _check_version(version: object) -> int:
    if type(version) is not int or version < 1:
        raise UnreadableSpec(
            f"{_KEY}: {version!r} is not a version of specs; it must be an integer from 1 on"
        )
    return version


def _checked(model: type[Model], content: object, place: str) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise _unreadable(".".join(map(str, (place, *error.errors()[0]["loc"])))) from error


def _unreadable(field: str) -> UnreadableSpec:
    return UnreadableSpec(
        f"the spec was written by another version of DASL, or changed later: this one cannot read {field}; "
        "use that version, or submit the job again"
    )
