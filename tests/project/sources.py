"""The repository's own files, read as text."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for package in ("cswf_core", "cswf_plugins") for path in (ROOT / package).rglob("*.py"))


def read(name: str) -> str:
    """The text of a file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, kind: str) -> list[str]:
    """The fenced blocks of a kind in a Markdown file."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```$", read(name), re.MULTILINE | re.DOTALL)
