"""Files of strangers: regular ones are opened, their size is known first, and their names are printable."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from pathlib import Path
from typing import BinaryIO

from cswf_core.errors import DataError
from cswf_core.numbers import LARGEST, bytes_in_words

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
"""Things in folders that are no regular files, in words."""

EXPANSION = 1032
"""Bytes that deflate, the compression of .npz and .gz files, can make of one at most."""


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
        beyond = f"{path} needs {bytes_in_words(needed)} of memory, and the limit is {bytes_in_words(limit)}"
        raise DataError(f"{beyond}; {advice or 'use a machine with more memory, or a smaller file'}")


def bytes_of(text: str) -> int | None:
    """Return the bytes that a size such as 500MB, 1.5GB, 2GiB or 4096 has; None if it is no size."""
    if len(text) > 20:
        return None
    size = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([kmg]?)(i?)b?", text.strip().lower())
    if size is None:
        return None
    number, prefix, binary = size.groups()
    return int(min(float(number) * (1024 if binary else 1000) ** " kmg".index(prefix or " "), LARGEST))


def enough_text(size: int) -> str:
    """Return a size that a person may write, and that is not below a number of bytes: 8GB."""
    unit, word = (10**9, "GB") if size > 10**9 else (10**6, "MB")
    return f"{math.ceil(size / unit)}{word}"


def is_text(name: str) -> bool:
    """Say whether a file's name is UTF-8."""
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in name)
