"""Arrays of .npz and .npy files, read with care: nothing is unpacked before its header says what it would take.

A header is compared with what the archive's directory says and with the bytes that there are, and is not
evaluated. Arrays of Python objects are refused: to unpack one is to run what it says.
"""

from __future__ import annotations

import io
import math
import os
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from cswf_core.errors import CswfError, DataError, OutOfMemoryError, printable
from cswf_core.files import EXPANSION, enough_text, open_file, refuse_large
from cswf_core.kernels.memory import total_memory
from cswf_core.numbers import bytes_in_words

Array: TypeAlias = NDArray[Any]

MAGIC = b"\x93NUMPY"
"""How an .npy file begins."""

LONGEST_HEADER = 10_000
"""Bytes of an array's header at most."""

MOST_MEMBERS = 1000
MOST_BYTES_AT_ONCE = 4 << 20
"""Members of an archive at most; bytes of an archive's file that are read at once, its directory among them."""

BLOCK = 1 << 20
"""Bytes that are unpacked at a time."""


@attrs.frozen
class Header:
    """What an array is, as it says itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    """Whether the first index changes fastest."""
    offset: int
    """Bytes before the array's own."""

    @property
    def count(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def needed(self) -> int:
        """Bytes to plan with: a length of 0 makes others no smaller, as there may be a number for each."""
        return math.prod(max(1, n) for n in self.shape) * self.dtype.itemsize


def default_limit() -> int:
    """Return the bytes that arrays of a file may take by default: a quarter of memory, as they are copied."""
    return total_memory(torch.device("cpu")) // 4


def read_archive(
    file: Path | io.BytesIO, names: Collection[str], *, limit: int | None = None, advice: str = ""
) -> dict[str, Array]:
    """Return those arrays of an .npz file that it has of `names`; raise `DataError` in a sentence.

    They take at most `limit` bytes together (None: a share of the memory); `advice` says how to allow more,
    with a `{}` for the size.
    """
    with _archive(file) as (archive, place):
        members = _members(archive)
        chosen = {name: members[name] for name in names if name in members}
        headers = {name: _member_header(archive, name, info) for name, info in chosen.items()}
        needed = sum(header.needed for header in headers.values())
        allowed = default_limit() if limit is None else limit
        refuse_large(place, needed, allowed, advice.format(enough_text(needed)))
        arrays: dict[str, Array] = {}
        for name, header in headers.items():
            with archive.open(chosen[name]) as member:
                member.read(header.offset)
                arrays[name] = _filled(member, header)
        return arrays


def names_in(file: Path) -> tuple[str, ...]:
    """Return the names of the arrays of an .npz file."""
    with _archive(file) as (archive, _):
        return tuple(map(printable, _members(archive)))


def read_array(path: Path) -> Array:
    """Return the array of an .npy file; raise `DataError` in a sentence."""
    with open_file(path) as file, _reading(path, ".npy"):
        header = _file_header(file)
        refuse_large(path, header.needed, default_limit())
        return _filled(file, header)


def map_array(path: Path) -> Array:
    """Map the array of an .npy file into memory, read-only; raise `DataError` in a sentence."""
    with open_file(path) as file, _reading(path, ".npy"):
        header = _file_header(file)
        if not header.count:
            return np.empty(header.shape, header.dtype)
        order: Any = "F" if header.fortran else "C"
        return np.memmap(file, header.dtype, "r", header.offset, header.shape, order)


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into one sentence."""
    try:
        yield
    except CswfError:
        raise
    except MemoryError:
        raise OutOfMemoryError(f"{path} does not fit into this machine's memory") from None
    except Exception as error:  # zip, zlib, struct and NumPy each raise their own for a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be read as {kind} ({reason})") from None


@contextmanager
def _archive(file: Path | io.BytesIO) -> Iterator[tuple[zipfile.ZipFile, Path]]:
    """Open an archive, and say where it is."""
    place = file if isinstance(file, Path) else Path("an archive in memory")
    with _reading(place, ".npz"), open_file(file) if isinstance(file, Path) else nullcontext(file) as opened:
        if opened.read(len(MAGIC)) == MAGIC:
            raise DataError(f"{place} is a single array, not an .npz archive")
        bounded = _Bounded(opened)  # type: ignore[arg-type]
        try:
            with zipfile.ZipFile(bounded) as archive:
                yield archive, place
        finally:
            bounded.detach()  # it would close a caller's file


class _Bounded(io.BufferedReader):
    """A file that is read in pieces of a bounded size: a directory of a million members is refused."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes; zipfile asks for a directory's all at once."""
        if size is not None and size > MOST_BYTES_AT_ONCE:
            raise ValueError(f"its list of members has {bytes_in_words(size)}; an .npz file has few members")
        return super().read(size)


def _members(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    """Return the arrays of an archive by their names."""
    infos = archive.infolist()
    if len(infos) > MOST_MEMBERS:
        raise ValueError(f"it has {len(infos):,} members, and {MOST_MEMBERS:,} is the most")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            continue
        if name in members:
            raise ValueError(f"it has two arrays of the name {printable(name)!r}")
        members[name] = info
    return members


def _member_header(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> Header:
    """Return what an array is, if that agrees with the archive's directory; nothing else is unpacked."""
    if info.flag_bits & 0x1:
        raise ValueError(f"'{name}' is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"'{name}' is compressed in a way that .npz files are not")
    with archive.open(info) as member:
        try:
            header = _header(member)
        except ValueError as error:
            raise ValueError(f"'{name}': {error}") from None
    if header.offset + header.count != info.file_size:
        told = f"{header.offset + header.count:,} bytes by its header and {info.file_size:,} by the directory"
        raise ValueError(f"'{name}' has {told}")
    ratio = EXPANSION if info.compress_type == zipfile.ZIP_DEFLATED else 1
    if info.file_size > ratio * info.compress_size + EXPANSION:
        raise ValueError(f"'{name}' cannot have {info.file_size:,} bytes, packed in {info.compress_size:,}")
    return header


def _filled(file: IO[bytes], header: Header) -> Array:
    """Return the array whose bytes come next."""
    content = np.empty(header.count, np.uint8)
    view = content.data
    done = 0
    while done < header.count:
        block = file.read(min(BLOCK, header.count - done))
        if not block:
            raise ValueError(f"it ends after {done:,} of {header.count:,} bytes")
        view[done : done + len(block)] = block
        done += len(block)
    if file.read(1):  # at the end, an archive compares its checksum
        raise ValueError("there are bytes behind its array")
    numbers = content.view(header.dtype)
    return numbers.reshape(header.shape[::-1]).T if header.fortran else numbers.reshape(header.shape)


def _file_header(file: BinaryIO) -> Header:
    """Return the header of an .npy file, if the file is as long as that says."""
    header = _header(file)
    size = os.fstat(file.fileno()).st_size
    if header.offset + header.count != size:
        raise ValueError(f"it should have {header.offset + header.count:,} bytes and has {size:,}")
    return header


def _header(file: IO[bytes]) -> Header:
    """Return the header that comes next in a file; raise `ValueError` for one that numbers cannot have."""
    begin = file.read(8)
    version = begin[6:7]
    width = {b"\x01": 2, b"\x02": 4, b"\x03": 4}.get(version)
    if len(begin) < 8 or not begin.startswith(MAGIC) or width is None:
        raise ValueError("it does not begin as an array does")
    size = file.read(width)
    length = int.from_bytes(size, "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header has {length:,} bytes, and {LONGEST_HEADER:,} is the most")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("its header is cut off")
    shape, fortran, dtype = _entries(size, text)
    if len(shape) > 32 or max(shape, default=0) >= 10**18:
        raise ValueError(f"it cannot have the shape ({', '.join(map(str, shape))[:80]})")
    if dtype.hasobject:
        raise ValueError("it has Python objects, which are not read, as that would run what they say")
    if dtype.kind not in "biufcU":
        raise ValueError(f"it has values of type {dtype.str!r}, neither numbers nor text")
    if not dtype.itemsize:
        raise ValueError(f"its values of type {dtype.str!r} have no bytes")
    return Header(shape, dtype, fortran, 8 + width + length)


def _entries(size: bytes, text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return a header's shape, order and type; NumPy reads it as literals, and evaluates nothing."""
    read = np.lib.format.read_array_header_1_0 if len(size) == 2 else np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings():  # of numbers as Python 2 wrote them
            warnings.simplefilter("ignore")
            shape, fortran, dtype = read(io.BytesIO(size + text))
        fitting = dtype.names is None and all(type(n) is int and n >= 0 for n in shape)
    except Exception:  # whatever else is written there: the parser has many errors
        fitting = False
    if not fitting:
        beginning = text.decode("latin1").strip()[:80]
        raise ValueError(f"its header is not that of an array of numbers: {beginning!r}")
    return shape, fortran, dtype
