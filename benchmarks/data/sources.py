"""Encoded images in a folder, a tar and on S3, for the contenders that read one image at a time."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tests.support.s3_server import BUCKET, S3Server


class Source(Protocol):
    """Encoded images by number. It can be pickled, since the workers of a DataLoader get a copy."""

    @property
    def location(self) -> str:
        """What our ingest reads: a path or a URI."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> bytes:
        """Return the bytes of an image."""


@dataclass(frozen=True)
class Files:
    """Images in files of their own."""

    paths: Sequence[Path]

    @property
    def location(self) -> str:
        """The folder."""
        return str(self.paths[0].parent)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> bytes:
        """Return the bytes of a file."""
        return self.paths[number].read_bytes()


@dataclass(frozen=True)
class Tar:
    """Images in a tar, read at their offsets."""

    path: Path
    members: Sequence[tuple[int, int]]
    """Offset and size of each image."""

    @classmethod
    def write(cls, path: Path, images: Sequence[Path]) -> Tar:
        """Pack images with the names of WebDataset: `000000.jpg` and the class in `000000.cls`."""
        with tarfile.open(path, "w") as tar:
            for number, image in enumerate(images):
                tar.add(image, f"{number:06d}.jpg")
                label = tarfile.TarInfo(f"{number:06d}.cls")
                label.size = 1
                tar.addfile(label, io.BytesIO(b"0"))
        with tarfile.open(path) as tar:
            members = [(m.offset_data, m.size) for m in tar if m.name.endswith(".jpg")]
        return cls(path, members)

    @property
    def location(self) -> str:
        """The path of the tar."""
        return str(self.path)

    def __len__(self) -> int:
        return len(self.members)

    def read(self, number: int) -> bytes:
        """Return the bytes of a member."""
        offset, size = self.members[number]
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(size)


@dataclass
class Bucket:
    """Images as objects of a bucket."""

    environment: dict[str, str]
    keys: Sequence[str]

    @cached_property
    def _store(self) -> Any:
        """The client, one in each process."""
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=self.environment["AWS_ENDPOINT_URL"],
            region=self.environment["AWS_REGION"],
            access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )

    @property
    def location(self) -> str:
        """The prefix of the objects."""
        return f"s3://{BUCKET}/{self.keys[0].rpartition('/')[0]}"

    def __getstate__(self) -> dict[str, Any]:
        return {"environment": self.environment, "keys": self.keys}

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, number: int) -> bytes:
        """Return the bytes of an object."""
        import obstore

        return bytes(obstore.get(self._store, self.keys[number]).bytes())

    def put(self, number: int, content: bytes) -> None:
        """Store an object."""
        import obstore

        obstore.put(self._store, self.keys[number], content)


@contextmanager
def served(folder: Path, images: Sequence[Path]) -> Iterator[Bucket]:
    """Upload images to an S3 server (SeaweedFS) on this machine; yield them."""
    folder.mkdir()
    server = S3Server(folder)
    try:
        server.start()
        bucket = Bucket(server.environment, [f"images/{path.name}" for path in images])
        for number, path in enumerate(images):
            bucket.put(number, path.read_bytes())
        yield bucket
    finally:
        server.kill()
