"""Files of ingests in the artifact store: the results, and headers for the next ingest."""

import errno
import logging
import tempfile
import uuid
from pathlib import Path

from dasl_core.data.headers import HeaderTable
from dasl_core.data.index import DatasetIndex
from dasl_core.data.ingest import Ingested, Previous
from service.object_store import open_store, store_errors
from service.protocol import CONTACT_SHEET
from workers import artifacts

logger = logging.getLogger("workers.ingest")

INDEX = "index.safetensors"
HEADERS = "headers.safetensors"
# Pauses in seconds before retries of a failed upload of the index, since reading the images may have taken hours. The
# dispatcher does not count this time as a hang, because no more progress is reported.
INDEX_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)


class UnfinishedHeaders:
    """Headers read by unfinished ingests of a data set, in files below `uri`.

    Every process writes its own files, so a superseded one changes none.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._process, self._number = uuid.uuid4().hex, 0

    def save(self, headers: HeaderTable) -> None:
        """Save new headers. If the store fails and this ingest is killed, they are read again."""
        name = f"{self._process}-{self._number:06}.safetensors"
        self._number += 1
        try:
            with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
                file = Path(folder) / name
                headers.save(file)
                artifacts.upload(file, f"{self._uri}/{name}")
        except OSError as error:
            logger.warning("%d headers are not saved: %s", len(headers), error)

    def load(self) -> list[HeaderTable]:
        """Return the saved headers, without incomplete files of killed processes."""
        tables = []
        system, path = open_store(self._uri)
        try:
            with store_errors(self._uri):
                entries = system.ls(path, detail=False)
        except OSError:  # nothing was saved, or the store is unavailable
            return []
        with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
            for name in sorted(str(entry).rpartition("/")[2] for entry in entries):
                try:
                    file = artifacts.fetch(f"{self._uri}/{name}", Path(folder) / "headers")
                    tables.append(HeaderTable.load(file))
                except (OSError, ValueError) as error:
                    logger.warning("%s/%s is ignored: %s", self._uri, name, error)
        return tables

    def remove(self) -> None:
        """Remove the files after an ingest has finished."""
        _remove(self._uri)


def load_previous(index_uri: str | None, unfinished: UnfinishedHeaders) -> Previous:
    """Load the results of earlier ingests of a data set, by the index of its newest version, if any."""
    index, tables = None, unfinished.load()
    has_contact_sheet = True
    if index_uri is not None:
        with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
            try:
                # Mapped into memory, so it stays readable after the file is removed.
                index = DatasetIndex.load(artifacts.fetch(index_uri, Path(folder) / INDEX))
                has_contact_sheet = artifacts.exists(contact_sheet_uri(index_uri))
                uri = f"{index_uri.rpartition('/')[0]}/{HEADERS}"
                tables.insert(0, HeaderTable.load(artifacts.fetch(uri, Path(folder) / HEADERS)))
            except (OSError, ValueError) as error:
                logger.warning("%s is read as if for the first time: %s", index_uri, error)
    headers = HeaderTable.merged(tables) if tables else HeaderTable.none()
    logger.info("%d images are known from earlier ingests", len(headers))
    return Previous(headers, index, has_contact_sheet)


def contact_sheet_uri(index_uri: str) -> str:
    """Return the URI of an index's contact sheet."""
    return f"{index_uri.rpartition('/')[0]}/{CONTACT_SHEET}"


def save_results(result: Ingested, folder_uri: str) -> str:
    """Write the index, the headers and the contact sheet to the same folder; return the URI of the index.

    Tolerates an unavailable artifact store for five minutes.

    Raises:
        OSError: the store was unavailable for longer, or its disk is full; the message names the setting.
    """
    index_uri = f"{folder_uri}/{INDEX}"
    with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
        local = Path(folder)
        result.index.save(local / INDEX)
        # The index first, with retries, because a data set needs it.
        upload_index(local / INDEX, index_uri)
        result.headers.save(local / HEADERS)
        _upload_extra(local / HEADERS, f"{folder_uri}/{HEADERS}")
    save_contact_sheet(result, index_uri)
    return index_uri


def save_contact_sheet(result: Ingested, index_uri: str) -> None:
    """Write the contact sheet, if any, next to the index. On failure, the next refresh draws it again."""
    if result.contact_sheet is None:
        return
    with tempfile.TemporaryDirectory(prefix="dasl-") as folder:
        file = Path(folder) / CONTACT_SHEET
        file.write_bytes(result.contact_sheet.jpeg())
        _upload_extra(file, contact_sheet_uri(index_uri))


def _upload_extra(file: Path, uri: str) -> None:
    try:
        artifacts.upload(file, uri, pauses=artifacts.UPLOAD_PAUSES)
    except OSError as error:
        logger.warning("%s is not written: %s", uri, error)
        _remove(uri)  # a partial file must not be taken for a complete one


def _remove(uri: str) -> None:
    """Remove a file or folder of the store if it exists; log a failure."""
    try:
        with store_errors(uri):
            system, path = open_store(uri)
            system.rm(path, recursive=True)
    except OSError as error:
        if error.errno != errno.ENOENT:
            logger.warning("%s cannot be removed: %s", uri, error)


def upload_index(file: Path, uri: str) -> None:
    """Copy an index to the artifact store, with retries for five minutes; then an OSError that names the setting."""
    try:
        artifacts.upload(file, uri, pauses=INDEX_PAUSES)
    except OSError as error:
        message = f"The artifact store (DASL_ARTIFACTS_URI) does not take the index: {error}"
        raise OSError(message) from error
