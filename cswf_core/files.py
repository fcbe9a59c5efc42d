"""Files of strangers: regular ones are opened, their size is known first, and their names are printable."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import unicodedata
from pathlib import Path
from typing import BinaryIO

from cswf_core.errors import DataError

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
"""Things in folders that are no regular files, in words."""

LONGEST_SIZE = 20
"""Characters of a size that is written as text, at most."""

EXPANSION = 1032
"""Bytes that deflate, the compression of .npz and .gz files, can make of one at most."""

DIRECTIONS = frozenset(map(chr, (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
"""Characters that change the order in which a terminal shows others."""


def open_file(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, to be read; raise `DataError` in a sentence for anything else.

    A pipe, a socket or a device might never answer, or never end.
    """
    refuse_irregular(path)
    try:
        # What was a file a moment ago may be a pipe now: opened so, that does not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataError(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def refuse_irregular(path: Path) -> None:
    """Raise `DataError` if a path leads to no regular file: to a pipe, a device, a folder, or to nothing."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # a null character in a path is a ValueError
        raise DataError(f"{path} {_absence(path, error)}") from None
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is {KINDS.get(stat.S_IFMT(mode), 'a special file')}, not a file")


def _absence(path: Path, error: OSError | ValueError) -> str:
    """Return why there is nothing at a path."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ELOOP:
        return "is a link in a circle of links"
    if number in (errno.ENOENT, errno.ENOTDIR):
        return "is a link to nothing" if os.path.islink(path) else "does not exist"
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


def read_whole(path: Path, limit: int) -> bytes:
    """Return the content of a regular file; raise `DataError` if there is none, or more than `limit` bytes."""
    with open_file(path) as file:
        refuse_large(path, os.fstat(file.fileno()).st_size, limit)
        try:
            return file.read()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror or error})") from None


def refuse_large(path: Path, needed: int, limit: int, advice: str = "") -> None:
    """Raise `DataError` if a file would take more memory than it may; `advice` says how to allow more."""
    if needed > limit:
        beyond = f"{path} needs {size_text(needed)} of memory, and the limit is {size_text(limit)}"
        raise DataError(f"{beyond}; {advice or 'use a machine with more memory, or a smaller file'}")


def bytes_of(text: str) -> int | None:
    """Return the bytes that a size such as 500MB, 1.5GB, 2GiB or 4096 has; None if it is no size."""
    if len(text) > LONGEST_SIZE:
        return None
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmg]?)(i?)b?", text.strip().lower())
    if size is None:
        return None
    number, prefix, binary = size.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmg".index(prefix or " "))


def size_text(size: int) -> str:
    """Return a number of bytes in words, such as 7.6 GB."""
    for power, unit in enumerate(("bytes", "kB", "MB", "GB", "TB", "PB")):
        if size < 1000 ** (power + 1):
            return f"{size / 1000**power:.4g} {unit}"
    return f"about 10^{len(str(size)) - 1} bytes"


def enough_text(size: int) -> str:
    """Return a size that a person may write, and that is not below a number of bytes: 8GB."""
    unit, word = (10**9, "GB") if size > 10**9 else (10**6, "MB")
    return f"{math.ceil(size / unit)}{word}"


def is_text(name: str) -> bool:
    """Say whether a file's name is UTF-8."""
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in name)


def printable(name: str) -> str:
    r"""Return a file's name as text that any terminal, record or page can show: byte 0xFF becomes `\xff`.

    Python has bytes that are no UTF-8 as half characters, which cannot be written anywhere. Control characters
    and those that reverse a line are written as escapes too; all other names stay as they are.
    """
    decoded = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(_escaped(c) if _is_control(c) else c for c in decoded)


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in DIRECTIONS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
