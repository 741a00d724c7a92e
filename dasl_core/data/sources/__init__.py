"""Sources of images: folders, lists, archives, tables and arrays, local or in an object store.

Each kind is a class that its module registers; all modules are imported here.
"""

from importlib import import_module
from pkgutil import iter_modules

from dasl_core.data.sources.base import SOURCES, Entry, Listing, Skipped, Source, SourceRecord
from dasl_core.data.sources.find import find_source
from dasl_core.spec.source import SOURCE_KINDS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
assert SOURCES.keys() >= {*SOURCE_KINDS.values()}, "a module registers each kind of file"

__all__ = ["SOURCES", "Entry", "Listing", "Skipped", "Source", "SourceRecord", "find_source"]
