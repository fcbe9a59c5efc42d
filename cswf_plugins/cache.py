"""Files that can be made again: what was decoded, what was computed from real images."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_whole(path: Path, save: Callable[[IO[bytes]], object]) -> None:
    """Let `save` write a file under another name first, so that one with the right name is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)  # mkstemp lets nobody else read, and a data folder may be shared
            save(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
