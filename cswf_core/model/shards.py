"""Any number of samples in constant memory: a folder of shards, `samples-00000.npz` and so on.

`request.json` says what was asked for and is written first; `manifest.json`, with checksums, is written last. A
call that was interrupted goes on with the shards that are missing. A sample depends on its number and the seed
only, so that processes can share the work without talking to each other: each writes every so many-th shard.
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

from cswf_core.documents import (
    MisfitError,
    Size,
    read_document,
    read_json,
    short,
    structured,
)
from cswf_core.errors import RunError
from cswf_core.interfaces import Space
from cswf_core.interfaces.metric import Tell
from cswf_core.model.groups import Request
from cswf_core.model.model import Model
from cswf_core.model.requests import Labels, Vectors
from cswf_core.model.sampling import SavedFlow
from cswf_core.numbers import bytes_in_words
from cswf_core.online.samples import native
from cswf_core.recipe import choose_device
from cswf_core.runs.durable import (
    FileEntry,
    fingerprint,
    make_folder,
    refuse_changed,
    remove_parts,
    write_durably,
)
from cswf_core.runs.samples import archive

SIZE = 8192
"""Samples of a shard; the last may have fewer."""

REQUEST, MANIFEST = "request.json", "manifest.json"
PATTERN = "samples-*.npz"
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


ALL = Worker()
"""A process that works alone."""


def is_shards(out: str) -> bool:
    """Say whether a path means a folder of shards: it ends in a slash, or is such a folder already."""
    return out.endswith(("/", os.sep)) or (Path(out) / REQUEST).is_file()


def shard_file(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"samples-{number:05}.npz"


def write_shards(
    model: Model,
    folder: Path,
    count: int,
    *,
    labels: Labels | None = None,
    vectors: Vectors | None = None,
    seed: int = 0,
    device: str = "auto",
    worker: Worker = ALL,
    force: bool = False,
    tell: Tell | None = None,
) -> None:
    """Write this process's share of `count` samples that are not there yet; the first process waits for all.

    The samples are those of one call of `Model.sample`. With `force`, what was there is removed first.
    """
    where = choose_device(device)
    request = model.request(count, labels=labels, vectors=vectors, seed=seed)
    facts: dict[str, Any] = {
        "format": 1,
        "model": model.digest,
        "count": count,
        "seed": seed,
        "labels": _plain(labels),
        "vectors": _plain(vectors),
        "device": where.type,
        "shard": SIZE,
    }
    _require_space(folder, model.space, count)
    _open_folder(folder, facts, worker, force=force)
    total = -(-count // SIZE)
    missing = [number for number in worker.of(total) if not shard_file(folder, number).is_file()]
    if missing:
        _draw(model, request, model.flow(where), folder, missing, tell)
    if worker.rank == 0:
        _wait(folder, total, tell)
        _write_manifest(folder, facts, total)


def _draw(
    model: Model, request: Request, flow: SavedFlow, folder: Path, numbers: list[int], tell: Tell | None
) -> None:
    """Draw some shards and write each when its last group is there; one is in the host's memory at a time."""
    assert SIZE % flow.size == 0
    ends = {number: min((number + 1) * SIZE, request.count) for number in numbers}
    firsts = [first for number in numbers for first in range(number * SIZE, ends[number], flow.size)]
    parts: list[Tensor] = []
    for first, part in model.drawn(request, flow, firsts, tell):
        parts.append(part)
        number = first // SIZE
        if first + part.shape[1] == ends[number]:
            conditions = request.conditions(torch.arange(number * SIZE, ends[number]))
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
        for path in (folder / REQUEST, folder / MANIFEST, *folder.glob(PATTERN)):
            path.unlink(missing_ok=True)
    others = [path for path in folder.iterdir() if path.name != REQUEST and not path.name.startswith(".")]
    known = _read(folder / REQUEST)
    if known is None and others:
        raise RunError(f"{folder} is not empty, and has no shards; give another --out")
    if worker.size == 1:
        remove_parts(folder)
    if known is None:
        write_durably(folder / REQUEST, json.dumps(facts, indent=2) + "\n")
        return
    different = [name for name in facts if known.get(name) != facts[name]]
    if different:
        name = different[0]
        raise RunError(
            f"{folder} has shards of another request: its {name} is {known.get(name)}, and {facts[name]} is "
            "asked for; give another --out, or --force to begin anew"
        )


def _require_space(folder: Path, space: Space, count: int) -> None:
    """Raise `RunError` if samples need more than the disk of their folder has: bytes, or floats of points."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
    size, disk = count * space.dimension * (1 if space.is_image else 4), shutil.disk_usage(there).total
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
    if path.exists():
        advice = "; remove it, and it is written anew"
        shards = read_document(path, SampleManifest, advice=advice).shards
        if [shard.file for shard in shards] != [shard_file(folder, number).name for number in range(total)]:
            raise RunError(f"{path} is damaged: it is not of {total} shards{advice}")
        for shard in shards:
            refuse_changed(folder / shard.file, shard.sha256, shard.bytes)
        return
    entries = []
    for number in range(total):
        own = shard_file(folder, number)
        samples = min(SIZE, facts["count"] - number * SIZE)
        entries.append(
            {
                "file": own.name,
                "samples": samples,
                "bytes": own.stat().st_size,
                "sha256": fingerprint(own),
            }
        )
    write_durably(path, json.dumps({**facts, "shards": entries}, indent=2) + "\n")


def _read(path: Path) -> dict[str, Any] | None:
    """Return a JSON object that is in a file; None if there is no file."""
    try:
        return structured(read_json(path), dict[str, Any])  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except MisfitError:
        raise RunError(f"{path} is not what cswf has written; give another --out") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({short(error)}); give another --out") from None


def _plain(value: Any) -> Any:
    """Return labels or vectors as JSON has them."""
    if isinstance(value, Mapping):
        return {str(native(label)): native(share) for label, share in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return native(value)
