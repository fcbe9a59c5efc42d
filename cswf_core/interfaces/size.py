"""`Size`: a parameter that is a number of bytes, written as 500MB or 2GiB."""

from __future__ import annotations

from typing import ClassVar

import attrs

from cswf_core.files import bytes_of
from cswf_core.interfaces.parameter import Written


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
