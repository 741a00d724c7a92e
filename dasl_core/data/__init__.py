"""Image data: ingest, decoding, caching, sampling, loading and augmentation."""

from dasl_core.data.decode import decode_image
from dasl_core.data.index import DatasetIndex, Skipped
from dasl_core.data.ingest import ingest_folder

__all__ = ["DatasetIndex", "Skipped", "decode_image", "ingest_folder"]
