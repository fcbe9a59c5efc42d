"""Numbers as people write them, none larger than what 64 bits hold.

PyTorch, NumPy and files count in 64 bits, and Python's own whole numbers have no end: one of thousands of
digits would fail far from where it was written, or not be read at all.
"""

from __future__ import annotations

import re

LARGEST = 2**63 - 1
"""The largest whole number that is read anywhere."""

_SHORT = re.compile(r"([0-9]{1,15}(?:[,_][0-9]{3}){0,5}(?:\.[0-9]{1,15})?) ?([km%]?)", re.IGNORECASE)


def whole_number(text: str) -> int | None:
    """Return the whole number from 0 on that a text of digits means; None for others, or one too large."""
    written = text.strip()
    digits = written.lstrip("0")
    if not written.isdecimal() or len(digits) > len(str(LARGEST)):
        return None
    number = int(digits or "0")
    return number if number <= LARGEST else None


def number_hint(text: str, *, whole: bool = False) -> str:
    """Return ` (write 10000)` for a text such as 10k, 1.5M, 10,000 or 20%; nothing for others."""
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        return ""
    factor = {"k": 1e3, "m": 1e6, "%": 1e-2}.get(match[2].lower(), 1)
    number = f"{float(re.sub('[,_]', '', match[1])) * factor:.15g}"
    return "" if whole and not number.isdecimal() else f" (write {number})"


def bytes_in_words(count: float) -> str:
    """Return a number of bytes as people write it: 28 TB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB", "EB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return "more than 1,000 EB"
