"""Embeddings without a service: `dasl embed --data`."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from dasl_core.embedding import ImagesWithFeatures, load_backbone, write_parts
from dasl_core.machine import usable_cores
from dasl_core.outputs import check_replaceable
from dasl_core.standalone.images import ImageLocation, open_images, print_warnings
from dasl_core.standalone.run_dir import writing_to
from dasl_core.vocabulary import EmbeddingFormat, EmbeddingType, FeatureKind


def embed(
    checkpoint: Path,
    data: str,
    output: Path,
    format: EmbeddingFormat,
    *,
    features: FeatureKind = "pooled",
    normalize: bool = False,
    dtype: EmbeddingType = "float32",
    force: bool = False,
) -> dict[str, Any] | str:
    """Embed the images of a location with the backbone of a checkpoint's folder.

    Args:
        output: file to write, or a folder if the embedding needs several files.
        force: replace existing files.

    Returns:
        Facts about the embedding, JSON-ready, or why it failed.
    """
    if not checkpoint.is_dir():
        return f"{checkpoint} is not the folder of a downloaded checkpoint, which --data needs"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        check_replaceable({output: None}, force=force)
        backbone = load_backbone(checkpoint, device)
        index, cache = open_images(ImageLocation(data, None, "--data"))
        print_warnings(index)
        images = ImagesWithFeatures(backbone, index, cache=cache, threads=usable_cores())
        try:
            images.check(data)
            with writing_to(output):
                output.parent.mkdir(parents=True, exist_ok=True)
                began = time.monotonic()
                with tempfile.TemporaryDirectory(dir=output.parent) as name:
                    batches = images.batches(features, normalize=normalize, dtype=dtype)
                    files = [*write_parts(batches, Path(name), format)]
                    seconds = time.monotonic() - began
                    images.check(data)
                    _move(files, output)
        finally:
            images.close()
    except (ValueError, OSError) as error:
        return str(error)
    return images.facts(seconds)


def _move(files: list[Path], output: Path) -> None:
    if len(files) == 1:
        os.replace(files[0], output)
        return
    output.mkdir(exist_ok=True)
    for file in files:
        os.replace(file, output / file.name)
