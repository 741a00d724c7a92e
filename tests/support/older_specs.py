"""Specs of an older version, in which `train.epochs` was called `train.passes`."""

from typing import Any


def rename_passes(spec: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a spec of that version."""
    train = dict(spec.get("train", {}))
    if "passes" in train:
        train["epochs"] = train.pop("passes")
    return {**spec, "train": train}


def written_before(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec as that version wrote it."""
    train = dict(spec["train"])
    train["passes"] = train.pop("epochs")
    return {**spec, "train": train}
