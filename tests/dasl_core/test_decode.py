"""Decoding: correct 8-bit pixels for every image mode, and a reason for every broken file."""

import io
import re
import subprocess
import sys
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from PIL import Image

from dasl_core.data import decode_image
from dasl_core.data.decode import decode, read_header
from dasl_core.data.decode.reasons import describe_failure
from tests.dasl_core.damaged_files import png_claiming
from tests.dasl_core.image_files import as_npy, by_pillow, by_tifffile, png, png_chunk


def stored(image: Image.Image, format_: str, **options: object) -> io.BytesIO:
    return io.BytesIO(by_pillow(image, format_, **options))


def gradient(mode: str = "RGB") -> Image.Image:
    ramp = np.linspace(0, 255, 12, dtype=np.uint8)
    pixels = np.stack([np.tile(ramp, (8, 1)), np.full((8, 12), 90), np.tile(ramp[::-1], (8, 1))], 2)
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


def test_gray_is_repeated_and_luminance_is_weighted() -> None:
    gray = decode_image(stored(gradient("L"), "PNG"))
    assert (gray == gray[..., :1]).all()
    assert (gray[..., 0] == np.asarray(gradient("L"))).all()
    luminance = decode_image(stored(Image.new("RGB", (4, 2), (255, 0, 0)), "PNG"), channels=1)
    assert luminance.shape == (2, 4, 1)
    assert (luminance == 76).all()
    bilevel = decode_image(stored(Image.new("1", (3, 3), 1), "PNG"), channels=1)
    assert (bilevel == 255).all()


def test_integers_and_floats_of_32_bits() -> None:
    floats = Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32))
    assert decode_image(stored(floats, "TIFF"), 1).ravel().tolist() == [0, 128, 255]
    reason = "the image has floating-point pixels, which must lie between 0 and 1, not 0 to"
    for values, high in (
        (np.array([[0, 70000]], "i4"), "70000"),
        (np.array([[0, 7.5]], "f4"), "7.5"),
    ):
        with pytest.raises(ValueError, match=f"^{reason} {high}"):
            decode_image(stored(Image.fromarray(values), "TIFF"))


def test_damaged_exif_is_ignored() -> None:
    broken = stored(gradient(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert decode_image(broken).shape == (8, 12, 3)


@pytest.mark.parametrize("format_", ["GIF", "WEBP", "TIFF", "PNG"])
def test_first_frame_of_several(format_: str) -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if format_ == "WEBP" else {}
    file = stored(frames[0], format_, save_all=True, append_images=frames[1:], **options)
    assert decode_image(file)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"not an image, but a text file\n" * 20, "not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
        (png_claiming(10_000, 9_999, inflated=1000), "the image is too large: 10000 x 9999 pixels"),
        (
            png_claiming(60_000, 60_000, inflated=1000),
            "the image is too large: 3600000000 pixels, more than",
        ),
        (png_claiming(64, 64, inflated=1000), "the image is damaged"),
    ],
    ids=["empty", "text", "postscript", "large", "bomb", "too little data"],
)
def test_damaged_content_is_explained(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as raised:
        decode_image(path)
    assert str(tmp_path) not in str(raised.value)


def test_pillow_does_not_warn_of_what_is_refused_with_a_reason(tmp_path: Path) -> None:
    """Its warning would be printed once a process, beside the reason."""
    (tmp_path / "huge.png").write_bytes(png_claiming(12_000, 9_000, inflated=1000))
    code = (
        "import sys\nfrom dasl_core.data import decode_image\n"
        "try: decode_image(sys.argv[1])\nexcept ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "huge.png")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.startswith("the image is too large: 12000 x 9000 pixels")
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (as_npy(np.array([{}, []], object)), "the image is an array of pickled objects"),
        (as_npy(np.zeros(2)), "a stack of images is a data set of its own"),
        *(
            (
                as_npy(np.zeros((4, 4))).replace(old, new),
                "damaged: its header is cut off, or not",
            )
            for old, new in ((b"}", b"("), (b"fortran", b"f/rtran"), (b"'<f8'", b"'<q9'"))
        ),
        (as_npy(np.zeros((4, 4)))[:40], "the image is damaged: its header is cut off, or not"),
        (b"\x93NUMPY\x03\x00" + bytes(99), r"its version of .npy is \(3, 0\), not 1.0 or 2.0"),
    ],
    ids=["objects", "row", "syntax", "key", "type", "cut off", "version"],
)
def test_array_that_cannot_be_read_is_explained(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        decode(io.BytesIO(content), "a.npy", 1)
    assert str(raised.value).startswith("the image is ")


def test_reason_of_a_library_is_one_sentence() -> None:
    advice = "Expected an even number of bytes. Instead received 3. " + "This occurred while " * 20
    assert describe_failure(ValueError(advice)) == (
        "the image is damaged: Expected an even number of bytes"
    )
    assert describe_failure(ValueError("word " * 100)).endswith(" word ...")


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "BMP", "TIFF", "WEBP", "PPM", "GIF"])
@pytest.mark.parametrize("kept", [0.15, 0.5, 0.8])
def test_truncated_files_are_refused(format_: str, kept: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = stored(Image.fromarray(noise), format_).getvalue()
    with pytest.raises(ValueError, match=r"damaged|not an image"):
        decode_image(io.BytesIO(whole[: int(len(whole) * kept)]))


def test_unreadable_paths_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the file does not exist"):
        decode_image(tmp_path / "absent.png")
    with pytest.raises(ValueError, match="it is a folder"):
        decode_image(tmp_path)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", "secret.png")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(ValueError, match="permission denied"):
        decode_image(tmp_path / "secret.png")


def test_channels_is_checked() -> None:
    with pytest.raises(ValueError, match="channels must be 1 or 3; given 4"):
        decode_image(stored(gradient(), "PNG"), channels=4)


@pytest.mark.parametrize("opacity", [0, 128])
def test_bitmap_without_any_opacity_is_opaque(opacity: int) -> None:
    colors = [255 << shift for shift in (16, 8, 0, 24)]
    fields = [154, 0, 138, 124, 2, 2, 0x200001, 3, 16, 0, 0, 0, 0, *colors]
    header = (b"BM" + np.array(fields, "<u4").tobytes()).ljust(138, b"\0")
    pixels = decode_image(io.BytesIO(header + bytes([10, 20, 30, opacity]) * 4))
    assert (pixels[0, 0] == ([30, 20, 10] if opacity == 0 else [142, 137, 132])).all()


SMOOTH = np.tile(np.arange(16, dtype=np.uint8), (16, 1))


BITMAP = by_pillow(Image.fromarray(SMOOTH).convert("RGB"), "BMP")
LARGE = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(17 << 20)))
# fmt: off
REASONS = {
    "is a TIFF of 3 x uint8 compressed with WEBP, which is not supported; use one of LERC":
        by_tifffile(SMOOTH[..., None].repeat(3, 2), compression="webp", photometric="rgb"),
    "is damaged, or of a kind that is not supported: its pixels cannot be decompressed":
        by_tifffile(SMOOTH, compression="jpeg").replace(b"\xff\xda", b"\xff\xf0"),
    "is damaged: its pixels cannot be decompressed":
        by_tifffile(np.tile(SMOOTH, (4, 4)), compression="lzw")[:-30],
    "is a JPEG that is damaged, or of a kind that is not supported":
        imagecodecs.jpeg_encode(SMOOTH.astype(np.uint16), bitspersample=12),
    "is of a kind that is not supported: Unsupported BMP bitfields layout":
        BITMAP[:30] + b"\3" + BITMAP[31:],
    "is of a kind that is not supported: Unsupported file format or not RAW file":
        b"II*\0" + bytes(200),
    "has too much metadata: a color profile or text of more than 16 MiB":
        png(SMOOTH[..., None], 0, bits=8, before=LARGE),
}
# fmt: on


@pytest.mark.parametrize("reason", REASONS)
def test_reason_is_damage_only_of_what_is(reason: str) -> None:
    with pytest.raises(ValueError, match=f"^the image {re.escape(reason)}"):
        decode(io.BytesIO(REASONS[reason]), "a.nef" if "RAW" in reason else "a", 1)


@pytest.mark.parametrize(
    "kind", [AttributeError, TypeError, KeyError, IndexError, ZeroDivisionError, NameError]
)
def test_mistake_in_a_program_is_not_called_damage(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    end = ". If other programs open it, report this"
    reason = describe_failure(kind("no attribute 'name'"))
    assert reason == f"the image cannot be decoded by its library{end}"
    monkeypatch.setattr("dasl_core.data.decode.pillow.count_bands", None)
    with pytest.raises(ValueError, match=f"^the image cannot be decoded by dasl_core{end}$"):
        read_header(stored(gradient(), "PNG"), "a.png")


@pytest.mark.parametrize("text", [b"iCCP", b"zTXt"])
def test_png_with_large_metadata_is_read(text: bytes) -> None:
    large = png_chunk(text, b"a\0\0" + zlib.compress(bytes(3 << 20)))
    content = png(SMOOTH[..., None], 0, bits=8, before=large)
    assert (decode_image(io.BytesIO(content), 1)[..., 0] == SMOOTH).all()
