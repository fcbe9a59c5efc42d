"""The cache below the data's root: decoded pictures, features of real images."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cswf_core.errors import RunError
from cswf_core.runs.durable import make_folder, replacing

log = logging.getLogger("cswf")


def write_cached(path: Path, save: Callable[[IO[bytes]], object]) -> None:
    """Let `save` write a file of the cache; one that cannot be written is a warning."""
    try:
        make_folder(path.parent)
        with replacing(path) as temporary, temporary.open("wb") as file:
            save(file)
    except RunError as error:
        log.warning("the cache stays as it is: %s", error)
