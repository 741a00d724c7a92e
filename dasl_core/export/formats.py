"""Further formats of a downloaded checkpoint, made where they are needed: `dasl export`."""

from __future__ import annotations

from pathlib import Path

from dasl_core.export.checkpoint import ONNX, read_checkpoint
from dasl_core.export.hub import write_hub_folder
from dasl_core.export.network import ExportError, exported_network
from dasl_core.export.onnx_file import write_onnx
from dasl_core.export.torch_program import write_torch_program

FORMATS = {"onnx": ONNX, "torch-export": "backbone.pt2", "hf": "huggingface"}
"""Name of each format, and of what it is written to in the checkpoint's folder by default."""


def export_checkpoint(folder: Path, format: str, output: Path | None = None) -> Path:
    """Write another format of the checkpoint in `folder`; returns where it is.

    Args:
        folder: of a downloaded checkpoint.
        format: one of `FORMATS`.
        output: a file, for "hf" a folder; one that is there is written over. By default it lies in
            `folder`.

    Raises:
        ExportError: `folder` is no checkpoint, its network has no such format, or `output` cannot
            be written.
        ValueError: `format` is not known.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; expected one of {', '.join(FORMATS)}")
    spec, model, metrics, weights = read_checkpoint(folder)
    target = output or folder / FORMATS[format]
    if format == "torch-export" and target.suffix != ".pt2":
        raise ExportError(f"{target}: torch.export's files end in .pt2")
    if target.exists() and target.is_dir() != (format == "hf"):
        there, expected = ("a folder", "a file") if target.is_dir() else ("a file", "a folder")
        raise ExportError(f"{target} is {there}; the format {format} is written to {expected}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if format == "hf":
            write_hub_folder(weights, spec, model, metrics, target)
        else:
            network = exported_network(spec.backbone, weights)
            write = write_onnx if format == "onnx" else write_torch_program
            write(network, spec.backbone, target)
    except OSError as error:
        raise ExportError(f"{target} cannot be written: {error.strerror or error}") from error
    return target
