"""Readers of models and checkpoints: headers, tables, facts and manifests, mostly with checksums that fit."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from cswf_core.cli.inspect import inspect
from cswf_core.model import load_model
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.recipe.render import from_yaml
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import resume
from tests.fuzz import seeds, values
from tests.fuzz.files import Tensors, changed_tensors, damaged
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, contents, fresh
from tests.fuzz.values import chance, pick

LARGEST = 4096
"""d of models that are sampled; those of larger images rightly take longer than an answer may."""

MANIFEST = "manifest.json"


class Told(logging.Handler):
    """Collects what the program warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a sentence."""
        self.sentences.append(record.getMessage())

    def __enter__(self) -> Told:
        logging.getLogger("cswf").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("cswf").removeHandler(self)


@attrs.frozen
class Tampered:
    """A model, or a run with checkpoints, with other files; None for one that is missing."""

    kind: str
    files: dict[str, bytes | None]
    forged: bool = False
    """Whether checksums fit what was changed, so that another result is no fault."""


def listed(entry: dict[str, Any], content: bytes | None) -> None:
    """Give an entry of a manifest the size and checksum of a file."""
    entry |= {"bytes": len(content or b""), "sha256": hashlib.sha256(content or b"").hexdigest()}


def put(folder: Path, files: dict[str, bytes | None]) -> None:
    """Write files, and remove those that are None."""
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)


def drawn(folder: Path, kind: str) -> Tensor:
    """Return two samples of a model, by what can be asked of it."""
    model = load_model(folder)
    if kind == "masked":
        images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
        return model.complete(images, count=2, device="cpu").x
    if model.space.dimension > LARGEST:
        return torch.empty(0)
    vectors = {"vectors": [[0.1, 0.2], [0.3, -0.4]]} if kind == "vectors" else {}
    return model.sample(2, device="cpu", **vectors).x  # type: ignore[arg-type]


class ModelTarget(Target):
    """Headers of models: changed values, keys and types."""

    name = "model"

    def prepare(self) -> None:
        """Make a model of each kind, and draw its undisturbed samples."""
        registry = Registry.discover()
        for kind in seeds.KINDS:
            seeds.run(self.folder / "made" / kind, seeds.recipe(self.folder / "data", kind), registry)
        folders = {kind: self.folder / "made" / kind / "model" for kind in seeds.KINDS}
        self.models = {kind: contents(folder) for kind, folder in folders.items()}
        self.samples = {kind: drawn(folder, kind) for kind, folder in folders.items()}
        self.headers = {kind: json.loads(files["model.json"]) for kind, files in self.models.items()}

    def make(self, draw: DrawFn) -> Tampered:
        """Return a model with a changed header."""
        kind = pick(draw, list(self.models))
        header = self.headers[kind]
        if chance(draw, 0.15):
            others = [files["model.json"] for files in self.models.values()]
            return Tampered(kind, {"model.json": damaged(draw, self.models[kind]["model.json"], others)})
        if chance(draw, 0.1):
            inner = values.changed(draw, from_yaml(header["recipe"]))
            changed = {**header, "recipe": values.text_of(inner)}
        else:
            changed = values.changed(draw, header, list(self.headers.values()))
        forged = chance(draw, 0.7)
        content = values.bytes_of(values.resealed(changed) if forged else changed)
        return Tampered(kind, {"model.json": content}, forged)

    def read(self, given: Tampered) -> None:
        """Describe the model and draw samples: they are the undisturbed ones, or something is said."""
        folder = self.folder / "made" / given.kind / "model"
        put(folder, given.files)
        try:
            with Told() as told, redirect_stdout(io.StringIO()):
                inspect.main([str(folder)], standalone_mode=False)
                samples = drawn(folder, given.kind)
        finally:
            put(folder, {name: self.models[given.kind][name] for name in given.files})
        same = torch.equal(samples, self.samples[given.kind])
        if not (given.forged or told.sentences or same):
            raise Fault(f"silent difference: other samples of '{given.kind}'")

    def case(self, path: Path) -> Tampered:
        """Return a model whose header is changed as a JSON file says: kind, and values by key path."""
        document = json.loads(path.read_text("utf-8"))
        header = values.replaced(self.headers[document["kind"]], document["header"])
        content = values.bytes_of(values.resealed(header))
        return Tampered(document["kind"], {"model.json": content}, forged=True)


class ShardTarget(ModelTarget):
    """Shards of models: tensors and facts changed, mostly with sizes and checksums that fit."""

    name = "shard"

    def make(self, draw: DrawFn) -> Tampered:
        """Return a model with another shard, or with another file of what was fitted."""
        kind = pick(draw, list(self.models))
        files = self.models[kind]
        name = pick(draw, [name for name in files if name.endswith(".safetensors")])
        others = [each[name] for each in self.models.values() if name in each]
        content = changed_tensors(draw, files[name], others)
        if chance(draw, 0.3):
            return Tampered(kind, {name: content})
        header = copy.deepcopy(self.headers[kind])
        for entry in (*header["shards"], header.get("fitted") or {}):
            if entry.get("file") == name:
                listed(entry, content)
        if chance(draw, 0.05):
            header = values.changed(draw, header, most=1)
        changed = values.bytes_of(values.resealed(header))
        return Tampered(kind, {name: content, "model.json": changed}, forged=True)


class CheckpointTarget(Target):
    """Facts, tensors and manifests of checkpoints, through `cswf resume`."""

    name = "checkpoint"

    def prepare(self) -> None:
        """Make runs that were stopped after their third step, and let copies of them come to their ends."""
        registry = Registry.discover()
        self.recipes: dict[str, Any] = {}
        self.results: dict[str, str] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.stopped = self.folder / "stopped"
        for kind in ("classes", "whitened"):
            sections = seeds.recipe(self.folder / "data", kind, model={"save": kind == "whitened", "knots": 4})
            self.recipes[kind] = load_recipe(sections, registry=registry)
            seeds.run(self.stopped / kind, sections, registry, stop=3)
            (self.stopped / kind / "report.html").unlink(missing_ok=True)
            self.results[kind] = seeds.run(self.folder / "whole" / kind, sections, registry)
            self.files[kind] = contents(self.stopped / kind / "checkpoints")
            self.read(Tampered(kind, {}))
        self.tensors = [content for each in self.files.values() for n, content in each.items() if n != MANIFEST]

    def make(self, draw: DrawFn) -> Tampered:
        """Return a run with other checkpoints."""
        kind = pick(draw, list(self.files))
        whole = self.files[kind]
        names = [name for name in whole if name.endswith(".safetensors")]
        chosen = names if draw(st.booleans()) else [pick(draw, names)]
        files: dict[str, bytes | None] = {name: self._tampered(draw, whole[name]) for name in chosen}
        manifest = json.loads(whole[MANIFEST])
        match draw(st.integers(0, 9)):
            case 0 | 1 | 2:
                files[MANIFEST] = pick(draw, (None, None, b"", b"{", b"[]", b"null"))
            case 3 | 4 | 5 | 6:
                for entry in manifest["checkpoints"]:
                    listed(entry, files.get(entry["file"], whole[entry["file"]]))
                return Tampered(kind, files | {MANIFEST: _written(manifest)}, forged=True)
            case 7 | 8:
                files = {MANIFEST: values.bytes_of(values.changed(draw, manifest))}
            case _:
                files[MANIFEST] = damaged(draw, whole[MANIFEST])
        if chance(draw, 0.05):
            files[pick(draw, names)] = None
        return Tampered(kind, files)

    def _tampered(self, draw: DrawFn, content: bytes) -> bytes:
        if draw(st.booleans()):
            return changed_tensors(draw, content, self.tensors)
        file = Tensors.parse(content)
        facts = file.facts
        key = pick(draw, ["position", "habits", "position", "habits", "directions", *facts])
        changed = values.changed(draw, [facts.get(key)])
        facts[key] = changed[0] if isinstance(changed, list) and changed else changed
        file.metadata["facts"] = values.text_of(facts)
        return file.content()

    def read(self, given: Tampered) -> None:
        """Go on with the run; its samples are those of a run that was not stopped, or something is said."""
        folder = fresh(self.folder / "run", self.stopped / given.kind)
        put(folder / "checkpoints", given.files)
        words: list[str] = []
        recipe = self.recipes[given.kind]
        with Told() as told:
            facts = resume(recipe, RunFolder(folder), device="cpu", announce=lambda _, lost: words.extend(lost))
        if facts["samples_sha256"] != self.results[given.kind] and not given.forged:
            words += told.sentences
            raise Fault(
                f"silent difference: another result of '{given.kind}' ({'; '.join(words) or 'no word'})"
            )

    def case(self, path: Path) -> Tampered:
        """Return a run whose newest checkpoint has other facts and tensors, as a JSON file says."""
        document = json.loads(path.read_text("utf-8"))
        whole = self.files[document["kind"]]
        newest = max(name for name in whole if name.endswith(".safetensors"))
        file = Tensors.parse(whole[newest])
        file.metadata["facts"] = values.text_of(values.replaced(file.facts, document.get("facts", {})))
        for name in document.get("without", ()):
            del file.tensors[name]
        manifest = json.loads(whole[MANIFEST])
        listed(manifest["checkpoints"][0], file.content())
        written = None if document.get("manifest") == "missing" else _written(manifest)
        files = {newest: file.content(), MANIFEST: written}
        return Tampered(document["kind"], files, document.get("forged", False))


def _written(manifest: Any) -> bytes:
    """Return a manifest as the program would have written it."""
    return values.bytes_of(values.resealed(manifest))
