"""Papers behind the built-in plugins, as BibTeX entries for their `references`: those of `references.bib`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


def bibtex(*keys: str) -> tuple[str, ...]:
    """Return entries by their keys, as they stand in the file."""
    return tuple(_entries()[key] for key in keys)


@cache
def _entries() -> dict[str, str]:
    text = Path(__file__).with_suffix(".bib").read_text(encoding="utf-8")
    entries = re.finditer(r"^@\w+\{(\S+),$.*?^\}$", text, re.MULTILINE | re.DOTALL)
    return {entry[1]: entry[0] for entry in entries}
