"""The index of a data set, stored in the cache so that a second start reads no image."""

from pathlib import Path

from dasl_core.data.decode import is_transient
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import ingest_listing
from dasl_core.data.sources import Listing, Source, SourceRecord
from dasl_core.standalone.console import print_line

INDEX = "index.safetensors"


def open_index(
    record: SourceRecord, source: Source, listing: Listing, folder: Path
) -> DatasetIndex:
    """Load the cached index of a listing, or ingest the images and cache their index.

    Several processes may do so at once, because they write the same content atomically.

    Args:
        record: record of the source.
        source: the opened source.
        listing: its entries.
        folder: cache folder of this listing, named by its digest and the format of ingests. Changed images
            get another folder, so a cached index is never out of date.

    Raises:
        ValueError: no image is usable, or the folder is divided into splits.
    """
    file = folder / INDEX
    try:
        index = DatasetIndex.load(file)
        if index.location == record.uri:
            return index
        print_line(f"{file} belongs to {index.location}; reading all images again", "stderr")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        print_line(f"{error}; reading all images again", "stderr")
    index = ingest_listing(record, source, listing).index
    if any(is_transient(skipped.reason) for skipped in index.skipped):
        return index  # not cached: the next start may be able to read these files
    try:
        folder.mkdir(parents=True, exist_ok=True)
        index.save(file)
    except OSError as error:
        print_line(
            f"{file} cannot be written, so the next start reads all images again: {error}", "stderr"
        )
    return index
