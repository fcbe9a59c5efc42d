"""Files that a plugin needs besides its own code, as `cswf doctor` lists them."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class NeededFiles:
    """Published files that a plugin reads: whether they are there, and what to do if not."""

    name: str
    """What they are, in a word or two: 'cifar10', 'feature network'."""
    folder: Path
    """Where they belong, and where a download would put them."""
    path: Path | None = None
    """Where they are; None: they are missing."""
    verified: bool = False
    """Whether they were compared with a checksum, and not only seen."""
    fault: str = ""
    """Why files that are there cannot be used, if that is so."""
    advice: str = ""
    """What to do where they are missing or cannot be used, in one sentence."""
