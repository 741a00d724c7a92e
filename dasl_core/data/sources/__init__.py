"""Sources of images: folders, lists, archives, tables and arrays, here or in an object store."""

from dasl_core.data.sources.base import Entry, Listing, Skipped, Source
from dasl_core.data.sources.find import SourceRecord, find_source

__all__ = ["Entry", "Listing", "Skipped", "Source", "SourceRecord", "find_source"]
