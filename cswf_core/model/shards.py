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
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch

from cswf_core.documents import Size, read_document
from cswf_core.errors import RunError
from cswf_core.interfaces import Space
from cswf_core.interfaces.metric import Tell
from cswf_core.model.format import HEADER
from cswf_core.model.model import Model
from cswf_core.model.requests import Labels, SampleRequest, Vectors
from cswf_core.numbers import bytes_in_words
from cswf_core.online.flow import native
from cswf_core.recipe import choose_device
from cswf_core.runs.durable import (
    FileEntry,
    fingerprint,
    make_folder,
    remove_parts,
    write_durably,
)
from cswf_core.runs.samples import archive

REQUEST = "request.json"
MANIFEST = "manifest.json"

SAMPLES_PER_SHARD = 8192
"""Number of samples in a shard; the last may have fewer."""

PAUSE_S = 0.2
"""Seconds between two looks whether other processes have written their shards."""


def is_shards(out: str) -> bool:
    """Return whether a path means a folder of shards: it ends in a slash, or is such a folder already."""
    return out.endswith(("/", os.sep)) or (Path(out) / REQUEST).is_file()


@attrs.frozen(kw_only=True)
class SampleShard(FileEntry):
    """The manifest's entry for one shard."""

    samples: Size


@attrs.frozen(kw_only=True)
class SampleManifest:
    """The shards of a request; what was requested stands beside them."""

    open_ended: ClassVar[bool] = True
    shards: tuple[SampleShard, ...]


@attrs.frozen(kw_only=True)
class ShardJob:
    """The samples of a folder of shards, and a process's part of the work."""

    count: int
    labels: Labels | None = None
    vectors: Vectors | None = None
    seed: int = 0
    device: str = "auto"
    rank: int = 0
    """Number of this process, which writes shards `rank`, `rank` + `processes`, and so on."""
    processes: int = 1

    def __attrs_post_init__(self) -> None:
        """Refuse a rank that is not one of the processes."""
        if not 0 <= self.rank < self.processes:
            raise RunError(f"process {self.rank} of {self.processes} is asked for; they are counted from 0")


def _files(folder: Path, count: int) -> dict[Path, range]:
    """Return the shards of `count` samples, and the numbers of the samples in each."""
    firsts = range(0, count, SAMPLES_PER_SHARD)
    samples = [range(first, min(first + SAMPLES_PER_SHARD, count)) for first in firsts]
    return {folder / f"samples-{number:05}.npz": own for number, own in enumerate(samples)}


def _begin(folder: Path, facts: Mapping[str, Any], *, alone: bool, force: bool) -> None:
    """Make the folder, or verify that it is of this request; with `force`, remove first what was there."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; give another --out")
    make_folder(folder)
    if force and not alone:
        others_write = f"shards that other processes are writing to {folder}"
        raise RunError(f"--force would remove {others_write}: empty it beforehand")
    if force:
        for path in (folder / REQUEST, folder / MANIFEST, *folder.glob("samples-*.npz")):
            path.unlink(missing_ok=True)
    others = [path for path in folder.iterdir() if path.name != REQUEST and not path.name.startswith(".")]
    begun = (folder / REQUEST).exists()
    if others and not begun:
        raise RunError(f"{folder} is not empty, and has no shards; give another --out")
    if alone:
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


def _complete(files: Mapping[Path, range], path: Path, facts: Mapping[str, Any], tell: Tell | None) -> None:
    """Wait for the shards of other processes, and write the manifest; if it is there, compare checksums."""
    missing = [*files]
    while missing := [file for file in missing if not file.is_file()]:
        if tell is not None:
            tell("shards are there", len(files) - len(missing), len(files))
        time.sleep(PAUSE_S)
    if not path.exists():
        of = {file: FileEntry.of(file) for file in files}
        entries = [
            {"file": own.file, "samples": len(files[file]), "bytes": own.bytes, "sha256": own.sha256}
            for file, own in of.items()
        ]
        write_durably(path, json.dumps({**facts, "shards": entries}, indent=2) + "\n")
        return
    advice = "; remove it, and it is written anew"
    shards = read_document(path, SampleManifest, advice=advice).shards
    if [shard.file for shard in shards] != [file.name for file in files]:
        raise RunError(f"{path} is damaged: it is not of {len(files)} shards{advice}")
    for shard in shards:
        shard.refuse_changed(path.parent)


def write_shards(
    model: Model, folder: Path, job: ShardJob, *, force: bool = False, tell: Tell | None = None
) -> None:
    """Write this process's shards that are not there yet; the first process waits for those of all.

    With `force`, remove first what was in the folder.
    """
    device = choose_device(job.device)
    request = model.request(job.count, labels=job.labels, vectors=job.vectors, seed=job.seed)
    facts = {
        "format": 1,
        "model": fingerprint(model.folder / HEADER),
        "count": job.count,
        "seed": job.seed,
        "labels": _plain(job.labels),
        "vectors": _plain(job.vectors),
        "device": device.type,
        "shard": SAMPLES_PER_SHARD,
    }
    _require_space(folder, model.space, job.count)
    _begin(folder, facts, alone=job.processes == 1, force=force)
    files = _files(folder, job.count)
    own = list(files.items())[job.rank :: job.processes]
    missing = [(file, samples) for file, samples in own if not file.is_file()]
    if missing:
        _draw(model, request, device, missing, tell)
    if job.rank == 0:
        _complete(files, folder / MANIFEST, facts, tell)


def _draw(
    model: Model,
    request: SampleRequest,
    device: torch.device,
    shards: Sequence[tuple[Path, range]],
    tell: Tell | None,
) -> None:
    """Draw some shards, and write each when its last group is there; one is in the host's memory at a time."""
    flow = model.flow(device)
    assert SAMPLES_PER_SHARD % flow.size == 0
    firsts = [first for _, samples in shards for first in samples[:: flow.size]]
    drawn = flow.drawn(request, firsts, tell)
    for file, samples in shards:
        parts = [x for _, x in islice(drawn, len(samples[:: flow.size]))]
        conditions = request.conditions(torch.arange(samples.start, samples.stop))
        write_durably(file, archive(model.dataset(torch.cat(parts, dim=1), conditions), None))


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


def _plain(value: Any) -> Any:
    """Return labels or vectors as JSON has them."""
    if isinstance(value, Mapping):
        return {str(native(label)): native(share) for label, share in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else native(value)
