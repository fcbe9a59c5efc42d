"""Who a plugin belongs to, for error messages and for the record of a run."""

from __future__ import annotations

import attrs


@attrs.frozen
class Owner:
    """A plugin's name, and the distribution that brought it."""

    kind: str
    """`projection`, `cdf` and so on."""
    name: str
    """The name under which recipes ask for it."""
    distribution: str
    """The package that offers it, or the file of a one-file plugin."""
    version: str
    """The package's version; empty for a file."""
    sha256: str = ""
    """Of the code it comes from; "" where nobody has asked for it, or the code has no file."""

    @classmethod
    def of(cls, kind: str, plugin: object) -> Owner:
        """Name an object that did not come through the plugin door by its class and module."""
        return cls(kind, type(plugin).__name__, type(plugin).__module__, "")

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}' ({f'{self.distribution} {self.version}'.strip()})"
