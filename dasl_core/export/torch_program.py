"""`backbone.pt2`: the backbone as a `torch.export` program.

Not part of a checkpoint. `torch.export.load` may unpickle parts of an archive, and evaluates its shape
expressions, so a .pt2 must come from a trusted source. Users therefore create it themselves, from the
safetensors, which are safe to load.
"""

import io
from pathlib import Path

import torch
from torch import nn

from dasl_core.export.network import ExportError, largest_difference, random_images
from dasl_core.spec import ResolvedJobSpec


def write_torch_program(network: nn.Module, spec: ResolvedJobSpec, path: Path) -> float:
    """Write a program with a free batch size; `torch.export.load(path).module()` runs it.

    Args:
        network: from `exported_network`.
        spec: the settings it was built from.
        path: path of the file, with the suffix `.pt2`.

    Returns:
        The difference between the reloaded program and the network; see `largest_difference`.

    Raises:
        ExportError: it computes something else; the file is removed.
    """
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        network, (random_images(spec.backbone, 2),), dynamic_shapes=({0: batch},)
    )
    # The unneeded example inputs are the only part that torch would pickle.
    program.example_inputs = None
    for node in program.graph.nodes:  # they contain paths of this machine
        node.meta.pop("stack_trace", None)
    # Through memory, because torch's file writer ends the process on a full disk.
    archive = io.BytesIO()
    torch.export.save(program, archive)
    path.write_bytes(archive.getbuffer())
    try:
        return largest_difference(network, torch.export.load(path).module(), spec.backbone)
    except ExportError:
        path.unlink()
        raise
