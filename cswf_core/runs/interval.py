"""How often something happens: every so many steps, or every so much time."""

from __future__ import annotations

import re
from typing import ClassVar

import attrs

from cswf_core.interfaces import Written

UNITS = {"s": 1, "min": 60, "h": 3600}
"""Seconds of each unit that a recipe may write."""


@attrs.frozen
class Interval(Written):
    """Some steps, or some seconds; neither is never."""

    steps: int | None = None
    seconds: float | None = None
    text: str = attrs.field(default="never", eq=False, repr=False)
    """As it was written."""

    form: ClassVar[str] = "a number of steps such as 500, a time such as 30s, 10min or 2h, or never"

    @classmethod
    def from_text(cls, text: str) -> Interval:
        """Return what `500`, `30s`, `10min`, `1.5h` or `never` means."""
        if text.strip() == "never":
            return cls()
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)?\s*", text)
        if found is None or not float(found[1]) or not (found[2] or found[1].isdigit()):
            raise ValueError(f"'{text}' is not {cls.form}")
        if found[2] is None:
            return cls(steps=int(found[1]), text=found[1])
        return cls(seconds=float(found[1]) * UNITS[found[2]], text=found[1] + found[2])

    def __str__(self) -> str:
        return self.text
