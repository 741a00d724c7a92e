"""`backbone.onnx`: the backbone for ONNX runtimes, checked against torch when it is written."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dasl_core.export.network import ExportError, largest_difference, preprocessing, random_images
from dasl_core.spec import ResolvedJobSpec

OPSET = 18  # written without conversion by torch's exporter from 2.11 to 2.15
INPUT, OUTPUT = "images", "features"
# A protobuf is limited to 2 GiB; larger weights go into a second file.
LARGEST_SINGLE_FILE = 2**31 - 2**26


def write_onnx(network: nn.Module, spec: ResolvedJobSpec, path: Path) -> dict[str, Any]:
    """Write an ONNX file: float32 `images` (batch, C, S, S) in, `features` (batch, width) out.

    Args:
        network: from `exported_network`.
        spec: the settings it was built from, and the crop of images.
        path: path of the file. Weights above 2 GiB go into a second file with `.data` added to the name.

    Returns:
        Entries of `model.json`: input and output names, opset, and the largest difference between onnxruntime and torch.

    Raises:
        ExportError: the network cannot be exported, or onnxruntime computes something else; the file is removed.
    """
    batch = torch.export.Dim("batch")
    try:
        program = torch.onnx.export(
            network,
            (random_images(spec.backbone, 2),),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: batch},),
            opset_version=OPSET,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(f"torch cannot export {spec.backbone.name} to ONNX: {error}") from error
    assert program is not None, "without a file name, the exporter returns the program"
    model = program.model
    for node in model.graph:  # they hold stack traces with paths of this machine
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    model.metadata_props["preprocessing"] = json.dumps(preprocessing(spec))
    size = sum(tensor.nbytes for tensor in network.state_dict().values())
    program.save(path, external_data=size > LARGEST_SINGLE_FILE)
    try:
        difference = largest_difference(network, _runtime(path), spec.backbone)
    except Exception as error:  # onnxruntime's errors share no base class
        for file in (path, path.with_name(f"{path.name}.data")):
            file.unlink(missing_ok=True)
        raise ExportError(f"the check with onnxruntime failed: {error}") from error
    return {
        "file": path.name,
        "opset": OPSET,
        "input": INPUT,
        "output": OUTPUT,
        "largest_difference_from_torch": difference,
    }


def _runtime(path: Path) -> Any:
    """Load the file into onnxruntime on the CPU, as a function of images."""
    # onnxruntime calls a server of Microsoft, and stores a device's id in the home folder, unless told not to.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # Imported late, because most checkpoints have no ONNX file.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(
        path, sess_options=options, providers=["CPUExecutionProvider"]
    )

    def run(images: Tensor) -> Tensor:
        (features,) = session.run([OUTPUT], {INPUT: images.numpy()})
        return torch.from_numpy(features)

    return run
