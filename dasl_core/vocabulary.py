"""Types and constants shared by runs, workers, the service and its clients.

A separate module, because importing a package such as `dasl_core.spec` would slow down every command.
"""

import os
from typing import Literal

Desired = Literal["run", "pause", "cancel"]
"""State of a job requested by a user."""

Outcome = Literal["succeeded", "failed", "cancelled", "paused"]
"""Outcome of a run, as reported by its worker."""

TrainingOutcome = Literal["succeeded", "cancelled", "paused"]
"""Outcome of a training without an error."""

CERTIFICATE = "certificate.json"
"""The certificate in a checkpoint's folder."""
FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$"
"""Pattern of file names of checkpoints and artifacts: flat, not hidden, and without characters that are special to a
terminal or shell."""
LONGEST_FILE_NAME = 200

Phase = Literal["reading", "baselines", "training", "final"]
"""Potentially long part of a training."""

IngestPhase = Literal["listing", "headers", "sample", "comparison"]
"""Part of an ingest: listing images, reading headers, decoding a sample, comparing files of equal size."""

FeatureKind = Literal["pooled", "cls", "patch"]
"""Kind of features: the backbone's pooled features, which training evaluates; a transformer's class token; or one
vector for each of its patches."""

EmbeddingFormat = Literal["parquet", "safetensors"]
EmbeddingType = Literal["float32", "float16"]

ExportFormat = Literal["onnx", "torch-export", "hf", "transformers"]

ModelRunPhase = Literal["decoding", "features", "evaluation"]
"""Part of a model run: decoding images into the cache, then embedding or evaluation."""

Subject = Literal["raw", "untrained", "start", "backbone", "embedding"]
"""Subject of an evaluation: raw pixels; the backbone before training, `untrained` with random weights and `start`
with `backbone.pretrained`; the backbone after training; the L2-normalized embedding of a supervised method after
training."""

BEFORE_TRAINING: tuple[Subject, ...] = ("untrained", "start")
"""Subjects for the backbone before training."""

TRAINED: tuple[Subject, ...] = ("backbone", "embedding")
"""Trained subjects in order of recording; `evaluate.on` names the last."""

# fmt: off
RAW_EXTENSIONS = frozenset({
    "3fr", "arw", "cr2", "cr3", "crw", "dcr", "dng", "erf", "fff", "iiq", "kdc", "mef", "mos", "mrw",
    "nef", "nrw", "orf", "pef", "raf", "rw2", "rwl", "sr2", "srf", "srw", "x3f",
})
DICOM_EXTENSIONS = frozenset({"dcm", "dicom", "dic"})
IMAGE_EXTENSIONS = frozenset({
    "jpg", "jpeg", "jpe", "jfif", "png", "bmp", "dib", "webp", "gif", "tif", "tiff", "tf8", "btf",
    "mpo", "apng", "ppm", "pgm", "pbm", "pnm", "pfm", "jp2", "j2k", "j2c", "jpc", "jpf", "jpx",
    "avif", "avifs", "heic", "heics", "heif", "heifs", "hif", "npy",
}) | DICOM_EXTENSIONS | RAW_EXTENSIONS
"""Extensions of image files: lower case, without the dot."""
# Thumbnails and deleted files: of Synology and QNAP, Windows, macOS and ext4.
SYSTEM_FOLDERS = frozenset({
    "@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot",
    "$recycle.bin", "recycler", "system volume information", "__macosx", "lost+found",
})
"""Names of folders that a system keeps beside the user's, in lower case."""
# fmt: on


def is_hidden(path: str) -> bool:
    """Whether a part of a path begins with a dot, or is a folder of the system."""
    return any(
        (part.startswith(".") and part not in (".", "..")) or part.lower() in SYSTEM_FOLDERS
        for part in path.split("/")
    )


def is_image_name(path: str) -> bool:
    """Whether a file has an image extension."""
    return os.path.splitext(path)[1][1:].lower() in IMAGE_EXTENSIONS
