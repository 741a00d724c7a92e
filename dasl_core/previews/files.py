"""The files of a preview."""

import io
import json
import re
from pathlib import Path

from PIL import Image

from dasl_core.atomic import write_atomically
from dasl_core.previews.drawing import Preview
from dasl_core.previews.pictures import picture
from dasl_core.previews.sheet import contact_sheet

SHEET, SETTINGS = "sheet.png", "preview.json"
_OF_PREVIEWS = re.compile(r"sheet\.png|\d+-(original|view\d+)\.png")


def write(preview: Preview, folder: Path) -> list[Path]:
    """Write the contact sheet, each image and view as a lossless PNG, and the settings; return the files.

    Those of an earlier preview in the folder are removed. `3-original.png` is the fourth image before its crops, `3-view0.png` its first view.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS).unlink(missing_ok=True)
    for file in folder.iterdir():
        if _OF_PREVIEWS.fullmatch(file.name):
            file.unlink()
    pictures = {SHEET: contact_sheet(preview)}
    for number, row in enumerate(preview.rows):
        pictures[f"{number}-original.png"] = picture(row.original)
        for view, image in enumerate(row.views):
            pictures[f"{number}-view{view}.png"] = picture(image)
    for name, each in pictures.items():
        write_atomically(folder / name, _png(each))
    # Last, so that it is there only if all others are.
    settings = json.dumps(preview.settings(), indent=2, ensure_ascii=False)
    write_atomically(folder / SETTINGS, f"{settings}\n".encode())
    return [folder / name for name in (SETTINGS, *pictures)]


def _png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()
