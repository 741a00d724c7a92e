"""Tar and zip archives, read at random by offset."""

from __future__ import annotations

import io
import os
import posixpath
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from dasl_core.data.decode.foreign import HEAD, describe_foreign
from dasl_core.data.sources.base import (
    Entry,
    Lister,
    Listing,
    OnListed,
    Source,
    SourceRecord,
)
from dasl_core.data.sources.inflated import Inflated
from dasl_core.data.sources.splits import file_split
from dasl_core.data.sources.tar_members import read_members
from dasl_core.spec.locations import ReadableFolders
from dasl_core.storage import is_inside, open_part
from dasl_core.vocabulary import is_hidden, is_image_name

# Largest image file in an archive, in bytes: twice an uncompressed 16-bit image of 89 million pixels.
MAX_BYTES = 1 << 30
# Labels of WebDataset's `.cls` files are short.
_MAX_LABEL = 1 << 10
# Longest chain of links; the limit of Linux.
_MOST_LINKS = 40
_SPLIT = "it is a part of a split archive; join the parts, for example with zip -s 0"
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
# The size is behind the content where this flag is set, and in an extra field where its place has this value.
_SIZE_IS_BEHIND, _SIZE_IN_EXTRA = 1 << 3, 0xFFFF_FFFF
_NAMES_ARE_UTF_8 = 1 << 11
# After the content: CRC, length and size.
_DESCRIPTOR = struct.Struct("<3L")


class _ArchiveSource(Source):
    """The images of archives."""

    in_several_files = has_folders = True

    def __init__(self, record: SourceRecord, allowed: ReadableFolders) -> None:
        self.storage = record.storage(allowed, record.options.links)
        self.files = record.files
        # Skipped entries are listed only for this split, and for entries without one.
        self.split = record.options.split

    def _read(self, entry: Entry, begin: int) -> bytes:
        content = self.storage.read(self.files[entry.file], begin, entry.length)
        if len(content) < entry.length:
            raise ValueError("the archive is cut off in this image")
        return content


class TarSource(_ArchiveSource, kind="tar"):
    """The images of tar archives, such as the shards of WebDataset.

    Archives must not be compressed, so that they can be read in part. A `.cls` file is the label of the image of its
    name, or of those with the same name up to the first dot. A link stands for its target in the same archive.
    """

    def list_entries(self, on_listed: OnListed) -> Listing:
        listing = _Archives(self.files, on_listed, self.split)
        for number, name in enumerate(self.files):
            self._list(number, name, listing)
        return listing.listing()

    def _list(self, number: int, name: str, listing: _Archives) -> None:
        about = self.storage.info(name)
        labels: dict[str, str] = {}
        links: dict[str, str] = {}
        first = len(listing.entries)
        with self.storage.open(name) as file:
            what = describe_foreign(file.read(HEAD))
            if what is not None and "tar" not in what.split():
                listing.skip_in(number, name, f"it is {what}")
                return
            for member in read_members(file, about.size, lambda why: listing.damaged(number, why)):
                path = member.name.removeprefix("./")
                if member.islnk() or member.issym():
                    links[path] = _target(member)
                elif path.endswith(".cls") and member.isfile() and member.size <= _MAX_LABEL:
                    file.seek(member.offset_data)
                    label = file.read(member.size).decode(errors="replace")
                    name = listing.key(number, path).removesuffix(".cls")
                    labels[name] = label.replace("\0", "").strip()
                elif not member.isdir():
                    entry = Entry(path, member.size, about.stamp, number, member.offset_data)
                    end = entry.offset + entry.length
                    reason = "the archive is cut off in this image" if end > about.size else None
                    if not member.isfile() or member.issparse():
                        reason = "it is not a regular file"
                    listing.add_member(entry, reason)
        listing.add_links(number, links, first)
        for link, target in links.items():
            name = listing.key(number, _followed(target, links)).removesuffix(".cls")
            if link.endswith(".cls") and name in labels:
                labels[listing.key(number, link).removesuffix(".cls")] = labels[name]
        listing.label(first, labels)

    def open(self, entry: Entry) -> BinaryIO:
        return io.BytesIO(self._read(entry, entry.offset))

    def open_header(self, entry: Entry) -> BinaryIO:
        return open_part(self.storage, self.files[entry.file], entry.offset, entry.length)


class ZipSource(_ArchiveSource, kind="zip"):
    """The images of zip archives, stored or deflated."""

    inflates = True

    def list_entries(self, on_listed: OnListed) -> Listing:
        listing = _Archives(self.files, on_listed, self.split)
        for number, name in enumerate(self.files):
            stamp = self.storage.info(name).stamp
            try:
                with self.storage.open(name) as file, zipfile.ZipFile(file) as archive:
                    members = archive.infolist()
                    if any(member.volume or member.header_offset < 0 for member in members):
                        raise NotImplementedError(_SPLIT)
                    names, encoding = _decode_names(members)
                    if encoding is not None:
                        listing.warnings.append(
                            f"{name} does not say how its names are encoded; they are read as {encoding}, such as "
                            f"{next(each for each in names if not each.isascii())}. If that is wrong, use UTF-8"
                        )
                    for key, member in zip(names, members, strict=True):
                        # PowerShell 5 separates folders as Windows does.
                        key = key if "/" in key else key.replace("\\", "/")
                        offset, length = member.header_offset, member.compress_size
                        entry = Entry(key, length, stamp ^ member.CRC, number, offset)
                        if not key.endswith("/"):
                            listing.add_member(entry, _zip_reason(member))
            except zipfile.BadZipFile as error:
                listing.damaged(number, str(error))
            except NotImplementedError as error:
                listing.skip_in(number, name, str(error))
        return listing.listing()

    def open(self, entry: Entry) -> BinaryIO:
        member = self._find(entry)
        content = self._read(entry, member.begin)
        if not member.is_deflated:
            return io.BytesIO(content)
        decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        size = self._size_behind(entry, member) if member.size is None else member.size
        # A byte more, which a file that is larger than it says has.
        most = MAX_BYTES if size is None else min(MAX_BYTES, size + 1)
        try:
            plain = decompressor.decompress(content, most)
        except zlib.error as error:
            raise ValueError(f"the archive is damaged in this image: {error}") from error
        if not decompressor.eof:
            raise ValueError("the archive is cut off in this image, or the image is far too large")
        return io.BytesIO(plain)

    def open_header(self, entry: Entry) -> BinaryIO:
        member, name = self._find(entry), self.files[entry.file]
        content = open_part(self.storage, name, member.begin, entry.length)
        if not member.is_deflated:
            return content
        size = self._size_behind(entry, member) if member.size is None else member.size
        return io.BufferedReader(Inflated(content, entry.key, size, MAX_BYTES))

    def _size_behind(self, entry: Entry, member: _Member) -> int | None:
        """Read a member's inflated size behind its content, where a streamed archive has it; None if it is missing."""
        end = member.begin + entry.length
        behind = self.storage.read(self.files[entry.file], end, 4 + _DESCRIPTOR.size)
        behind = behind.removeprefix(b"PK\x07\x08")
        if len(behind) < _DESCRIPTOR.size:
            return None
        _, length, size = _DESCRIPTOR.unpack_from(behind)
        return int(size) if length == entry.length else None

    def _find(self, entry: Entry) -> _Member:
        """Locate the content of a member by its header."""
        header = self.storage.read(self.files[entry.file], entry.offset, _LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise ValueError("the archive is damaged: the header of this image is not there")
        _, _, flags, method, _, _, _, _, size, names, extra = _LOCAL_HEADER.unpack(header)
        begin = entry.offset + len(header) + names + extra
        is_elsewhere = bool(flags & _SIZE_IS_BEHIND) or size == _SIZE_IN_EXTRA
        return _Member(begin, method != zipfile.ZIP_STORED, None if is_elsewhere else size)


class _Member(NamedTuple):
    """Offset of a zip member's content, and its inflated size if the header has it."""

    begin: int
    is_deflated: bool
    size: int | None


class _Archives(Lister):
    """Lister of one or more archives; keys start with the archive's name if there are several."""

    def __init__(self, files: Sequence[str], on_listed: OnListed, split: str | None) -> None:
        super().__init__(on_listed, split)
        self._files, self._several = files, len(files) > 1
        self._places: dict[str, int] = {}

    def key(self, number: int, name: str) -> str:
        """Return the key of a member of an archive, as programs unpack it: without a slash at its beginning."""
        name = name.removeprefix("./").lstrip("/")
        return f"{os.path.splitext(self._files[number])[0]}/{name}" if self._several else name

    def add_member(self, entry: Entry, reason: str | None = None) -> None:
        """List a member, if it is an image; as skipped if there is a reason."""
        if is_hidden(entry.key):  # as in a folder
            return
        if not is_image_name(entry.key):
            self.ignored.add(entry.key)
            return
        key = self.key(entry.file, entry.key)
        if any("\udc80" <= character <= "\udcff" for character in key):
            reason = "its name is not valid UTF-8"
        elif "\0" in key:
            reason = "its name contains a null character"
        elif not is_inside(key):
            reason = "its name leads out of the archive"
        elif entry.length > MAX_BYTES:
            reason = "the file is far too large for an image"
        if reason is not None:
            self.skip_in(entry.file, key, reason)
            return
        entry = entry._replace(key=key, split=self._find_split(entry.file))
        place = self._places.setdefault(key, len(self.entries))
        if place < len(self.entries):
            self.entries[place] = entry  # as when the archive is unpacked
            self.skip_in(entry.file, key, "a later file of the archive replaces it")
        else:
            self.add(entry)

    def skip_in(self, number: int, path: str, reason: str) -> None:
        """List a member of an archive, or the archive itself, as skipped."""
        self.skip(path, reason, self._find_split(number))

    def _find_split(self, number: int) -> str | None:
        return file_split(self._files[number]) if self._several else None

    def add_links(self, number: int, links: dict[str, str], first: int) -> None:
        """Add the links of an archive to its images, the entries from `first` on, as entries."""
        if not links:
            return
        images = {entry.key: entry for entry in self.entries[first:]}
        for link, target in links.items():
            image = images.get(self.key(number, _followed(target, links)))
            if image is not None:
                self.add_member(image._replace(key=link))
            else:
                reason = "it is a link to something that is no usable image of the archive"
                self.add_member(Entry(link, file=number), reason)

    def label(self, first: int, labels: dict[str, str]) -> None:
        """Label the entries from `first` on by the `.cls` of their name, or the only one of their sample.

        Raises:
            ValueError: an image has several of its sample to choose from.
        """
        samples: dict[str, list[str]] = {}
        for name in labels:
            samples.setdefault(_sample(name), []).append(name)
        for position, entry in enumerate(self.entries[first:] if labels else (), first):
            name = os.path.splitext(entry.key)[0]
            names = [name] if name in labels else samples.get(_sample(entry.key), [])
            if len(names) > 1:
                raise ValueError(
                    f"{entry.key} could have the label of {names[0]}.cls or of {names[1]}.cls, because a WebDataset sample "
                    f"is named by what is before the first dot. Name each label file as its image: {name}.cls"
                )
            self.entries[position] = entry._replace(label=labels[names[0]] if names else None)

    def damaged(self, number: int, problem: str) -> None:
        self.skip_in(number, self._files[number], f"the archive is damaged: {problem}")


def _target(link: tarfile.TarInfo) -> str:
    """Return the name of a link's target; symbolic links are relative to their folder."""
    target = link.linkname
    if link.issym():
        target = posixpath.join(posixpath.dirname(link.name), target)
    return posixpath.normpath(target)


def _followed(target: str, links: dict[str, str]) -> str:
    """Follow a chain of links, up to the limit."""
    for _ in range(_MOST_LINKS):
        if target not in links:
            break
        target = links[target]
    return target


def _sample(key: str) -> str:
    """Return the name of a WebDataset sample: the file's name up to the first dot."""
    folder, slash, name = key.removeprefix("./").rpartition("/")
    return folder + slash + name.partition(".")[0]


def _decode_names(members: Sequence[zipfile.ZipInfo]) -> tuple[list[str], str | None]:
    """Return the names of a zip archive's members, and their encoding if that was guessed.

    Names without the flag of UTF-8 are of the system that made them. `zipfile` reads them as code page 437.
    """
    names = [member.filename for member in members]
    stored = [
        None if member.flag_bits & _NAMES_ARE_UTF_8 or name.isascii() else name.encode("cp437")
        for name, member in zip(names, members, strict=True)
    ]
    for encoding in ("utf-8", "gbk") if any(stored) else ():
        with suppress(UnicodeDecodeError):
            decoded = [name and name.decode(encoding) for name in stored]
            special = [letter for name in decoded for letter in name or "" if not letter.isascii()]
            # Of two letters with accents, GBK makes a rare character, which the older GB 2312 lacks.
            common = sum(bool(letter.encode("gb2312", "ignore")) for letter in special)
            if encoding == "utf-8" or 2 * common > len(special):
                names = [new or name for new, name in zip(decoded, names, strict=True)]
                return names, None if encoding == "utf-8" else encoding
    return names, "cp437" if any(stored) else None


def _zip_reason(member: zipfile.ZipInfo) -> str | None:
    """Return why a member of a zip archive cannot be read, or None."""
    if member.flag_bits & 0x1:
        return "it is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "it is compressed in a way that is not read; expected stored or deflated"
    if member.file_size > MAX_BYTES:
        return "the file is far too large for an image"
    return None
