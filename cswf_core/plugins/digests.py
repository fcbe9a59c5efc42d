"""SHA-256 of the code that plugins come from, so that a record says which code made a result."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType


def digest_of(files: Mapping[str, Path]) -> str:
    """Return the SHA-256 of files under their relative paths, both hashed; "" if one cannot be read."""
    digest = hashlib.sha256()
    for name in sorted(files):
        try:
            content = files[name].read_bytes()
        except OSError:
            return ""
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest() if files else ""


def package_digest(module: str) -> str:
    """Return the SHA-256 of the package or single module at the top of a module's name.

    Of a package, all .py files count. A namespace, which several distributions may share, is no top: the
    package inside it is. Returns "" for code that has no file, as in a notebook.
    """
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        top = sys.modules.get(".".join(parts[:depth]))
        if top is not None and getattr(top, "__file__", None):
            return _digest_of_top(top)
    return ""


@cache
def _digest_of_top(top: ModuleType) -> str:
    """Return the SHA-256 of a package or module; imported code does not change, so it is read once."""
    folders = [Path(folder) for folder in getattr(top, "__path__", ())]
    if not folders:
        file = Path(str(top.__file__))
        return digest_of({file.name: file})
    paths = {path.relative_to(f).as_posix(): path for f in reversed(folders) for path in f.rglob("*.py")}
    return digest_of(paths)
