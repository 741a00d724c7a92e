"""Image locations of standalone runs, and their index, cached so that a second start reads no image."""

import hashlib
import posixpath
from dataclasses import dataclass, replace
from pathlib import Path

from dasl_core.data.cache import cache_root
from dasl_core.data.decode import is_transient
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import FORMAT, ingest_listing, list_source
from dasl_core.data.sources import Listing, Skipped, Source, SourceRecord, find_source
from dasl_core.data.sources.base import DEFAULT_OPTIONS
from dasl_core.spec.locations import local_path
from dasl_core.spec.source import SourceOptions, remote_scheme
from dasl_core.standalone.console import print_line
from dasl_core.standalone.ranks import on_rank_0
from dasl_core.text import without_line

INDEX = "index.safetensors"


@dataclass(frozen=True)
class ImageLocation:
    """A location of images.

    Attributes:
        uri: a path, a pattern or a URI for `find_source`.
        split: the only split to use.
        given_by: option or field of the location, for messages.
    options: further options of the source.
    """

    uri: str
    split: str | None
    given_by: str
    options: SourceOptions = DEFAULT_OPTIONS

    @property
    def name(self) -> str:
        """Name of the data set: the last part of the location, and the split."""
        last = posixpath.basename(self._path)
        return last if self.split is None else f"{last}-{self.split}"

    @property
    def name_with_parent(self) -> str:
        """Name of the data set with that of the parent folder."""
        return f"{posixpath.basename(posixpath.dirname(self._path))}-{self.name}"

    @property
    def local_path(self) -> Path | None:
        """Local path with links resolved; None for a remote location."""
        if remote_scheme(self.uri) is not None:
            return None
        path = local_path(self.uri) if "://" in self.uri else Path(self.uri)
        return path.resolve()

    @property
    def _path(self) -> str:
        path = self.local_path
        return self.uri.rstrip("/") if path is None else str(path)

    def is_same(self, other: "ImageLocation") -> bool:
        return (self._path, self.split) == (other._path, other.split)

    def check_outside(self, output: Path, folder: Path | None = None) -> None:
        """Check that an output lies outside.

        Args:
            folder: folder of an output that is a file.

        Raises:
            ValueError: it lies inside.
        """
        path = self.local_path
        if path is not None and (folder or output).resolve().is_relative_to(path):
            raise ValueError(
                f"--output: {output} is inside the folder of images. Choose another one."
            )

    def find(self) -> SourceRecord:
        """Detect the kind of source; a ValueError that names the option or field if it cannot be read."""
        try:
            return find_source(self.uri, self.options.model_copy(update={"split": self.split}))
        except ValueError as error:
            raise ValueError(f"{self.given_by}: {error}") from error


def open_images(location: ImageLocation) -> tuple[DatasetIndex, Path]:
    """Return the index, which rank 0 opens or creates, and its cache folder on all ranks; a ValueError if empty."""

    def open_on_rank_0() -> tuple[DatasetIndex, str]:
        record = location.find()
        source, listing = list_source(record)
        content = f"{FORMAT}\n{record}\n{listing.digest()}"
        name = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        return open_index(record, source, listing, root / name), name

    root = cache_root() / "local"
    index, name = on_rank_0(open_on_rank_0)
    if location.local_path is not None:
        # The folder may have another path on another machine.
        here = location.find()
        index = replace(index, source=replace(index.source, uri=here.uri, root=here.root))
    return index, root / name


def open_index(
    record: SourceRecord, source: Source, listing: Listing, folder: Path
) -> DatasetIndex:
    """Load the cached index of a listing, or ingest the images and cache their index.

    Several processes may do so at once, because they write the same content atomically.

    Args:
        listing: the entries of `source`.
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


def print_warnings(index: DatasetIndex) -> None:
    """Print what is not used, and warnings about losses of the other images."""
    by_reason: dict[str, list[Skipped]] = {}
    for skipped in index.skipped:
        by_reason.setdefault(without_line(skipped.reason), []).append(skipped)
    for alike in by_reason.values():
        several = f"{len(alike)} files, such as " if len(alike) > 1 else ""
        print_line(f"Skipped {several}{alike[0].path}: {alike[0].reason}", "stderr")
    for warning in index.warnings:
        print_line(f"Warning: {warning}.", "stderr")
    for sentence in index.unused:
        print_line(sentence, "stderr")
