"""Memory that decoding takes."""

from __future__ import annotations

from dasl_core.data.decode.header import Header

# Most bytes that decoding takes for a pixel of 8 bits, as measured: of Pillow's decoder and image, of converted,
# turned or blended copies, and of the array. JPEG takes half of it; WebP, JPEG 2000 and PNG with transparency take
# all.
BYTES_PER_PIXEL = 20


def decoding_memory(header: Header, at_least: tuple[int, int] | None = None) -> int:
    return header.width * header.height * BYTES_PER_PIXEL
