"""Reasons why an image cannot be decoded, each a one-line sentence."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from traceback import walk_tb
from types import ModuleType
from typing import Any

from PIL import Image, UnidentifiedImageError

from dasl_core.data.decode.header import too_large

# Prefixes of reasons that do not depend on the content that was registered: another attempt may succeed.
MISSING, FORBIDDEN = "the file does not exist", "the file may not be read"
UNREADABLE, NO_MEMORY = "the file cannot be read", "there is not enough memory"
# The file is no longer the registered image.
CHANGED = "the image has changed since it was registered; refresh the data set"
# Part of the reason where the package for a format is not installed.
_INSTALL = "; install dasl["

EMPTY = "the file is empty"
UNKNOWN = "the content is not an image of a known format"
DAMAGED_OR_UNSUPPORTED = "damaged, or of a kind that is not supported"
_MAX_DETAIL = 200
# Raised by mistakes in programs, ours among them, as well as by some libraries for damaged files.
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    TypeError,
)
_OF_MISTAKES = re.compile(r"(?i)invalid literal|broadcast|reshape|requires a buffer")
# What libraries say of files that they do not read, and of more metadata than they may.
_UNSUPPORTED = re.compile(r"(?i)unsupported|not (yet )?(supported|implemented)|does not support")
_METADATA = re.compile(r"MAX_TEXT_(CHUNK|MEMORY)")


def is_transient(reason: str) -> bool:
    """Whether a failure may be transient, because it does not depend on the registered content."""
    return (
        reason.startswith((MISSING, FORBIDDEN, UNREADABLE, NO_MEMORY, CHANGED))
        or _INSTALL in reason
    )


def optional_module(name: str, needs: str, extra: str) -> Any:
    """Import a module from an optional extra.

    Args:
        needs: start of the error message that says what needs it, such as "the image is DICOM".

    Raises:
        ValueError: it is not installed; the message names the extra.
    """
    try:
        module: ModuleType = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{needs}{_INSTALL}{extra}]") from error
    return module


@contextmanager
def one_sentence() -> Iterator[None]:
    """Context manager that turns any error of a decoder into a ValueError with its reason."""
    try:
        yield
    except Exception as error:  # on damaged files decoders raise almost anything
        raise ValueError(describe_failure(error)) from error


def describe_failure(error: Exception) -> str:
    """Describe why decoding failed, in one line."""
    if isinstance(error, FileNotFoundError):
        return MISSING
    if isinstance(error, PermissionError):
        return f"{FORBIDDEN} (permission denied)"
    if isinstance(error, IsADirectoryError):
        return "it is a folder"
    if isinstance(error, UnidentifiedImageError):
        return UNKNOWN
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        # Pillow raised before the size was read; its message contains it.
        count = re.search(r"\d+ pixels", str(error))
        return too_large(count[0] if count else "far too many pixels")
    if isinstance(error, MemoryError):
        return f"{NO_MEMORY} to decode it"
    if isinstance(error, OSError) and error.strerror:
        return f"{UNREADABLE}: {error.strerror}"
    text = error.args[0] if error.args else ""
    text = text.decode("latin-1") if isinstance(text, bytes) else str(error)
    detail = "".join(c if c.isprintable() else " " for c in text)
    detail = " ".join(detail.split())
    if detail.startswith(("the image ", "the file ", "the content ")):
        return detail
    if _METADATA.search(detail):
        return "the image has too much metadata: a color profile or text of more than 16 MiB, or 64 MiB in all"
    # Libraries add advice for programmers.
    detail = re.sub(r"\bb(?=['\"])", "", detail)  # of bytes: b'IHDR'
    first = shorten(detail.partition(". ")[0].removesuffix("."), _MAX_DETAIL, placeholder=" ...")
    if isinstance(error, _MISTAKES) or _OF_MISTAKES.search(first) or not first:
        # Their messages are for programmers.
        return f"the image cannot be decoded by {_raised_in(error)}. If other programs open it, report this"
    if isinstance(error, NotImplementedError):
        return f"the image is {DAMAGED_OR_UNSUPPORTED}: {first}"
    if _UNSUPPORTED.search(first):
        return f"the image is of a kind that is not supported: {first}"
    return f"the image is damaged: {first}"


def _raised_in(error: Exception) -> str:
    """Return the name of the library that raised an error."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    return next((name.partition(".")[0] for name in reversed(names) if name), "its library")
