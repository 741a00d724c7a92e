"""Conversion of a downloaded checkpoint to other formats: `dasl export`."""

import tempfile
from pathlib import Path

from safetensors import SafetensorError

from dasl_core.export.checkpoint import ONNX, read_checkpoint
from dasl_core.export.hub import CONFIG, write_hub_folder
from dasl_core.export.network import ExportError, exported_network
from dasl_core.export.onnx_file import write_onnx
from dasl_core.export.torch_program import write_torch_program
from dasl_core.export.transformers_folder import write_transformers_folder
from dasl_core.outputs import check_replaceable, sha256_of

FORMATS = {
    "onnx": ONNX,
    "torch-export": "backbone.pt2",
    "hf": "huggingface",
    "transformers": "transformers",
}
"""Name of each format, and its default file or folder in the checkpoint's folder."""
WRITE_FOLDER = {"hf": write_hub_folder, "transformers": write_transformers_folder}


def export_checkpoint(
    folder: Path, format: str, output: Path | None = None, *, force: bool = False
) -> Path:
    """Convert the checkpoint in `folder` to another format; return the path of the result.

    The result is written and checked in a temporary folder, and replaces an existing file or folder
    only when it is complete.

    Args:
        folder: folder of a downloaded checkpoint.
        format: one of `FORMATS`.
        output: the file to write, for "hf" and "transformers" a folder. None: the default in `folder`.
        force: replace existing files of another content; in a folder, only those of the format.

    Raises:
        ExportError: `folder` is not a checkpoint, its network cannot be written in this format, or
            `output` cannot be written.
        ValueError: `format` is unknown, or a file exists with another content.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; given {format!r}")
    spec, model, metrics, weights = read_checkpoint(folder)
    target = output or folder / FORMATS[format]
    if format == "torch-export" and target.suffix != ".pt2":
        raise ExportError(f"{target} must end in .pt2 for the format torch-export")
    if target.exists() and target.is_dir() != (format in WRITE_FOLDER):
        actual, expected = ("a folder", "a file") if target.is_dir() else ("a file", "a folder")
        raise ExportError(f"{target} is {actual}; the format {format} is written to {expected}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
            result = Path(name) / target.name
            if format in WRITE_FOLDER:
                WRITE_FOLDER[format](weights, spec, model, metrics, result)
                _move_files(result, target, last=CONFIG, force=force)
            else:
                network = exported_network(spec.backbone, weights)
                write = write_onnx if format == "onnx" else write_torch_program
                write(network, spec, result)
                _move_files(result.parent, target.parent, last=target.name, force=force)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ExportError(f"{target} cannot be written: {reason}") from error
    return target


def _move_files(source: Path, target: Path, *, last: str, force: bool) -> None:
    """Move the files of `source`, the index file `last` at the end."""
    check_replaceable(
        {target / file.name: sha256_of(file) for file in source.iterdir()}, force=force
    )
    target.mkdir(exist_ok=True)
    files = sorted(source.iterdir(), key=lambda file: file.name == last)
    if len(files) > 1:  # without `last`, a half-replaced export cannot be loaded by mistake
        (target / last).unlink(missing_ok=True)
    for file in files:
        file.replace(target / file.name)
