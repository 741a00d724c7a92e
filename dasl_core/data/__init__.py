"""Image data: ingest, decoding, caching, sampling, loading and augmentation."""

from dasl_core.data.decode import decode_image
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_folder
from dasl_core.data.mapped import MappedIndex
from dasl_core.data.sources import Skipped

__all__ = ["DatasetIndex", "MappedIndex", "Skipped", "decode_image", "ingest_folder"]
