"""Files that are whole or not there: after a crash, a kill or a full disk too."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import attrs
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cswf_core.documents import Digest, FileName, Size, parse_json
from cswf_core.errors import RunError
from cswf_core.interfaces.metric import Tell

if TYPE_CHECKING:
    from typing_extensions import Self

BLOCK = 1 << 20
"""Bytes read at a time."""

FILES_AT_A_TIME = 4
"""Number of files that are read at once to compare their checksums."""

CONTENT = "content"
LOCK = "lock"
"""Files there: what is written, and what its writer holds locked. Of a folder, other machines see no locks."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file there takes the place of `path` at the end, or is removed on an error.

    The content is on the disk before it gets its name, and the name before this ends. Each writer has a folder
    of its own beside `path`, which nobody else can write to, so that nothing is written through a link, and two
    processes may write the same file: one of them is last, and both are whole. If `path` is a link, the link is
    replaced, and what lies behind it stays. What a writer that was killed has left is removed.
    """
    with contextlib.suppress(OSError):
        remove_parts(path.parent, path.name)
    try:
        with _own_folder(path) as folder:
            temporary = folder / CONTENT
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # safetensors gives permissions of its own
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
    except OSError as error:  # a full disk, for one
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None


def write_durably(path: Path, content: str | bytes) -> None:
    """Replace a file as a whole; after a crash it is the old one or the new one, never half of either."""
    with replacing(path) as temporary:
        temporary.write_bytes(encoded(content) if isinstance(content, str) else content)


def encoded(text: str) -> bytes:
    r"""Return a text as UTF-8; half characters, as paths have for bytes that are no text, become `\udcff`.

    JSON reads this as the same half character, so that a path leads to the same file again.
    """
    return text.encode("utf-8", "backslashreplace")


def open_plainly(path: Path, mode: Literal["wb", "ab"]) -> BinaryIO:
    """Open a file to write it anew or to add to it; raise `RunError` if it is a link, a pipe or a device."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    try:
        file = open(path, mode, opener=opened)  # noqa: SIM115 - it is the caller's to close
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise RunError(f"{path} cannot be written: {reason}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise RunError(f"{path} cannot be written: it is no plain file")
    return file


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Any = None) -> None:
    """Write tensors, and facts that JSON can hold, as one safetensors file; see `replacing`."""
    from safetensors.torch import save_file  # imports PyTorch, which not all who write files need

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        try:
            save_file(on_cpu, temporary, {"facts": encoded(json.dumps(facts, ensure_ascii=False)).decode()})
        except SafetensorError as error:  # a full disk has this class too
            raise OSError(str(error)) from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and facts that `write_tensors` has written; raise `RunError` if they are damaged."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe may take for ever
            raise ValueError("it is no ordinary file")
        with safe_open(path, framework="pt") as file:
            facts = parse_json((file.metadata() or {})["facts"])
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, facts
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(f"{path} cannot be read ({' '.join(str(error).split())})") from None


def tensors_under(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors that were written as `name/…`, by their own names."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, if it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be made: {error.strerror or error}") from None


def remove_parts(folder: Path, name: str = "") -> None:
    """Remove the unfinished files that a kill has left in a folder, or those of one file.

    Those that a process is writing stay; so do all on a file system without locks, where nobody can tell.
    """
    for place in folder.glob(".*.part"):
        match = re.fullmatch(r"\.(?P<name>.+)\.[0-9a-f]{8}\.part", place.name, re.DOTALL)
        if match is not None and match["name"] == (name or match["name"]) and not place.is_symlink():
            with contextlib.suppress(OSError), _locked(place / LOCK, os.O_RDWR, fcntl.LOCK_NB):
                _remove(place)
            with contextlib.suppress(OSError):
                place.rmdir()  # a kill may come before there is a lock


@contextmanager
def _own_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside `path`, hold the lock in it, and remove it; a killed process holds no lock."""
    with contextlib.ExitStack() as closing:
        while True:
            folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
            closing.callback(_remove, folder)
            folder.mkdir(0o700)
            with contextlib.suppress(FileNotFoundError):
                closing.enter_context(_locked(folder / LOCK, os.O_RDWR | os.O_CREAT))
            if (folder / LOCK).exists():  # another process may have taken it for abandoned before it was locked
                break
        yield folder


@contextmanager
def _locked(path: Path, flags: int, patience: int = 0) -> Iterator[None]:
    """Hold the lock of a file, if its file system has locks.

    With `fcntl.LOCK_NB`, raise `OSError` if it has none, or if another process holds it.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | patience)
        except OSError:
            if patience:
                raise
        yield
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove the folder of an unfinished file, and nothing in it that is not of its writer."""
    try:
        _remove_files(folder)
    except (KeyboardInterrupt, MemoryError):  # a second one; the first may be why this is removed
        _remove_files(folder)
        raise


def _remove_files(folder: Path) -> None:
    with contextlib.suppress(OSError):
        own = folder.glob(f".tmp{'[A-Za-z0-9]' * 6}")  # what safetensors itself writes to, before it has a name
        for path in (folder / CONTENT, *own, folder / LOCK):
            path.unlink(missing_ok=True)
        folder.rmdir()


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
    return sha.hexdigest()


@attrs.frozen(kw_only=True)
class FileEntry:
    """A file as a header or a manifest beside it lists it."""

    file: FileName
    bytes: Size
    sha256: Digest

    @classmethod
    def of(cls, path: Path, **facts: Any) -> Self:
        """Return the entry of a file that is on the disk, with what else a subclass says of it."""
        return cls(file=path.name, bytes=path.stat().st_size, sha256=fingerprint(path), **facts)

    def refuse_changed(self, folder: Path) -> None:
        """Raise `RunError` if the file is missing, or is not what was written."""
        self.refuse_incomplete(folder)
        refuse_changed(folder / self.file, self.sha256)

    def refuse_incomplete(self, folder: Path) -> None:
        """Raise `RunError` if the file is missing or has another size; its content is not read."""
        path = folder / self.file
        if not path.is_file():
            raise RunError(f"{path} is missing")
        size = path.stat().st_size
        if size != self.bytes:
            raise RunError(f"{path} has {size:,} bytes and should have {self.bytes:,}")


def refuse_changed(path: Path, sha256: str) -> None:
    """Raise `RunError` if a file is missing, or has another checksum than when it was written."""
    if not path.is_file():
        raise RunError(f"{path} is missing")
    try:
        changed = fingerprint(path) != sha256
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror or error})") from None
    if changed:
        raise RunError(f"{path} is not what was written: its checksum differs")


def find_damage(folder: Path, files: Iterable[FileEntry], tell: Tell | None = None) -> list[str]:
    """Read all files, some at a time, and return a sentence for each that is not what was written."""

    def damage(entry: FileEntry) -> str:
        try:
            entry.refuse_changed(folder)
        except RunError as error:
            return str(error)
        return ""

    entries = list(files)
    total = sum(entry.bytes for entry in entries)
    done = 0
    sentences = []
    with ThreadPoolExecutor(FILES_AT_A_TIME, "reading") as readers:
        for entry, sentence in zip(entries, readers.map(damage, entries), strict=True):
            done += entry.bytes
            if tell is not None:
                tell("MB checked", done // 10**6, total // 10**6)
            if sentence:
                sentences.append(sentence)
    return sentences


@lru_cache
def _umask() -> int:
    """Return the permissions that new files do not get. It can be read only by setting it."""
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
