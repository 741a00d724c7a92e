"""The files of a preview."""

import io
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from dasl_core.atomic import write_atomically
from dasl_core.previews.drawing import Drawing, Row
from dasl_core.previews.sheet import ContactSheet, picture

SHEET, SETTINGS = "sheet.png", "preview.json"
_OF_PREVIEWS = re.compile(r"sheet\.png|\d+-(original|view\d+)\.png")


def write(drawing: Drawing, folder: Path, *, version: int | None = None) -> list[Path]:
    """Write each image and view as a lossless PNG, the contact sheet, and the settings; return the files.

    Files of an earlier preview in the folder are removed. `3-original.png` is the fourth image before its crops,
    `3-view0.png` its first view. Each file is written as soon as it is drawn.

    Args:
        version: version of the registered data set.

    Raises:
        ValueError: none of the images can be read.
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS).unlink(missing_ok=True)
    for file in folder.iterdir():
        if _OF_PREVIEWS.fullmatch(file.name):
            file.unlink()
    files, images, sheet = [], [], ContactSheet(drawing)

    def save(name: str, image: Image.Image) -> None:
        content = io.BytesIO()
        image.save(content, "PNG")
        write_atomically(folder / name, content.getvalue())
        files.append(folder / name)

    for number, row in enumerate(drawing.rows()):
        save(f"{number}-original.png", picture(row.original))
        for view, image in enumerate(row.views):
            save(f"{number}-view{view}.png", picture(image))
        sheet.add(row)
        images.append(_image_entry(drawing, row))
    if drawing.unreadable and len(drawing.unreadable) == drawing.images:
        for file in files:
            file.unlink()
        key, reason = next(iter(drawing.unreadable.items()))
        raise ValueError(
            f"none of the {drawing.images} images of the preview can be read, such as {key}: {reason}"
        )
    save(SHEET, sheet.picture)
    # Last, so that it exists only if all others do.
    content = json.dumps(_settings(drawing, images, version), indent=2, ensure_ascii=False)
    write_atomically(folder / SETTINGS, f"{content}\n".encode())
    return [folder / SETTINGS, *files]


def _settings(
    drawing: Drawing, images: list[dict[str, Any]], version: int | None
) -> dict[str, Any]:
    """Return the content, JSON-ready, with results of `_image_entry` and the version of the registered data set."""
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
                "local": drawing.is_local(number),
                "augment": view.augment.model_dump(mode="json"),
            }
            for number, view in enumerate(drawing.views)
        ],
        "images": images,
        "spec": spec.model_dump(mode="json", include={"method", "augment", "backbone"}),
    }


def _image_entry(drawing: Drawing, row: Row) -> dict[str, Any]:
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
