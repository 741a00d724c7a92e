"""Opening of a registered data set's index, with a check that its images may be read."""

import os
from dataclasses import replace
from pathlib import Path

from dasl_core.data.index import DatasetIndex
from dasl_core.data.sources import find_source
from dasl_core.spec.locations import ReadableFolders, only
from service.protocol import WorkerDataset
from workers.artifacts import fetch


def open_dataset(dataset: WorkerDataset, readable: ReadableFolders, scratch: Path) -> DatasetIndex:
    """Copy the index of a data set into a folder, and open it.

    Raises:
        ValueError: the images may no longer be read, or the index is damaged or of other images.
        StoreError: the artifact store cannot be read.
    """
    if dataset.upload_folder is not None:
        readable = only(dataset.upload_folder)
    file = fetch(dataset.index_uri, scratch / f"{dataset.id}.index")
    try:
        index = DatasetIndex.load(file)
    except ValueError as error:
        raise ValueError(
            f"the stored index of {dataset.name} cannot be read: {error.__cause__}. Make another version: "
            f"dasl datasets refresh {dataset.id}"
        ) from error
    # Ingest checked this, but a part of the path may have become a link since.
    try:
        record = find_source(dataset.uri, index.source.options, readable)
    except ValueError as error:
        raise ValueError(f"the data set {dataset.name} cannot be read: {error}") from error
    # Ingest stores the resolved location, so an index of another one can be refused.
    here = index.location if "://" in index.location else os.path.realpath(index.location)
    if record.uri != here:
        raise ValueError(
            f"the index of {dataset.name} belongs to {index.location}, not {dataset.uri}"
        )
    source = replace(index.source, uri=record.uri, root=record.root)
    return replace(index, source=source, allowed=readable)
