"""Files that are whole or not there: after a crash, a kill or a full disk too."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cswf_core.errors import RunError

BLOCK = 1 << 20
"""Bytes that are read at a time."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path`; what is written there takes its place at the end, or is removed on an error.

    The file is on the disk before it gets its name, and its name before this ends.
    """
    temporary = part_of(path)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # safetensors has its own idea of who may read
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    except BaseException as error:  # a full disk; or Ctrl-C, at any moment
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
        raise


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole: after a crash it is the old one or the new one, never half of either."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Any = None) -> None:
    """Write tensors, and facts that JSON can hold, as one safetensors file; see `replacing`."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(held, temporary, {"facts": json.dumps(facts, ensure_ascii=False)})
        except SafetensorError as error:  # a full disk has this class too
            raise OSError(str(error)) from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and facts that `write_tensors` has written; raise `RunError` if they are damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, facts
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({' '.join(str(error).split())})") from None


def part_of(path: Path) -> Path:
    """Return where a file is while it is written."""
    return path.with_name(f".{path.name}.part")


def remove_parts(folder: Path) -> None:
    """Remove what a kill has left of files that were being written."""
    for left in folder.glob(".*.part"):
        left.unlink(missing_ok=True)


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
    return sha.hexdigest()


@lru_cache
def _umask() -> int:
    """Return which rights new files do not have; to ask for it is to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
