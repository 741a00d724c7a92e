"""The content of `preview.json`: the drawn images and their settings."""

from typing import Any

from dasl_core.previews.drawing import Drawing, Row
from dasl_core.spec.methods.config import MultiCropConfig


def is_local(drawing: Drawing, view: int) -> bool:
    """Whether a view, counted from 0, is a local crop."""
    return isinstance(drawing.spec.method, MultiCropConfig) and view >= 2


def settings(drawing: Drawing, images: list[dict[str, Any]], version: int | None) -> dict[str, Any]:
    """Return the content, JSON-ready.

    Args:
        images: results of `image_entry`, in order.
        version: version of the registered data set.
    """
    spec = drawing.spec
    return {
        "format": 1,
        "dataset": spec.dataset,
        "dataset_version": version,
        "seed": spec.train.seed,
        "batch_size": spec.train.batch_size,
        "image_size": spec.backbone.image_size,
        "in_channels": spec.backbone.in_channels,
        "window": list(spec.backbone.window),
        "views": [
            {
                "image_size": view.image_size,
                "local": is_local(drawing, number),
                "augment": view.augment.model_dump(mode="json"),
            }
            for number, view in enumerate(drawing.views)
        ],
        "images": images,
        "spec": spec.model_dump(mode="json", include={"method", "augment", "backbone"}),
    }


def image_entry(drawing: Drawing, row: Row) -> dict[str, Any]:
    """Return the entry of an image, JSON-ready."""
    index = drawing.index
    width, height = map(int, index.sizes[row.position])
    return {
        "key": index.paths[row.position],
        "class": None
        if index.labels is None
        else index.class_names[int(index.labels[row.position])],
        "width": width,
        "height": height,
        "step": row.step,
        "place": row.place,
        "unreadable": row.unreadable,
        "views": row.draws,
    }
