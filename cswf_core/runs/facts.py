"""The facts of `run.json`, as commands read them back: how a run stands, and what it was begun with."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import attrs

from cswf_core.documents import Amount, Count, Digest, Rule, Size

Status = Literal["running", "done", "interrupted", "failed"]


PluginRecord = Annotated[
    dict[str, str],
    Rule(
        "kind, name, distribution, version and sha256 of a plugin",
        {"kind", "name", "distribution", "version", "sha256"}.issubset,
    ),
]
"""Facts of a plugin in models and checkpoints, as `Recipe.plugin_facts` has them."""


@attrs.frozen(kw_only=True)
class DataRecord:
    """The data of a run."""

    open_ended: ClassVar[bool] = True
    sha256: Digest
    shape: tuple[Size, ...]
    """C×H×W for images, d for points."""
    streamed: bool = False
    """Whether they were not in memory, so that the digest is that of their bytes."""


@attrs.frozen(kw_only=True)
class DeviceRecord:
    """The device of a run."""

    open_ended: ClassVar[bool] = True
    type: str
    threads: Size | None = None
    """Of a CPU."""


@attrs.frozen(kw_only=True)
class RunFacts:
    """What other commands want to know of a run; `run.json` has more, for people."""

    open_ended: ClassVar[bool] = True
    status: Status = "running"
    started: str | None = None
    command: str | None = None
    """The command that began it."""
    resumed: tuple[dict[str, Any], ...] = ()
    """Where it has gone on after a stop."""
    updates: dict[str, Any] | None = None
    """The run that it goes on from with new data, if it does."""
    seconds: Amount | None = None
    data: DataRecord | None = None
    device: DeviceRecord | None = None
    memory_limit: Size | None = None
    """Bytes of memory that it plans with, at most."""
    particles: Count | None = None
    steps_done: Count | None = None
    samples_sha256: Digest | None = None
    spread: float | None = None
    """Of its samples."""
    metrics: dict[str, float | None] | None = None
    """Its scores, once there are some."""
    plugins: dict[str, dict[str, str]] = attrs.field(factory=dict)
    """Facts of each plugin, by the place in the recipe that chose it."""
