"""The contact sheet of a preview: a row for each image, a column for each view."""

from PIL import Image, ImageDraw, ImageFont

from dasl_core.previews.drawing import Preview, Row
from dasl_core.previews.pictures import sketch
from dasl_core.text import cut

# Pixels.
_CELL = 160  # side of a view of the whole image size, at most
_GAP = 8
_TEXT = 12  # height of the letters
_LINE = 16
# Gray, as many images end in white or in black.
_PAPER, _INK, _FAINT, _ALARM = "#d4d4d8", "black", "#3f3f46", "firebrick"


def contact_sheet(preview: Preview) -> Image.Image:
    """Draw the sheet. All views have the same scale, so a local crop is smaller than a global one."""
    size = preview.spec.backbone.image_size
    # Small images are scaled up by a whole number, so that each pixel stays a square.
    scale: float = _CELL // size if size <= _CELL else _CELL / size
    cell = round(scale * size)
    sides = [cell, *(max(1, round(scale * view.image_size)) for view in preview.views)]
    lefts = [_GAP]
    for side in sides[:-1]:
        # The narrow columns of local crops still hold their titles.
        lefts.append(lefts[-1] + max(side, 6 * _TEXT) + _GAP)
    top = _GAP + 3 * _LINE
    row_height = _LINE + cell + _GAP
    width = max(lefts[-1] + max(sides[-1], 6 * _TEXT) + _GAP, 3 * _CELL)
    sheet = Image.new("RGB", (width, top + len(preview.rows) * row_height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(_TEXT)

    def write(x: int, y: int, text: str, ink: str) -> None:
        shown = text.encode("unicode_escape").decode() if not text.isprintable() else text
        while pen.textlength(shown, font) > width - x and len(shown) > 4:
            shown = cut(shown, len(shown) - 1) if shown.endswith("...") else shown[:-4] + "..."
        pen.text((x, y), shown, ink, font)

    write(_GAP, _GAP // 2, _title(preview), _INK)
    names = [("original", "fitted"), *_names(preview)]
    for left, (name, note) in zip(lefts, names, strict=True):
        pen.text((left, _GAP + _LINE), name, _INK, font)
        pen.text((left, _GAP + 2 * _LINE - 2), note, _FAINT, font)
    for number, row in enumerate(preview.rows):
        y = top + number * row_height
        write(_GAP, y, f"{number}  {preview.index.paths[row.position]}", _FAINT)
        if row.unreadable is not None:
            write(_GAP, y + _LINE, f"cannot be read: {row.unreadable}", _ALARM)
            continue
        for left, side, image in zip(lefts, sides, _pictures(row), strict=True):
            sheet.paste(_fitted(image, side), (left, y + _LINE))
    return sheet


def _title(preview: Preview) -> str:
    spec = preview.spec
    return (
        f"{spec.dataset}: {spec.method.name}, {spec.backbone.image_size} px, "
        f"seed {spec.train.seed}, the first {len(preview.rows)} images"
    )


def _names(preview: Preview) -> list[tuple[str, str]]:
    return [
        (f"view {number}", f"{'local ' * preview.is_local(number)}{view.image_size} px")
        for number, view in enumerate(preview.views)
    ]


def _pictures(row: Row) -> list[Image.Image]:
    return [sketch(image) for image in (row.original, *row.views)]


def _fitted(image: Image.Image, side: int) -> Image.Image:
    """Scale a picture so that its longer side is `side`."""
    scale = side / max(image.size)
    width, height = (max(1, round(scale * edge)) for edge in image.size)
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.BOX
    return image.resize((width, height), how)
