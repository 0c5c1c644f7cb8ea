"""The GGUF container: key/value metadata and tensor descriptions, read without trusting a byte of them.

Layout (llama.cpp's `gguf.h`): magic, version, number of tensors, number of keys; the keys with typed values; one
description per tensor; padding; tensor data. Every length is compared with the bytes the file really has before
anything is read or allocated for it, every count is bounded, and any breach is a `ModelError` that names the file.

The package `gguf` reads the same, but takes tens of seconds for a vocabulary of 150 000 tokens because it makes
several arrays of every string, and it allocates what the file tells it to. Here string arrays are skipped over in
one pass and decoded only when somebody asks; that is well under a second. The tests compare both readers.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, NoReturn

from spec_local.errors import ModelError

_MAX_HEADER = 128 << 20
_MAX_KEYS = 65_536
_MAX_TENSORS = 262_144
_MAX_STRING = 32 << 20
_MAX_STRINGS = 2 << 20
"""Limits several times what any published model has; they bound memory and time on a damaged file."""

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""GGUF value type → struct and array code."""

TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Tensor type id → name, elements per block, bytes per block (llama.cpp's `ggml.c`, `type_traits`)."""


@dataclass(slots=True, eq=False)
class Array:
    """An array value, kept as the bytes of the file until somebody asks for its elements."""

    type: int
    """GGUF type of the elements."""
    count: int
    raw: bytes
    """The elements as they lie in the file; two arrays of equal bytes are equal."""
    _strings: list[bytes] | None = field(default=None, repr=False)

    @property
    def is_text(self) -> bool:
        """Whether the elements are strings."""
        return self.type == _STRING

    def strings(self) -> list[bytes]:
        """The elements of a string array, undecoded: [count]."""
        assert self.is_text
        if self._strings is None:
            raw, at, found = self.raw, 0, []
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(self.count):
                at += 8
                end = at + unpack(raw, at - 8)[0]
                found.append(raw[at:end])
                at = end
            self._strings = found
        return self._strings

    def numbers(self) -> list[int] | list[float]:
        """The elements of an array of numbers or booleans: [count]."""
        assert not self.is_text
        values = array(_SCALARS[self.type])
        if values.itemsize != struct.calcsize("<" + _SCALARS[self.type]):  # a platform with other C types
            return list(struct.unpack(f"<{self.count}{_SCALARS[self.type]}", self.raw))
        values.frombytes(self.raw)
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a file says about one tensor."""

    name: str
    shape: tuple[int, ...]
    """Fastest dimension first, as in the file."""
    type: str
    """Name of the tensor type; `type-N` where it is not known here."""
    elements: int
    bytes: int
    """Size of its data; 0 where the type is not known here."""


@dataclass(frozen=True, slots=True)
class Container:
    """The readable part of one GGUF file."""

    path: Path
    metadata: dict[str, int | float | bool | str | Array]
    tensors: tuple[Tensor, ...]
    file_bytes: int
    end: int = 0
    """Bytes up to the end of the last tensor's data."""


def read_container(path: Path) -> Container:
    """Read metadata and tensor descriptions, and check that the file is long enough for its tensors.

    Raises:
        ModelError: There is no such file, it is not a GGUF file, it is damaged or incomplete; says which.
    """
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ModelError(f"{path} is a folder, not a model file.")
        with path.open("rb") as file:
            return _Reader(path, file, size).container()
    except FileNotFoundError:
        raise ModelError(f"There is no file {path}.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_first_keys(path: Path) -> dict[str, int | float | bool | str]:
    """The metadata in front of the first long list, in a few kilobytes: what kind of file it is stands there.

    Returns:
        What could be read; empty where it is no GGUF file or a damaged one, which is said when it is used.
    """
    found: dict[str, int | float | bool | str] = {}
    with suppress(ModelError, OSError), path.open("rb") as file:
        reader = _Reader(path, file, path.stat().st_size)
        for key, value in reader.keys(reader.counts()[1], at_lists="end"):
            assert not isinstance(value, Array)
            found[key] = value
    return found


class _Reader:
    """Walks through the head of a file; holds no more of it than was walked through (plus one read-ahead)."""

    def __init__(self, path: Path, file: IO[bytes], size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.buffer = bytearray()
        self.at = 0
        self.end = 0

    def container(self) -> Container:
        """All of it, in the order of the file."""
        n_tensors, n_keys = self.counts()
        metadata: dict[str, int | float | bool | str | Array] = {}
        for key, value in self.keys(n_keys):
            if key in metadata:
                self.damaged(f"has the metadata key {key!r} twice")
            metadata[key] = value
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            self.damaged(f"has the impossible alignment {alignment!r}")

        raw = [self.tensor_info() for _ in range(n_tensors)]
        if len({name for name, *_ in raw}) != n_tensors:
            self.damaged("describes a tensor twice")
        start = self.at + -self.at % alignment if n_tensors else self.at
        tensors = self.tensors(raw, start, alignment)
        return Container(self.path, metadata, tensors, self.size, self.end)

    def counts(self) -> tuple[int, int]:
        """How many tensors and metadata keys there are, from the beginning of the file."""
        self.magic()
        version = self.number("I")
        if version & 0xFFFF == 0:
            self.damaged("is written for a big-endian machine", "Get the little-endian file.")
        if version not in (2, 3):
            self.damaged(
                f"has GGUF version {version}; only 2 and 3 can be read", "Get a newer conversion of the model."
            )
        n_tensors, n_keys = self.number("Q"), self.number("Q")
        self.plausible(n_tensors, _MAX_TENSORS, 24, "tensors")
        self.plausible(n_keys, _MAX_KEYS, 13, "metadata keys")
        return n_tensors, n_keys

    def keys(self, count: int, at_lists: str = "read") -> Iterator[tuple[str, int | float | bool | str | Array]]:
        """The next `count` metadata keys with their values; with `at_lists` "end" only those in front of a list."""
        for _ in range(count):
            key = self.text("a metadata key", 65_535)
            if not key:
                self.damaged("has a metadata key without a name")
            if at_lists == "end":
                self.need(self.at + 4)
                if int.from_bytes(self.buffer[self.at : self.at + 4], "little") == _ARRAY:
                    return
            yield key, self.value(key)

    def magic(self) -> None:
        """The first four bytes, with a sentence for what people really save under `.gguf`."""
        if self.size == 0:
            raise ModelError(f"{self.path} is empty (0 bytes).", "Download it again.")
        head = self.file.read(512)
        if head[:4] != b"GGUF":
            lower = head.lstrip().lower()
            if lower.startswith((b"<!doctype", b"<html", b"<?xml")):
                what = "is a web page, not a model file"
            elif head.startswith(b"version https://git-lfs"):
                what = "is a Git LFS pointer, not the model file itself"
            elif b"GGUF".startswith(head):
                self.short(24)
            else:
                what = f"is not a GGUF file: it begins with {bytes(head[:4])!r}"
            raise ModelError(f"{self.path} {what} ({self.size} bytes).", "Download the model file itself again.")
        self.buffer += head
        self.at = 4

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type id and data offset of the next tensor."""
        name = self.text("a tensor name", 1024)
        if not name:
            self.damaged("describes a tensor without a name")
        n_dims = self.number("I")
        if not 0 <= n_dims <= 4:
            self.damaged(f"gives tensor {name!r} {n_dims} dimensions")
        shape = tuple(self.number("Q") for _ in range(n_dims))
        if prod(shape) >= 1 << 62:
            self.damaged(f"gives tensor {name!r} the impossible shape {shape}")
        return name, shape, self.number("I"), self.number("Q")

    def tensors(
        self, raw: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> tuple[Tensor, ...]:
        """Check types and places: tensors lie one behind the other, each padded to the alignment, inside the file."""
        found, expected, known = [], 0, True
        needed = start
        for name, shape, kind, offset in raw:
            if kind > 255:
                self.damaged(f"gives tensor {name!r} the impossible type {kind}")
            label, block, block_bytes = TENSOR_TYPES.get(kind, (f"type-{kind}", 1, 0))
            elements = prod(shape)
            if shape and shape[0] % block:
                self.damaged(f"gives tensor {name!r} rows of {shape[0]} elements, which {label} cannot store")
            size = elements // block * block_bytes
            known = known and block_bytes > 0  # behind a tensor of unknown size no place can be predicted
            if offset % alignment or (known and offset != expected):
                self.damaged(f"puts tensor {name!r} at {offset} where {expected} is its place")
            expected = offset + size + -size % alignment
            needed = max(needed, start + offset + size)
            found.append(Tensor(name, shape, label, elements, size))
        self.end = needed
        if needed > self.size:
            self.short(needed)
        return tuple(found)

    def value(self, key: str) -> int | float | bool | str | Array:
        """The typed value of a key."""
        kind = self.number("I")
        if kind == _STRING:
            return self.text(f"the value of {key}", _MAX_STRING)
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            self.damaged(f"gives {key} the unknown value type {kind}")
        value = self.number(_SCALARS[kind])
        return bool(value) if kind == _BOOL else value

    def array(self, key: str) -> Array:
        """The array value of a key; its strings are only skipped over."""
        kind, count = self.number("I"), self.number("Q")
        start = self.at
        if kind == _STRING:
            self.plausible(count, _MAX_STRINGS, 8, f"entries in {key}")
            self.skip_strings(count, key)
        elif kind in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[kind])
            self.plausible(count, _MAX_HEADER, width, f"entries in {key}")
            self.need(start + count * width)
            self.at += count * width
        else:
            self.damaged(f"makes {key} an array of the unsupported type {kind}")
        return Array(kind, count, bytes(self.buffer[start : self.at]))

    def skip_strings(self, count: int, key: str) -> None:
        """Move behind `count` strings. The loop runs for every token and merge: it is written for speed."""
        unpack: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        at, buffer, have = self.at, self.buffer, len(self.buffer)
        for _ in range(count):
            if at + 8 > have:
                self.need(at + 8)
                have = len(buffer)
            at += 8 + unpack(buffer, at)[0]
            if at > have:
                self.need(at)
                have = len(buffer)
        self.at = at

    def text(self, what: str, most: int) -> str:
        """The next string."""
        length = self.number("Q")
        if length > most:
            self.damaged(f"claims {length} bytes for {what}")
        self.need(self.at + length)
        content = self.buffer[self.at : self.at + length]
        self.at += length
        return content.decode("utf-8", errors="replace")

    def number(self, code: str) -> int:
        """The next number of a struct code (a float for `f` and `d`)."""
        width = struct.calcsize("<" + code)
        self.need(self.at + width)
        value: int = struct.unpack_from("<" + code, self.buffer, self.at)[0]
        self.at += width
        return value

    def need(self, end: int) -> None:
        """Have the file's first `end` bytes in the buffer."""
        have = len(self.buffer)
        if end <= have:
            return
        if end > self.size:
            self.short(end)
        if end > _MAX_HEADER:
            self.damaged(f"claims metadata of more than {_MAX_HEADER >> 20} MiB")
        self.buffer += self.file.read(max(end - have, min(2 * have, 4 << 20)))
        if len(self.buffer) < end:  # it became shorter while it was read
            self.short(end)

    def plausible(self, count: int, most: int, least_bytes: int, what: str) -> None:
        """Refuse a count the rest of the file cannot hold."""
        if count > most or count * least_bytes > self.size - self.at:
            self.damaged(f"claims {count} {what}")

    def damaged(
        self, how: str, hint: str = "Download it again; if that does not help, the source is damaged."
    ) -> NoReturn:
        """Say that the content makes no sense."""
        raise ModelError(f"{self.path} ({self.size} bytes) {how}; it is not a usable model file.", hint)

    def short(self, expected: int) -> NoReturn:
        """Say that the file ends too early."""
        raise ModelError(
            f"{self.path} is incomplete: it has {self.size} bytes where at least {expected} are expected.",
            "Download it again.",
        )
