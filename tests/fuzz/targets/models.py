"""Model readers: `model.json`, and the shards with a model's tables."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import random
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.cli.commands import inspect
from cswf_core.model import load_model
from cswf_core.plugins import Registry
from tests.fuzz import seeds, values
from tests.fuzz.containers import changed_tensors
from tests.fuzz.damage import damaged
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, fresh

LARGEST = 4096
"""d of models that are sampled; those of larger images rightly take longer than an answer may."""


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


@attrs.frozen(eq=False)
class Tampered:
    """A model with other files."""

    kind: str
    """Which of the tiny models."""
    files: dict[str, bytes]
    forged: bool = False
    """Whether checksums fit what was changed, so that another result is no fault."""


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
    share = 15_000

    def prepare(self) -> None:
        """Make a model of each kind, and draw its undisturbed samples."""
        self.registry = Registry.discover()
        self.models: dict[str, dict[str, bytes]] = {}
        self.samples: dict[str, Tensor] = {}
        for kind in seeds.KINDS:
            run = self.folder / "made" / kind
            seeds.run(run, seeds.recipe(self.folder / "data", kind), self.registry)
            self.models[kind] = {path.name: path.read_bytes() for path in sorted((run / "model").iterdir())}
            self.samples[kind] = drawn(run / "model", kind)
        self.headers = {kind: json.loads(files["model.json"]) for kind, files in self.models.items()}

    def enter(self, folder: Path) -> None:
        """Write the models' other files, which stay."""
        super().enter(folder)
        for kind, files in self.models.items():
            fresh(folder / kind)
            for name, content in files.items():
                (folder / kind / name).write_bytes(content)

    def make(self, rng: random.Random) -> Tampered:
        """Return a model with a changed header."""
        kind = rng.choice(list(self.models))
        if rng.random() < 0.15:
            content = damaged(
                rng, self.models[kind]["model.json"], [f["model.json"] for f in self.models.values()]
            )
            return Tampered(kind, {"model.json": content})
        header = self.headers[kind]
        if rng.random() < 0.1:
            inner = values.changed(rng, _sections(header["recipe"]))
            changed = {**header, "recipe": values.text_of(inner)}
        else:
            changed = values.changed(rng, header, tuple(self.headers.values()))
        forged = values.SEAL in header and rng.random() < 0.7
        content = values.bytes_of(values.sealed(changed) if forged else changed)
        return Tampered(kind, {"model.json": content}, forged)

    def read(self, given: Tampered) -> None:
        """Describe the model and draw samples: they are the undisturbed ones, or something is said."""
        folder = self.folder / given.kind
        original = self.models[given.kind]
        for name, content in given.files.items():
            (folder / name).write_bytes(content)
        try:
            self._check(folder, given)
        finally:
            for name in given.files:
                if name in original:
                    (folder / name).write_bytes(original[name])
                else:
                    (folder / name).unlink()

    def _check(self, folder: Path, given: Tampered) -> None:
        with Told() as told:
            with redirect_stdout(io.StringIO()):
                inspect.main([str(folder)], standalone_mode=False)
            samples = drawn(folder, given.kind)
        expected = self.samples[given.kind]
        if not given.forged and not told.sentences and not torch.equal(samples, expected):
            raise Fault(f"silent difference: other samples of '{given.kind}'{self._change(given)}")

    def _change(self, given: Tampered) -> str:
        """Return which sections of a header differ, for a group of failures."""
        try:
            header = json.loads(given.files["model.json"])
            mine = self.headers[given.kind]
            keys = sorted(key for key in {**mine, **header} if mine.get(key) != header.get(key))
        except (KeyError, ValueError, AttributeError, TypeError):
            return f" ({', '.join(sorted(given.files))})"
        return f" (header: {', '.join(keys)})"

    def case(self, path: Path) -> Tampered:
        """Return a model whose header is changed as a JSON file says: kind, and values by key path."""
        document = json.loads(path.read_text("utf-8"))
        header = values.replaced(self.headers[document["kind"]], document["header"])
        sealed = values.sealed(header) if values.SEAL in header else header
        return Tampered(document["kind"], {"model.json": values.bytes_of(sealed)}, forged=True)

    def shown(self, given: Tampered) -> str:
        """Return kind and files."""
        return f"{given.kind}: {given.files}"


def _sections(recipe: str) -> Any:
    from cswf_core.recipe.render import from_yaml

    return from_yaml(recipe)


class ShardTarget(ModelTarget):
    """Shards of models: tensors and facts changed, mostly with sizes and checksums that fit."""

    name = "shard"
    share = 4_000

    def make(self, rng: random.Random) -> Tampered:
        """Return a model with another shard, or with another file of what was fitted."""
        kind = rng.choice(list(self.models))
        files = self.models[kind]
        tensors = [name for name in files if name.endswith(".safetensors")]
        name = rng.choice(tensors)
        others = [content for f in self.models.values() for n, content in f.items() if n in tensors]
        content = changed_tensors(rng, files[name], others)
        if rng.random() < 0.3:
            return Tampered(kind, {name: content})
        header = values.changed(rng, self.headers[kind], times=1) if rng.random() < 0.05 else self.headers[kind]
        return Tampered(kind, {name: content, "model.json": _fitting(header, name, content)}, forged=True)


def _fitting(header: Any, name: str, content: bytes) -> bytes:
    """Return a header in which a file has the size and checksum of its new content."""
    document = copy.deepcopy(header)
    try:
        for entry in (*document["shards"], document.get("fitted") or {}):
            if entry.get("file") == name:
                entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    except (KeyError, TypeError, AttributeError):
        return values.bytes_of(document)
    return values.bytes_of(values.sealed(document) if values.SEAL in document else document)
