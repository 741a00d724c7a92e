"""Export of a trained backbone: weights, ONNX, Hugging Face's folder layout, and a model card.

Nothing is pickled, and loading an export needs no code of this project.
"""

from dasl_core.export.card import model_card
from dasl_core.export.checkpoint import export_backbone
from dasl_core.export.formats import FORMATS, export_checkpoint
from dasl_core.export.hub import write_hub_folder
from dasl_core.export.network import ExportError
from dasl_core.export.onnx_file import write_onnx
from dasl_core.export.torch_program import write_torch_program

__all__ = [
    "FORMATS",
    "ExportError",
    "export_backbone",
    "export_checkpoint",
    "model_card",
    "write_hub_folder",
    "write_onnx",
    "write_torch_program",
]
