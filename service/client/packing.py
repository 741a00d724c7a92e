"""The content of an upload: a file, or the images of a folder as a tar that is never stored.

Content can be read from any offset and never changes, so that an upload can resume in another process.
"""

import hashlib
import os
import re
import tarfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dasl_core.ignored import IgnoredFiles
from dasl_core.storage import FOLLOW_LINKS, File, LocalStorage
from dasl_core.vocabulary import is_image_name
from service.client.errors import UploadFailed

_RECORD = tarfile.BLOCKSIZE
_SPECIAL = re.compile(r"[^A-Za-z0-9._+-]")


class Content(Protocol):
    """The content of an upload.

    Attributes:
        filename: name of the file on the server.
        fingerprint: changes when the content does.
    """

    filename: str
    size: int
    fingerprint: str

    def read(self, start: int, stop: int) -> bytes:
        """Read the bytes from `start` to `stop` (exclusive).

        Raises:
            UploadFailed: a file was changed or removed since the content was opened.
        """
        ...


def open_content(path: Path) -> Content:
    """Return the content of a file or folder.

    Raises:
        UploadFailed: it does not exist, or is a folder without images.
    """
    if path.is_dir():
        return FolderContent(path)
    if not path.is_file():
        raise UploadFailed(f"{path} does not exist, or is neither a file nor a folder.")
    return FileContent(path)


class FileContent:
    """A file that is uploaded unchanged."""

    def __init__(self, path: Path) -> None:
        status = path.stat()
        self._path, self._stamp = path, status.st_mtime_ns
        # Make a name that the server accepts.
        self.filename, self.size = _SPECIAL.sub("_", path.name)[-100:].lstrip(".+-"), status.st_size
        self.fingerprint = f"file {status.st_size} {status.st_mtime_ns}"

    def read(self, start: int, stop: int) -> bytes:
        return _read(self._path, start, stop, self.size, self._stamp)


class FolderContent:
    """The images of a folder as a tar archive, sorted by their paths.

    It has what the ingest of the folder would read.

    Attributes:
        num_images: number of images.
        skipped: images and folders that cannot be packed, each with its reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.filename = "images.tar"
        self.skipped: list[File] = []
        self.ignored = IgnoredFiles()
        self._members = sorted(self._find())
        self.num_images = len(self._members)
        if not self._members:
            raise UploadFailed(
                f"{folder} contains no images. Upload a folder of images, or one archive or table."
            )
        # Offset of each member, in an array: with a million images, a list would take 32 MB more.
        self._starts = array("q", [0])
        digest = hashlib.blake2b(digest_size=16)
        for member in self._members:
            length = len(_header(member)) + member.size + _padding(member.size)
            self._starts.append(self._starts[-1] + length)
            digest.update(f"{member.path}\0{member.size}\0{member.stamp}\0".encode())
        self.size = self._starts[-1] + 2 * _RECORD
        self.fingerprint = f"folder {len(self._members)} {digest.hexdigest()}"

    def read(self, start: int, stop: int) -> bytes:
        content = bytearray()
        while (position := start + len(content)) < stop:
            number = bisect_right(self._starts, position) - 1
            if number == len(self._members):  # the end of the archive
                content += bytes(stop - position)
                break
            content += self._read_member(number, position - self._starts[number], stop - position)
        return bytes(content)

    def _read_member(self, number: int, offset: int, length: int) -> bytes:
        """Read up to `length` bytes of a member with its header and padding."""
        member = self._members[number]
        header = _header(member)
        if offset < len(header):
            return header[offset : offset + length]
        offset -= len(header)
        if offset < member.size:
            stop = min(member.size, offset + length)
            return _read(self._folder / member.path, offset, stop, member.size, member.stamp)
        return bytes(min(length, member.size + _padding(member.size) - offset))

    def _find(self) -> Iterator[File]:
        for file in LocalStorage(self._folder).files():
            if file.reason is not None:
                # Of links out of the folder there is no choice here.
                self.skipped.append(file._replace(reason=file.reason.removesuffix(FOLLOW_LINKS)))
            elif is_image_name(file.path):
                # The time that copies keep, by which an upload can be resumed from one.
                yield file._replace(stamp=(self._folder / file.path).stat().st_mtime_ns)
            else:
                self.ignored.add(file.path)


def _header(member: File) -> bytes:
    """Return the header of a member, with additional records for a long name or a large file."""
    about = tarfile.TarInfo(member.path)
    about.size = member.size
    return about.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> int:
    return -size % _RECORD


def _read(path: Path, start: int, stop: int, size: int, stamp: int) -> bytes:
    """Read a part of a file that must not have changed."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            file.seek(start)
            content = file.read(stop - start)
    except OSError as error:
        raise UploadFailed(f"{path} cannot be read: {error.strerror or error}.") from error
    if (status.st_size, status.st_mtime_ns) != (size, stamp) or len(content) < stop - start:
        raise UploadFailed(
            f"{path} changed while it was uploaded. Remove the data set (dasl datasets rm) and upload again."
        )
    return content
