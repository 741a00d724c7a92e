"""`backbone.pt2`: the backbone as a `torch.export` program.

Not part of a checkpoint. `torch.export.load` unpickles what an archive declares as pickled, and
evaluates the expressions of its shapes: whoever opens a .pt2 must trust where it comes from, so each
makes their own, from the safetensors that need no trust.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import nn

from dasl_core.export.network import ExportError, largest_difference, random_images
from dasl_core.spec import ResolvedBackbone


def write_torch_program(network: nn.Module, backbone: ResolvedBackbone, path: Path) -> float:
    """Write a program with a free batch size; `torch.export.load(path).module()` runs it.

    Args:
        network: from `exported_network`.
        backbone: what it was built from.
        path: of the file, with the suffix `.pt2`.

    Returns:
        How far the program, read back, is from the network; see `largest_difference`.

    Raises:
        ExportError: it computes something else; no file is left then.
    """
    batch = torch.export.Dim("batch")
    program = torch.export.export(
        network, (random_images(backbone, 2),), dynamic_shapes=({0: batch},)
    )
    # The example, which nobody needs any more, is the one thing that torch would pickle.
    program.example_inputs = None
    for node in program.graph.nodes:  # they name files of this machine
        node.meta.pop("stack_trace", None)
    # Where a disk is full, torch's writer of files ends the process.
    archive = io.BytesIO()
    torch.export.save(program, archive)
    path.write_bytes(archive.getbuffer())
    try:
        return largest_difference(network, torch.export.load(path).module(), backbone)
    except ExportError:
        path.unlink()
        raise
