"""Parameters with a unit: `Size`, written as 500MB or 2GiB, and `Interval`, written as 500, 30s or 10min."""

from __future__ import annotations

import math
import re
from typing import ClassVar

import attrs

from cswf_core.errors import excerpt
from cswf_core.files import bytes_of
from cswf_core.interfaces.parameter import Written
from cswf_core.numbers import LARGEST, whole_number

UNITS = {"s": 1, "min": 60, "h": 3600}
"""Seconds of each unit that a recipe may write."""


@attrs.frozen
class Size(Written):
    """A number of bytes, above 0."""

    bytes: int
    """How many."""
    text: str = attrs.field(default="", eq=False, repr=False)
    """As it was written."""

    form: ClassVar[str] = "a size such as 500MB, 1.5GB or 2GiB"
    """In words, for errors."""

    @classmethod
    def from_text(cls, text: str) -> Size:
        """Return the size that `500MB`, `1.5GB`, `2GiB` or `4096` means."""
        size = bytes_of(text)
        if not size:
            raise ValueError(f"'{text}' is not {cls.form}")
        return cls(size, text.strip())

    def __str__(self) -> str:
        return self.text or str(self.bytes)


@attrs.frozen
class Interval(Written):
    """An interval of steps or of seconds; with neither, never."""

    steps: int | None = None
    seconds: float | None = None
    text: str = attrs.field(default="never", eq=False, repr=False)
    """As it was written."""

    form: ClassVar[str] = "a number of steps such as 500, a time such as 30s, 10min or 2h, or never"

    @classmethod
    def from_text(cls, text: str) -> Interval:
        """Return the interval that `500`, `30s`, `10min`, `1.5h` or `never` means."""
        if text.strip() == "never":
            return cls()
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h)?", text.strip())
        if match is None or not float(match[1]) or not (match[2] or match[1].isdigit()):
            raise ValueError(f"'{excerpt(text)}' is not {cls.form}")
        number, unit = match.groups()
        steps, seconds = (whole_number(number), None) if unit is None else (None, float(number) * UNITS[unit])
        if (steps or seconds or math.inf) > LARGEST:
            raise ValueError(f"'{excerpt(text)}' is too large: 64 bits hold {LARGEST:,} at most")
        return cls(steps=steps, seconds=seconds, text=number + (unit or ""))

    def __str__(self) -> str:
        return self.text
