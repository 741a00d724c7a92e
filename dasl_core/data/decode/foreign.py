"""What a file is that is no image, archive or table, by its first bytes."""

HEAD = 512
"""Number of bytes to read."""
_COMPRESSED = "compressed as a whole, with {}, so that an image in it cannot be read alone; decompress it first"
# Lower case. "<" is that of HTML, XML and SVG.
_BEGINNINGS = {
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself with git lfs pull",
    b"<": "a page of HTML or XML, such as an error of a server or a drawing",
    **dict.fromkeys((b"/9j/", b"ivborw0kggo", b"data:image"), "text in base64; decode it first"),
    b'{"': "JSON, such as an error of a server",
    b"pk\3\4": "a ZIP archive",
    b"rar!": "a RAR archive, which is not supported",
    b"7z\xbc\xaf": "a 7z archive, which is not supported",
    b"%pdf": "a PDF document, which is not supported",
    b"\x89hdf": "an HDF5 file, which is not supported",
    b"8bps": "a Photoshop document, which is not supported",
    b"\xff\x0a": "a JPEG XL image, which is not supported",
    b"\0\0\0\x0cjxl ": "a JPEG XL image, which is not supported",
    b"\x1f\x8b": _COMPRESSED.format("gzip"),
    b"bzh": _COMPRESSED.format("bzip2"),
    b"\xfd7zxz\0": _COMPRESSED.format("xz"),
    b"\x28\xb5\x2f\xfd": _COMPRESSED.format("zstd"),
}


def describe_foreign(head: bytes) -> str | None:
    """Return what a file is, as the end of a sentence, with the remedy; None if its first bytes do not tell."""
    if len(head) > 100 and not head.strip(b"\0"):
        return "not written: it begins with zeros, as an interrupted download or a placeholder does"
    if head[257:262] == b"ustar":
        return "a tar archive"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \r\n\t").lower()
    return next((what for begin, what in _BEGINNINGS.items() if start.startswith(begin)), None)
