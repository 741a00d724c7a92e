"""Create uploads and store their chunks."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import re
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy.orm import Session

from dasl_core.spec.source import REMOTE_SCHEMES
from service.api.auth import Caller
from service.api.problems import Problem, field_problem, quota_exceeded
from service.artifacts import free_space
from service.artifacts.storage import Storage
from service.datasets import repository as datasets
from service.datasets.schemas import UploadRequest
from service.datasets.service import get
from service.datasets.uploads import repository
from service.datasets.uploads.files import Busy, UploadFiles, is_full, upload_files
from service.db.locks import lock_quota, lock_tenant_bytes
from service.db.models import Dataset, Token
from service.db.session import Database
from service.object_store import StoreError
from service.settings import Settings
from service.states import DatasetState

MAX_CHUNK_BYTES = 64 << 20
OFFSET_HEADER = "Upload-Offset"
_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})", re.ASCII)
_EXPECTED_RANGE = "bytes FIRST-LAST/SIZE, such as bytes 0-16777215/50000000"
# A member of an RFC 8941 dictionary, which may have parameters.
_NAMES_SHA256 = re.compile(r"\s*sha-256(?![\w.*-])", re.ASCII | re.IGNORECASE)
_SHA256 = re.compile(r"\s*sha-256=:([A-Za-z0-9+/=]*):\s*(?:;.*)?", re.ASCII)
_RETRY_AFTER = {"Retry-After": "2"}


StoreChunk = Generator[None, bytes | None, Dataset]
"""See `store_chunk`."""


class Part(NamedTuple):
    """The range of a chunk (`stop` is exclusive) and the size of the whole file; as text a Content-Range."""

    start: int
    stop: int
    total: int

    def __str__(self) -> str:
        return f"bytes {self.start}-{self.stop - 1}/{self.total}"


# An upload without a new chunk for this time reserves no room, and neither does one of which nothing was sent.
_ACTIVE = timedelta(minutes=10)


def measure_room(upload: UploadRequest, settings: Settings) -> int | None:
    """Check that a file may be uploaded; return the free bytes of its disk, None if unlimited or unknown.

    The disk may hang, so no transaction may be open.

    Raises:
        Problem: 422, it is too large; 409, the artifacts are in a store from which no images are read.
    """
    if upload.size > settings.max_upload_bytes:
        limit = f"at most {settings.max_upload_bytes} bytes (DASL_MAX_UPLOAD_BYTES)"
        raise field_problem("upload.size", "is too large", upload.size, limit)
    scheme = settings.artifacts_uri.partition("://")[0]
    if scheme != "file" and scheme not in REMOTE_SCHEMES:
        detail = f"Images cannot be uploaded: none are read from {scheme}:// (DASL_ARTIFACTS_URI)"
        raise Problem(409, "uploads-unavailable", detail)
    try:
        return free_space.free_bytes(settings.artifacts_uri)
    except OSError:
        return None  # the first chunk will fail if the disk is full


def check_room(session: Session, upload: UploadRequest, free: int) -> None:
    """Check that `free` bytes suffice for a file and the rest of those that are being sent.

    Raises:
        Problem: 507, the disk is too full.
    """
    active_since = datetime.now(UTC) - _ACTIVE
    available = free - free_space.FULL_BYTES - repository.outstanding_bytes(session, active_since)
    if available < upload.size:
        detail = (
            f"The disk of {free_space.ARTIFACTS} has room for {max(0, available)} more bytes of uploads; the file has "
            f"{upload.size}. Make room there, or delete uploads that are not needed"
        )
        raise Problem(507, "storage-full", detail)


def check_quotas(session: Session, caller: Caller, size: int) -> None:
    """Check that the tenant and the token may have uploads of `size` more bytes; they count as declared.

    Locks the tenant's row, so call it before other locks are taken.

    Raises:
        Problem: 429.
    """
    field = "max_uploaded_bytes"
    of_tenant = lock_tenant_bytes(session, caller.tenant)
    of_token = lock_quota(session, Token.max_uploaded_bytes, caller.token_id, caller.user_id)
    for whose, limit, uploads in (
        (f"the tenant {caller.tenant}", of_tenant, repository.of_tenant(caller.tenant)),
        ("this token", of_token, repository.of_account(caller.token_id, caller.user_id)),
    ):
        if limit is None:
            continue
        used = repository.uploaded_bytes(session, uploads)
        if used + size > limit:
            detail = (
                f"{field} of {whose} is {limit}, and its uploads have {used} bytes; this one has {size}. Remove data sets "
                "that are not needed (dasl datasets rm)"
            )
            raise quota_exceeded(field, limit, used, detail)


def begin(dataset: Dataset, upload: UploadRequest, storage: Storage) -> None:
    """Initialize a new data set for an upload."""
    dataset.uri = upload_files(storage, dataset.id, upload.filename).uri
    dataset.state = DatasetState.UPLOADING
    dataset.upload_file = upload.model_dump(include={"filename", "sha256", "fingerprint"})
    dataset.upload_size, dataset.upload_received = upload.size, 0
    dataset.upload_received_at = dataset.created_at


def parse_range(header: str | None) -> Part:
    """Parse a Content-Range header.

    Raises:
        Problem: 422, it is missing or invalid; 413, the chunk is too large.
    """
    if not header:
        raise field_problem("Content-Range", "is missing", "", _EXPECTED_RANGE)
    if (match := _RANGE.fullmatch(header)) is None:
        raise field_problem("Content-Range", "is not a range of bytes", header, _EXPECTED_RANGE)
    part = Part(int(match[1]), int(match[2]) + 1, int(match[3]))
    if part.start >= part.stop:
        raise field_problem("Content-Range", "ends before it begins", header, _EXPECTED_RANGE)
    if part.stop > part.total:
        expected = f"at most {part.total - 1} as the last byte of {part.total}"
        raise field_problem("Content-Range", "goes beyond the end of the file", header, expected)
    if part.stop - part.start > MAX_CHUNK_BYTES:
        detail = f"A chunk may have at most {MAX_CHUNK_BYTES} bytes"
        raise Problem(413, "body-too-large", detail, extra={"limit": MAX_CHUNK_BYTES})
    return part


def parse_digest(header: str | None) -> bytes | None:
    """Return the SHA-256 of a Content-Digest header (RFC 9530); None if it has no SHA-256.

    Raises:
        Problem: 422, its SHA-256 is invalid.
    """
    digests = [item for item in (header or "").split(",") if _NAMES_SHA256.match(item)]
    if not digests:
        return None
    match = _SHA256.fullmatch(digests[-1])  # RFC 8941: the last of several counts
    try:
        digest = base64.b64decode(match[1], validate=True) if match else b""
    except binascii.Error:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        expected = "sha-256=:BASE64: of the 32 bytes of the digest"
        raise field_problem("Content-Digest", "is invalid", header, expected)
    return digest


def store_chunk(
    database: Database,
    storage: Storage,
    tenant: str,
    dataset_id: str,
    part: Part,
    digest: bytes | None,
    on_complete: Callable[[Session], None],
) -> StoreChunk:
    """Store a chunk of an upload and return the data set; a chunk that is already stored is compared.

    The blocks of the request's body are sent to this generator, and an empty one at the end. It waits for them
    without an open transaction, and each step may run in another thread.

    Args:
        digest: SHA-256 of the body, if it is to be checked.
        on_complete: called in the transaction that records the last chunk.

    Raises:
        Problem: 404, there is no such data set; 409, the upload is at another offset, has other bytes there, is written
            to by another request, or is over; 422, the file has another size or the chunk is too small; 400, the body
            is not what the headers say; 507, the disk is full.
    """
    check = _Check(part.stop - part.start, digest)
    dataset = _read(database, tenant, dataset_id)
    is_stored = _is_stored(dataset, part)
    assert dataset.upload_file is not None
    files = upload_files(storage, dataset_id, dataset.upload_file["filename"])
    try:
        if is_stored:
            yield from _compare(database, dataset, part, files, check)
            return dataset
        if part.stop - part.start < files.min_chunk and part.stop < part.total:
            expected = f"at least {files.min_chunk} bytes in every chunk but the last"
            raise field_problem(
                "Content-Range", "is too small for the artifact store", str(part), expected
            )
        with files.writer(part.start) as write:
            # Check again, as another request may have written until now.
            if _is_stored(dataset := _read(database, tenant, dataset_id), part):
                yield from _compare(database, dataset, part, files, check)
                return dataset
            chunk = yield from write(part.start, check)
            return _record(database, tenant, dataset_id, part, files, chunk, on_complete)
    except Busy:
        detail = "Another request is writing to this upload; wait until it ends"
        raise Problem(409, "upload-busy", detail, headers=_RETRY_AFTER) from None
    except OSError as error:
        if not is_full(error):
            reason = error.strerror or str(error)
            raise StoreError(error.errno or errno.EIO, reason, files.uri) from error
        detail = f"The chunk was not stored: {free_space.full(free_space.ARTIFACTS)}"
        raise Problem(507, "storage-full", detail) from error


def _record(
    database: Database,
    tenant: str,
    dataset_id: str,
    part: Part,
    files: UploadFiles,
    chunk: str | None,
    on_complete: Callable[[Session], None],
) -> Dataset:
    with database.write() as session:
        now = datetime.now(UTC)
        if repository.advance(session, dataset_id, part.start, part.stop, chunk, now):
            if part.stop == part.total:
                on_complete(session)
            return datasets.by_id(session, dataset_id)
    files.discard(chunk)
    _read(database, tenant, dataset_id)  # raises if it was deleted
    # Another request stored a chunk at this offset. When the client repeats this one, they are compared.
    detail = "Another request has written to this upload meanwhile; send the chunk again"
    raise Problem(409, "upload-busy", detail, headers=_RETRY_AFTER)


def _compare(
    database: Database, dataset: Dataset, part: Part, files: UploadFiles, check: _Check
) -> Generator[None, bytes, None]:
    """Compare the blocks of a body with the stored bytes.

    Raises:
        Problem: 409, they differ; or the problem of `check`.
    """
    with database.read() as session:
        chunks = repository.chunks(session, dataset.id)
    position, differs = part.start, False
    while block := (yield):
        check(block)
        differs = differs or block != files.read(position, position + len(block), chunks)
        position += len(block)
    check(b"")  # first: a body that was damaged in transit also differs
    if differs:
        detail = (
            f"The chunk is not what is stored from byte {part.start} on: the upload was begun with another file, or "
            f"another client sends one. Delete the data set {dataset.name!r} and upload again, or use another name"
        )
        raise Problem(409, "upload-differs", detail)


def _read(database: Database, tenant: str, dataset_id: str) -> Dataset:
    with database.read() as session:
        return get(session, tenant, dataset_id)


def _is_stored(dataset: Dataset, part: Part) -> bool:
    """Whether a chunk is already stored.

    Raises:
        Problem: it is not stored and cannot be stored now.
    """
    if dataset.upload_size is None or dataset.upload_received is None:
        detail = f"The images of {dataset.name!r} are not uploaded, but read from {dataset.uri}"
        raise Problem(409, "not-an-upload", detail)
    size, received = dataset.upload_size, dataset.upload_received
    if part.total != size:
        message = f"has the size {part.total}, but the upload was created with {size} bytes"
        raise field_problem("Content-Range", message, str(part), f"bytes FIRST-LAST/{size}")
    if part.stop <= received:
        return True
    if dataset.state != DatasetState.UPLOADING:
        detail = f"The upload is over: the data set is {dataset.state}. Delete it to upload again"
        raise Problem(409, "wrong-state", detail)
    if part.start != received:
        detail = f"The next byte of the upload is {received}; the chunk begins at {part.start}"
        headers = {OFFSET_HEADER: str(received)}
        raise Problem(409, "upload-offset", detail, headers=headers, extra={"offset": received})
    return False


class _Check:
    """Checks the length of a body, and its SHA-256 if there is a digest."""

    def __init__(self, length: int, digest: bytes | None) -> None:
        self._length, self._digest = length, digest
        self._received, self._state = 0, hashlib.sha256()

    def __call__(self, block: bytes) -> None:
        """Check the next block; at an empty block, check the whole body.

        Raises:
            Problem: the body has another length or digest than its headers say.
        """
        self._received += len(block)
        if self._received > self._length or (not block and self._received < self._length):
            amount = "more" if self._received > self._length else f"{self._received}"
            detail = f"The body has {amount} bytes, and Content-Range names {self._length}"
            raise Problem(400, "bad-request", detail)
        if self._digest is None:
            return
        self._state.update(block)
        if not block and self._state.digest() != self._digest:
            detail = (
                "The body does not have the SHA-256 of its Content-Digest; send the chunk again"
            )
            raise Problem(400, "digest-mismatch", detail)
