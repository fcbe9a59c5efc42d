"""Any number of samples in constant memory: a folder of shards, `samples-00000.npz` and so on.

`request.json` says what was asked for and is written first; `manifest.json`, with checksums, is written last. A
call that was interrupted continues with the shards that are missing. A sample depends on its number and the
seed only, so that processes share the work without communication: each of n writes every nth shard.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from cswf_core.documents import Size, read_document
from cswf_core.errors import RunError
from cswf_core.interfaces import Space
from cswf_core.interfaces.metric import Tell
from cswf_core.model.model import Model
from cswf_core.model.requests import Labels, SampleRequest, Vectors
from cswf_core.model.sampling import SavedFlow
from cswf_core.numbers import bytes_in_words
from cswf_core.online.learner import native
from cswf_core.recipe import choose_device
from cswf_core.runs.durable import FileEntry, make_folder, refuse_changed, remove_parts, write_durably
from cswf_core.runs.samples import archive

SAMPLES_PER_SHARD = 8192
"""Number of samples in a shard; the last may have fewer."""

REQUEST = "request.json"

MANIFEST = "manifest.json"

PAUSE_S = 0.2
"""Seconds between two looks whether other processes have written their shards."""


@attrs.frozen
class Worker:
    """A process that takes a part of the work: shards `rank`, `rank` + `size`, and so on."""

    rank: int = 0
    size: int = 1

    def __attrs_post_init__(self) -> None:
        """Refuse a rank that is not one of them."""
        if not 0 <= self.rank < self.size:
            raise RunError(f"process {self.rank} of {self.size} is asked for; they are counted from 0")

    def of(self, count: int) -> range:
        """Return the numbers of its shards among `count`."""
        return range(self.rank, count, self.size)


ALONE = Worker()
"""A process that works alone."""


def is_shards(out: str) -> bool:
    """Say whether a path means a folder of shards: it ends in a slash, or is such a folder already."""
    return out.endswith(("/", os.sep)) or (Path(out) / REQUEST).is_file()


def shard_file(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"samples-{number:05}.npz"


@attrs.frozen(kw_only=True)
class ShardsRequest:
    """The samples of a folder of shards: those of one call of `Model.sample`, whose arguments these are."""

    count: int
    labels: Labels | None = None
    vectors: Vectors | None = None
    seed: int = 0
    device: str = "auto"


def write_shards(
    model: Model,
    folder: Path,
    wanted: ShardsRequest,
    *,
    worker: Worker = ALONE,
    force: bool = False,
    tell: Tell | None = None,
) -> None:
    """Write this process's shards that are not there yet; the first process waits for those of all.

    Args:
        model: The model to draw from.
        folder: Folder of the shards; it is made if it is not there.
        wanted: The samples.
        worker: This process, one of several that share the work.
        force: Remove first what was there.
        tell: Hears of progress.
    """
    device = choose_device(wanted.device)
    request = model.request(wanted.count, labels=wanted.labels, vectors=wanted.vectors, seed=wanted.seed)
    facts: dict[str, Any] = {
        "format": 1,
        "model": model.digest,
        "count": wanted.count,
        "seed": wanted.seed,
        "labels": _plain(wanted.labels),
        "vectors": _plain(wanted.vectors),
        "device": device.type,
        "shard": SAMPLES_PER_SHARD,
    }
    _require_space(folder, model.space, wanted.count)
    _open_folder(folder, facts, worker, force=force)
    total = -(-wanted.count // SAMPLES_PER_SHARD)
    missing = [number for number in worker.of(total) if not shard_file(folder, number).is_file()]
    if missing:
        _draw(model, request, model.flow(device), folder, missing, tell)
    if worker.rank == 0:
        _wait(folder, total, tell)
        _write_manifest(folder, facts, total)


def _draw(
    model: Model, request: SampleRequest, flow: SavedFlow, folder: Path, numbers: list[int], tell: Tell | None
) -> None:
    """Draw some shards and write each when its last group is there; one is in the host's memory at a time."""
    assert SAMPLES_PER_SHARD % flow.size == 0
    ends = {number: min((number + 1) * SAMPLES_PER_SHARD, request.count) for number in numbers}
    firsts = [
        first for number in numbers for first in range(number * SAMPLES_PER_SHARD, ends[number], flow.size)
    ]
    parts: list[Tensor] = []
    for first, part in model.drawn(request, flow, firsts, tell):
        parts.append(part)
        number = first // SAMPLES_PER_SHARD
        if first + part.shape[1] == ends[number]:
            conditions = request.conditions(torch.arange(number * SAMPLES_PER_SHARD, ends[number]))
            samples = model.dataset(torch.cat(parts, dim=1), conditions)
            write_durably(shard_file(folder, number), archive(samples, None))
            parts = []


def _open_folder(folder: Path, facts: Mapping[str, Any], worker: Worker, *, force: bool) -> None:
    """Make the folder of a request, or find it as that request has left it; else raise `RunError`."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give another --out")
    make_folder(folder)
    if force and worker.size > 1:
        raise RunError(
            f"--force would remove shards that other processes are writing to {folder}: empty it beforehand"
        )
    if force:
        for path in (folder / REQUEST, folder / MANIFEST, *folder.glob("samples-*.npz")):
            path.unlink(missing_ok=True)
    others = [path for path in folder.iterdir() if path.name != REQUEST and not path.name.startswith(".")]
    begun = (folder / REQUEST).exists()
    if others and not begun:
        raise RunError(f"{folder} is not empty, and has no shards; give another --out")
    if worker.size == 1:
        remove_parts(folder)
    if not begun:
        write_durably(folder / REQUEST, json.dumps(facts, indent=2) + "\n")
        return
    known = read_document(folder / REQUEST, dict[str, Any], advice="; give another --out")
    for name, value in facts.items():
        if known.get(name) != value:
            raise RunError(
                f"{folder} has shards of another request: its {name} is {known.get(name)}, and {value} is "
                "asked for; give another --out, or --force to begin anew"
            )


def _require_space(folder: Path, space: Space, count: int) -> None:
    """Raise `RunError` if samples need more than the disk of their folder has: bytes, or floats of points."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
    size = count * space.dimension * (1 if space.is_image else 4)
    disk = shutil.disk_usage(there).total
    if size > disk:
        raise RunError(
            f"{count:,} samples of {space} need {bytes_in_words(size)}, and the disk of {folder} has "
            f"{bytes_in_words(disk)}; ask for fewer, or give another --out"
        )


def _wait(folder: Path, total: int, tell: Tell | None) -> None:
    """Wait until all shards are there, those of other processes too."""
    while missing := sum(not shard_file(folder, number).is_file() for number in range(total)):
        if tell is not None:
            tell("shards are there", total - missing, total)
        time.sleep(PAUSE_S)


@attrs.frozen(kw_only=True)
class SampleShard(FileEntry):
    """The manifest's entry for one shard."""

    samples: Size


@attrs.frozen(kw_only=True)
class SampleManifest:
    """The shards of a request that is done; what was asked for stands beside them."""

    open_ended: ClassVar[bool] = True
    shards: tuple[SampleShard, ...]


def _write_manifest(folder: Path, facts: Mapping[str, Any], total: int) -> None:
    """Write what was asked for and the checksum of every shard; if that is there, compare the checksums."""
    path = folder / MANIFEST
    files = [shard_file(folder, number) for number in range(total)]
    if path.exists():
        advice = "; remove it, and it is written anew"
        shards = read_document(path, SampleManifest, advice=advice).shards
        if [shard.file for shard in shards] != [file.name for file in files]:
            raise RunError(f"{path} is damaged: it is not of {total} shards{advice}")
        for shard in shards:
            refuse_changed(folder / shard.file, shard.sha256, shard.bytes)
        return
    entries = []
    for number, entry in enumerate(map(FileEntry.of, files)):
        samples = min(SAMPLES_PER_SHARD, facts["count"] - number * SAMPLES_PER_SHARD)
        entries.append({"file": entry.file, "samples": samples, "bytes": entry.bytes, "sha256": entry.sha256})
    write_durably(path, json.dumps({**facts, "shards": entries}, indent=2) + "\n")


def _plain(value: Any) -> Any:
    """Return labels or vectors as JSON has them."""
    if isinstance(value, Mapping):
        return {str(native(label)): native(share) for label, share in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return native(value)
