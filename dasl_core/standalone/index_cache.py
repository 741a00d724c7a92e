"""The index of an image folder, stored in the cache so that a second start decodes nothing."""

from pathlib import Path

from dasl_core.data.decode import is_transient
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import Listing, ingest_listing
from dasl_core.standalone.console import print_line

INDEX = "index.json.gz"


def open_index(listing: Listing, folder: Path) -> DatasetIndex:
    """Load the cached index of a listing, or ingest the images and cache their index.

    Several processes may do so at once: they write the same content, and each write is atomic.

    Args:
        folder: cache folder of this listing, named by its digest. Changed images get another folder,
            so a cached index is never out of date.

    Raises:
        ValueError: no image is usable, or the folder is divided into splits.
    """
    file = folder / INDEX
    try:
        index = DatasetIndex.load(file)
        if index.root == listing.root:
            return index
        print_line(f"{file} belongs to {index.root}; reading all images again", "stderr")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        print_line(f"{error}; reading all images again", "stderr")
    index = ingest_listing(listing)
    if any(is_transient(skipped.reason) for skipped in index.skipped):
        return index  # the next start may be able to read these files
    try:
        folder.mkdir(parents=True, exist_ok=True)
        index.save(file)
    except OSError as error:
        print_line(
            f"{file} cannot be written, so the next start reads all images again: {error}", "stderr"
        )
    return index
