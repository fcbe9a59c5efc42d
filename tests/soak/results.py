"""What a work has left: a SHA-256 for each of its files, of all in them but times."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cswf_core.documents import SEAL
from cswf_core.runs.durable import fingerprint, read_tensors

PASSING = {"seconds", "started", "finished", "resumed", "cost", "command"}
"""Keys of JSON files whose values differ from one run to the next, or say that a run was disturbed."""

TIMES = {"metrics/unwritten", "model/seconds", "model/total"}
"""Tensors of checkpoints that have times in them."""


def of(path: Path) -> dict[str, str]:
    """Return name → SHA-256 of all files in a folder, or of a file alone."""
    if path.is_file():
        return {path.name: _digest(path)}
    return {str(file.relative_to(path)): _digest(file) for file in sorted(path.rglob("*")) if file.is_file()}


def differences(whole: Mapping[str, str], here: Mapping[str, str], ignored: set[str]) -> list[str]:
    """Return a sentence on files that are missing, and one on those that differ; `ignored` ones may."""
    missing = [name for name in whole if name not in here]
    differing = [name for name in whole if here.get(name, whole[name]) != whole[name] and name not in ignored]
    named = (("missing", missing), ("not as they are undisturbed", differing))
    return [f"{', '.join(names)}: {word}" for word, names in named if names]


def _digest(path: Path) -> str:
    lists_checkpoints = path.parent.name == "checkpoints" and path.suffix != ".safetensors"
    if path.suffix == ".html" or path.name == "request.json" or lists_checkpoints:
        return "is there"  # its content depends on times
    if path.parent.name == "checkpoints":
        tensors, _ = read_tensors(path)
        lasting = {name: tensor for name, tensor in tensors.items() if name not in TIMES}
        return _text(
            {n: hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest() for n, t in lasting.items()}
        )
    if path.name == "manifest.json":  # of shards, with the checksum of a model.json, which has times
        return _text(json.loads(path.read_text())["shards"])
    if path.name == "model.json":  # its own checksum is also one of times
        return _text(_lasting({**json.loads(path.read_text(encoding="utf-8")), SEAL: None}))
    if path.suffix == ".json":
        return _text(_lasting(json.loads(path.read_text(encoding="utf-8"))))
    if path.suffix == ".jsonl":
        return _text([_lasting(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()])
    return fingerprint(path)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in PASSING}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def _text(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def unusable_checkpoints(folder: Path) -> list[str]:
    """Return a sentence for each file that a manifest of checkpoints lists and that is not as it says."""
    sentences = []
    for manifest in folder.rglob("checkpoints/manifest.json"):
        for entry in json.loads(manifest.read_text())["checkpoints"]:
            for listed in (entry, *entry.get("parts", ())):
                file = manifest.parent / listed["file"]
                if not file.is_file() or fingerprint(file) != listed["sha256"]:
                    sentences.append(f"{file.name} is listed in {manifest} and is not what was written")
    return sentences


def unfinished(folder: Path) -> list[str]:
    """Return the names of files below a folder that were never given their names."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.part")]
