"""Deterministic JPEGs with the statistics of photographs, for benchmarks that decode.

The time to decode a JPEG depends on its coefficients, so noise is too slow and a gradient too fast. Each
image is smooth noise at several octaves whose amplitude falls with the frequency, as in photographs, with
ellipses of other brightness for edges. At quality 90, one of 500x375 pixels has 30 to 60 kB and one of
4000x3000 about 2 MB.
"""

import io
import multiprocessing
import os
import shutil
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

QUALITY = 90
ELLIPSES = 24
SENSOR_NOISE = 2.5


def photograph(seed: int, width: int, height: int) -> Image.Image:
    """Return an image with the statistics of a photograph; equal seeds give equal pixels."""
    random = np.random.default_rng(seed)
    light = np.zeros((height, width), np.float32)
    cells, amplitude = 2, 60.0
    while cells <= max(width, height):
        light += amplitude * _noise(random, cells, width, height)
        cells, amplitude = cells * 2, amplitude * 0.62
    rows = np.arange(height, dtype=np.float32)[:, None]
    columns = np.arange(width, dtype=np.float32)[None, :]
    for _ in range(ELLIPSES):
        row, column, vertical, horizontal = random.random(4) * np.array([height, width] * 2)
        inside = ((rows - row) / (0.4 * vertical + 4)) ** 2 + (
            (columns - column) / (0.4 * horizontal + 4)
        ) ** 2 < 1
        light += np.float32(random.normal(0, 25)) * inside
    light += random.normal(0, SENSOR_NOISE, light.shape).astype(np.float32)
    # Color changes more slowly than light.
    blue, red = (40 * _noise(random, 8, width, height) for _ in range(2))
    pixels = np.stack([light + red, light - 0.5 * red - 0.2 * blue, light + blue], axis=-1)
    return Image.fromarray((pixels + 120).clip(0, 255).astype(np.uint8))


def write_jpegs(
    folder: Path,
    count: int,
    width: int,
    height: int,
    *,
    distinct: int | None = None,
    processes: int = 1,
) -> list[Path]:
    """Write JPEGs `000/000000.jpg`, ... into `folder`, 1,000 in a folder, and return their paths.

    Args:
        distinct: how many are drawn; the others are hard links to these, or copies where the file system
            has no links. `None` draws all.
        processes: that draw at the same time. With several, this process is forked, so no GPU may be in
            use yet.
    """
    drawn = min(count, distinct or count)
    paths = image_paths(folder, count)
    draw = partial(_draw, width=width, height=height)
    drawings = list(enumerate(paths[:drawn]))
    if processes > 1:
        with multiprocessing.get_context("fork").Pool(min(processes, drawn)) as pool:
            pool.map(draw, drawings, chunksize=4)
    else:
        for drawing in drawings:
            draw(drawing)
    for number in range(drawn, count):
        _link(paths[number % drawn], paths[number])
    return paths


def write_different_jpegs(
    folder: Path, count: int, width: int, height: int, *, distinct: int
) -> list[Path]:
    """Write JPEGs as `write_jpegs` does, no two of which have equal bytes; return their paths.

    Only `distinct` are drawn, which takes tens of milliseconds each. The others have the pixels of one of these
    and a comment of their own, of varying length, so that sizes differ as those of photographs do.
    """
    drawn = min(count, distinct)
    paths = image_paths(folder, count)
    encoded: list[bytes] = []
    for number, path in enumerate(paths):
        if number < drawn:
            file = io.BytesIO()
            photograph(number, width, height).save(file, "JPEG", quality=QUALITY)
            encoded.append(file.getvalue())
        path.write_bytes(with_comment(encoded[number % drawn], number))
    return paths


def with_comment(jpeg: bytes, number: int) -> bytes:
    """Return a JPEG with a comment that differs for each number; its length varies by up to 4 KiB."""
    comment = f"{number:09d}".encode().ljust(9 + number * 2654435761 % 4096)
    start = jpeg[:2]  # SOI; segments follow in any order
    return start + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + jpeg[2:]


def image_paths(folder: Path, count: int) -> list[Path]:
    """Return paths of images, 1,000 in a folder, and create these folders."""
    for number in range(0, count, 1000):
        (folder / f"{number // 1000:03d}").mkdir(parents=True, exist_ok=True)
    return [folder / f"{number // 1000:03d}" / f"{number:06d}.jpg" for number in range(count)]


def _draw(drawing: tuple[int, Path], width: int, height: int) -> None:
    number, path = drawing
    photograph(number, width, height).save(path, quality=QUALITY)


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)


def _noise(random: np.random.Generator, cells: int, width: int, height: int) -> np.ndarray:
    """Return normal noise (height, width) with `cells` independent values along the longer side."""
    longer = max(width, height)
    shape = (max(2, cells * height // longer), max(2, cells * width // longer))
    values = Image.fromarray(random.standard_normal(shape).astype(np.float32))
    return np.asarray(values.resize((width, height), Image.Resampling.BICUBIC))
