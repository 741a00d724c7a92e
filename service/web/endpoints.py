"""`/` and `/page/...`: the page's document and its files, read once and kept in memory."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from service.api.problems import not_found

router = APIRouter(include_in_schema=False)

ROOT = Path(__file__).parent
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
# The folder of the files is named after their content, so that a browser may cache them forever.
_IMPORT = re.compile(r"""^(?:import|export|\}) .*from "(\.[^"]+)";$""", re.MULTILINE)
_COMMENT = re.compile(r"^ *//.*$|/\*\*[\s\S]*?\*/ ?", re.MULTILINE)
_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class File:
    """A file of the page, with and without compression."""

    content: bytes
    compressed: bytes
    type: str
    etag: str

    @classmethod
    def from_content(cls, content: bytes, suffix: str) -> File:
        """Build a file with this content; `suffix` determines its type."""
        # A weak tag, because it is the same for both encodings.
        etag = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        return cls(content, gzip.compress(content, mtime=0), _TYPES[suffix], etag)


@dataclass(frozen=True)
class Page:
    """The document, and all other files by path; `version` identifies their content."""

    version: str
    document: File
    files: dict[str, File]


@cache
def page() -> Page:
    """Read the files of the page."""
    found = sorted(path for path in ROOT.rglob("*") if path.suffix in _TYPES)
    contents = {str(path.relative_to(ROOT)): _served(path) for path in found}
    document = contents.pop("index.html")
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    version = digest.hexdigest()[:16]
    files = {
        name: File.from_content(content, Path(name).suffix) for name, content in contents.items()
    }
    # Preload the modules of the first view in parallel, instead of one import after the other.
    modules = "\n".join(
        f'<link rel="modulepreload" href="page/{version}/{name}">'
        for name in sorted(_imported("js/main.js", contents))
    )
    filled = document.replace(b"{{version}}", version.encode())
    filled = filled.replace(b"{{modules}}", modules.encode())
    return Page(version, File.from_content(filled, ".html"), files)


def _imported(
    name: str, contents: dict[str, bytes], known: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Return a module and its static imports, recursively; dynamic imports (`import()`) are left out."""
    if name in known:
        return known
    known |= {name}
    for imported in _IMPORT.findall(contents[name].decode()):
        path = (ROOT / name).parent.joinpath(imported).resolve().relative_to(ROOT.resolve())
        known = _imported(str(path), contents, known)
    return known


def _served(path: Path) -> bytes:
    """Read a file; strip the comments (an eighth) of DASL's modules, but keep the line numbers."""
    content = path.read_bytes()
    if path.parent.is_relative_to(ROOT / "js"):
        text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), content.decode())
        content = text.encode()
    return content


@router.api_route("/", methods=["GET", "HEAD"])
async def show_page(request: Request) -> Response:
    """Return the document. Browsers revalidate it each time."""
    return _answer(request, page().document, "no-cache")


@router.api_route("/page/{version}/{name:path}", methods=["GET", "HEAD"])
async def show_file(request: Request, version: str, name: str) -> Response:
    """Return a file of the page."""
    known = page()
    file = known.files.get(name)
    if file is None:
        raise not_found("file of the page", name)
    # During an upgrade, a document of another version may request it: send this version's file, without caching.
    return _answer(request, file, _FOREVER if version == known.version else "no-cache")


def _answer(request: Request, file: File, caching: str) -> Response:
    headers = {**HEADERS, "ETag": file.etag, "Cache-Control": caching}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = file.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = file.compressed
        headers["Content-Encoding"] = "gzip"
    return Response(content, headers=headers, media_type=file.type)
