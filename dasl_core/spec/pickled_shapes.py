"""Shapes of the tensors in a torch.save file, without torch and without executing its pickle.

A stack machine follows the pickle's instructions and keeps only numbers, names and shapes. It calls nothing named
in the file, and stops at unknown instructions.
"""

import io
import pickletools
import struct
from pathlib import Path
from typing import Any, NamedTuple

Shape = tuple[int, ...]

# Limits in bytes and instructions; ten times those of a large network with its optimizer.
LARGEST_PICKLE, MOST_INSTRUCTIONS = 2**21, 2**17
MOST_DIMENSIONS, LARGEST_NUMBER = 8, 2**63
# Limit in characters; longer texts are not names of functions, and each joining instruction would copy them.
LONGEST_NAME = 100
# Header of a zip entry, followed by its name and extra fields.
ENTRY = struct.Struct("<4s4xH16xHH")
# Before the object, older versions of torch wrote a magic number, a version, and facts of the machine.
OLDER_PREFIX = 3

REBUILDING = "torch._utils _rebuild_"
TENSORS = tuple(f"{REBUILDING}{name}" for name in ("tensor", "tensor_v2", "tensor_v3"))
PARAMETER = f"{REBUILDING}parameter"
# Other contents of state dicts; sizes, data types and storages are in `torch`.
OTHERS = ("collections OrderedDict", "torch.storage UntypedStorage")
TORCH = "torch "
# torch.load refuses names of all modules except some of these, because it would run their code, and in these it
# refuses whole networks and functions that run arbitrary code.
LOADED = ("torch", "collections", "_codecs", "builtins", "__builtin__", "argparse")
REFUSED = ("torch.nn.modules.", "__builtin__ getattr", "__builtin__ eval", "__builtin__ exec")

# Instructions that push their argument, or an opaque object.
CONSTANTS = ("NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET")
NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
BYTES = ("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BYTEARRAY8")
VALUES = frozenset(CONSTANTS + NUMBERS + BYTES + TEXTS)
MEMOIZING = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
RECALLING = ("GET", "BINGET", "LONG_BINGET")
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# Number of values that are put into the object below them.
DROPPED = {"POP": 1, "APPEND": 1, "SETITEM": 2, "BUILD": 1}
# Number of objects made of all values up to the mark.
OF_MARKED = {
    "APPENDS": 0,
    "SETITEMS": 0,
    "ADDITEMS": 0,
    "POP_MARK": 0,
    "LIST": 1,
    "DICT": 1,
    "FROZENSET": 1,
    "TUPLE": 1,
}


class _Global(NamedTuple):
    name: str


class _Tensor(NamedTuple):
    shape: Shape


class _Shape(NamedTuple):
    sizes: Shape


_OTHER, _MARK = object(), object()


class PickledCode(Exception):
    """A file names code that torch.load refuses to run; the message is the name."""


class _Unknown(ValueError):
    """An instruction or name that does not occur in state dicts."""


def pickled_shapes(file: Path) -> list[Shape] | None:
    """Return the shapes of all tensors; shared ones may be repeated.

    Returns:
        None if they cannot be determined.

    Raises:
        PickledCode: the file cannot be loaded, since it names code.
    """
    with file.open("rb") as stream:
        start = stream.read(ENTRY.size)
        skipped = OLDER_PREFIX
        if start.startswith(b"PK"):
            skipped = 0
            if len(start) < ENTRY.size:
                return None
            signature, method, name, extra = ENTRY.unpack(start)
            if signature != b"PK\3\4" or method or not stream.read(name).endswith(b"/data.pkl"):
                return None
            start = b""
            stream.seek(extra, io.SEEK_CUR)
        content = io.BytesIO(start + stream.read(LARGEST_PICKLE))
    try:
        for _ in range(skipped):
            _Machine().run(content)
        return _Machine().run(content)
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
        return None  # raised by malformed pickles


class _Machine:
    """A pickle's stack and memo of numbers, texts, names and shapes; anything else is `_OTHER`."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.shapes: list[Shape] = []

    def run(self, content: io.BytesIO) -> list[Shape]:
        """Follow one pickle; afterwards `content` is positioned at its end.

        Raises:
            PickledCode: it names code.
            ValueError, LookupError, AttributeError, TypeError, OverflowError: it is not a state dict.
        """
        for number, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if number == MOST_INSTRUCTIONS:
                raise _Unknown
            self._follow(instruction.name, argument)
        return self.shapes

    def _follow(self, name: str, argument: Any) -> None:
        if name in VALUES:
            is_number = type(argument) is int and abs(argument) < LARGEST_NUMBER
            is_name = type(argument) is str and len(argument) <= LONGEST_NAME
            self.stack.append(argument if is_number or is_name else _OTHER)
        elif name == "MARK":
            self.stack.append(_MARK)
        elif name in MEMOIZING:
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in RECALLING:
            self._recall(self.memo[argument])
        elif name == "DUP":
            self._recall(self.stack[-1])
        elif name in DROPPED:
            for _ in range(DROPPED[name]):
                self.stack.pop()
        elif name in OF_MARKED:
            values = self._marked()
            self.stack += [_tuple(values)] if name == "TUPLE" else [_OTHER] * OF_MARKED[name]
        elif name in TUPLES:
            length = TUPLES[name]
            values = self.stack[len(self.stack) - length :]
            del self.stack[len(self.stack) - length :]
            self.stack.append(_tuple(values))
        elif name == "GLOBAL":
            self._name(argument)
        elif name == "STACK_GLOBAL":
            last, module = self.stack.pop(), self.stack.pop()
            if type(last) is not str or type(module) is not str:
                raise _Unknown
            self._name(f"{module} {last}")
        elif name == "REDUCE":
            self._reduce()
        elif name == "BINPERSID":
            self.stack[-1] = _OTHER
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _Unknown

    def _recall(self, value: Any) -> None:
        # A tensor with several names in the state dict counts several times.
        if type(value) is _Tensor:
            self.shapes.append(value.shape)
        self.stack.append(value)

    def _marked(self) -> list[Any]:
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _name(self, name: str) -> None:
        if name not in OTHERS and not name.startswith((TORCH, REBUILDING)):
            package = name.partition(" ")[0].partition(".")[0]
            if package not in LOADED or name.startswith(REFUSED):
                raise PickledCode(name.replace(" ", ".")[:LONGEST_NAME])
            raise _Unknown
        self.stack.append(_Global(name))

    def _reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        value: Any = _OTHER
        if type(function) is not _Global:
            raise _Unknown
        if function.name == PARAMETER:
            value = arguments[0]
        elif function.name in TENSORS:
            value = _Tensor(arguments[2].sizes)
            self.shapes.append(value.shape)
        elif function.name.startswith(REBUILDING):
            raise _Unknown  # such as a quantized or sparse tensor
        self.stack.append(value)


def _tuple(values: list[Any]) -> Any:
    """Return a shape or the arguments of a call, without nested arguments, which may be deep in hostile files."""
    if len(values) <= MOST_DIMENSIONS and all(type(value) is int for value in values):
        return _Shape(tuple(values))
    return tuple(_OTHER if type(value) is tuple else value for value in values)
