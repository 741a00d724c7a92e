"""Reasons why an image cannot be decoded, each a one-line sentence."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
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
_MAX_DETAIL = 200
# Raised by mistakes in programs, ours among them, as well as by some libraries for damaged files.
_MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)


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
    detail = "".join(c if c.isprintable() else " " for c in str(error))
    detail = " ".join(detail.split()) or type(error).__name__
    if detail.startswith(("the image ", "the file ", "the content ")):
        return detail
    # Libraries add advice for programmers.
    first = shorten(detail.partition(". ")[0].removesuffix("."), _MAX_DETAIL, placeholder=" ...")
    if isinstance(error, _MISTAKES):
        kind = type(error).__name__
        return (
            f"the image cannot be decoded: {kind}: {first}. If other programs open it, report this"
        )
    return f"the image is damaged: {first}"
