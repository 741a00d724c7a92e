"""Words that a run, its workers, the service and its clients share.

A module of its own, because importing a package such as `dasl_core.spec` would slow down every command.
"""

from typing import Literal

Desired = Literal["run", "pause", "cancel"]
"""What a person wants of a job."""

Outcome = Literal["succeeded", "failed", "cancelled", "paused"]
"""How a run ended, as its worker reports it."""

TrainingOutcome = Literal["succeeded", "cancelled", "paused"]
"""How a training ends that raises no error."""

FILE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$"
"""Name of a file of a checkpoint or artifact: flat and not hidden, so it leads nowhere else, and nothing in it is
special to a terminal or shell."""
LONGEST_FILE_NAME = 200

Phase = Literal["reading", "baselines", "training", "final"]
"""Part of a training that may take long."""

IngestPhase = Literal["listing", "headers", "sample", "comparison"]
"""Part of an ingest: it lists the images, reads their headers, decodes a sample, and compares files of equal size."""

FeatureKind = Literal["pooled", "cls", "patch"]
"""What is embedded of an image: the backbone's pooled features, which training evaluates; a transformer's class token;
or one vector for each of its patches."""

EmbeddingFormat = Literal["parquet", "safetensors"]
EmbeddingType = Literal["float32", "float16"]

ExportFormat = Literal["onnx", "torch-export", "hf", "transformers"]

ModelRunPhase = Literal["decoding", "features", "evaluation"]
"""Part of a run on a finished model: images are decoded into the cache, then embedded, or evaluated."""

Subject = Literal["raw", "untrained", "start", "backbone", "embedding"]
"""What an evaluation measures: the pixels; the backbone before training, `untrained` with random weights and `start`
with those of `backbone.pretrained`; the backbone after training; and the L2-normalized embedding of a supervised
method after training."""

BEFORE_TRAINING: tuple[Subject, ...] = ("untrained", "start")
"""Subjects that are the backbone before training."""

TRAINED: tuple[Subject, ...] = ("backbone", "embedding")
"""Subjects that training changes, in the order in which they are recorded; `evaluate.on` names the last."""

# fmt: off
RAW_EXTENSIONS = frozenset({
    "3fr", "arw", "cr2", "cr3", "crw", "dcr", "dng", "erf", "fff", "iiq", "kdc", "mef", "mos", "mrw",
    "nef", "nrw", "orf", "pef", "raf", "rw2", "rwl", "sr2", "srf", "srw", "x3f",
})
DICOM_EXTENSIONS = frozenset({"dcm", "dicom", "dic"})
IMAGE_EXTENSIONS = frozenset({
    "jpg", "jpeg", "jpe", "jfif", "png", "bmp", "dib", "webp", "gif", "tif", "tiff", "tf8", "btf",
    "ppm", "pgm", "pbm", "pnm", "pfm", "jp2", "j2k", "avif", "heic", "heif", "hif", "npy",
}) | DICOM_EXTENSIONS | RAW_EXTENSIONS
"""Extensions of files that may be images: lower case, without the dot."""
# fmt: on
