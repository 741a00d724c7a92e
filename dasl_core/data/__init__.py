"""Images in a folder: finding and checking them once, and decoding them."""

from dasl_core.data.decode import decode_image
from dasl_core.data.index import DatasetIndex, Skipped
from dasl_core.data.ingest import ingest_folder

__all__ = ["DatasetIndex", "Skipped", "decode_image", "ingest_folder"]
