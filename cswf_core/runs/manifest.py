"""The manifest of a run's checkpoints, and the facts in each of them: what may stand in these files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import attrs

from cswf_core.documents import Amount, Count, Digest, Size, read_document
from cswf_core.runs.durable import FileEntry
from cswf_core.runs.facts import PluginRecord

NAME = "manifest.json"

FORMAT = 2
"""The version of checkpoints."""


@attrs.frozen(kw_only=True)
class CheckpointEntry(FileEntry):
    """A checkpoint: its file, and those with the particles of other ranks."""

    step: Count
    """Steps done."""
    parts: tuple[FileEntry, ...] = ()

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All its files."""
        return (self, *self.parts)


@attrs.frozen(kw_only=True)
class CheckpointManifest:
    """The checkpoints that are complete, newest first."""

    format: Literal[1] = 1
    checkpoints: tuple[CheckpointEntry, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> CheckpointManifest:
        """Return a folder's manifest; raise `RunError` if it has none, or a damaged one."""
        return read_document(folder / NAME, cls)

    def text(self) -> str:
        """Return the manifest as JSON."""
        return json.dumps(attrs.asdict(self, filter=_told), indent=2) + "\n"


@attrs.frozen(kw_only=True)
class CheckpointFacts:
    """The facts of a checkpoint beside those of the flow: of what run it is."""

    open_ended: ClassVar[bool] = True
    """Those of the flow are beside them."""
    recipe: str
    """As YAML."""
    data_sha256: Digest
    device: str
    """Its type."""
    versions: dict[str, str]
    """Of packages that the last digits may depend on."""
    plugins: tuple[PluginRecord, ...]
    """Those that take part."""
    seconds: Amount
    """Of the run so far."""


@attrs.frozen(kw_only=True)
class FormatFacts:
    """What a checkpoint says about its own form."""

    open_ended: ClassVar[bool] = True
    format: int
    ranks: Size = 1
    """How many ranks have written it, each a file."""


def _told(attribute: attrs.Attribute[Any], value: Any) -> bool:
    """Say whether a value is written: parts are only where there are any."""
    return attribute.name != "parts" or bool(value)
