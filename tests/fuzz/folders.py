"""Folders of files of ours, some of them changed, mostly with checksums that fit.

What is made of a folder is what is made of the undisturbed one, or something is said.
"""

from __future__ import annotations

import abc
import copy
import hashlib
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, ClassVar

import attrs
import safetensors.torch
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from cswf_core.cli.commands import inspect
from cswf_core.documents import SEAL, seal
from cswf_core.interfaces import Dataset
from cswf_core.model import load_model
from cswf_core.packed import Manifest, PackedImages, find_damage
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.recipe.render import from_yaml, to_yaml
from cswf_core.report.pages import compare, single
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import resume
from cswf_plugins.datasets.packed import Packed
from tests.fuzz import seeds, values
from tests.fuzz.commands import PREPARING_S, call, check
from tests.fuzz.data import loaded
from tests.fuzz.files import changed_file, damaged, unpacked
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, contents, fresh
from tests.fuzz.values import at, chance, pick, places

LARGEST = 4096
"""d of models that are sampled; those of larger images rightly take longer than an answer may."""


@attrs.frozen
class Changes:
    """A folder of a kind with other files; None for one that is missing."""

    kind: str
    files: dict[str, bytes | None]
    forged: bool = False
    """Whether checksums fit what was changed, so that another result is no fault."""
    arguments: tuple[str, ...] = ()
    """The command that is to read it, if there are several."""


@contextmanager
def warnings_told() -> Iterator[list[logging.LogRecord]]:
    """Collect what the program warns of."""
    handler = BufferingHandler(1000)
    handler.setLevel(logging.WARNING)
    logging.getLogger("cswf").addHandler(handler)
    try:
        yield handler.buffer
    finally:
        logging.getLogger("cswf").removeHandler(handler)


def resealed(document: Any) -> Any:
    """Return a document that has a checksum with the one that the program would have written."""
    if not isinstance(document, dict) or SEAL not in document:
        return document
    return seal({key: value for key, value in document.items() if key != SEAL})


def fitting(manifest: Any, files: dict[str, bytes | None]) -> Any:
    """Return a manifest that lists files with their sizes and checksums, as if the program had written them."""
    manifest = copy.deepcopy(manifest)
    for place in places(manifest):
        entry = at(manifest, place)
        if isinstance(entry, dict) and isinstance(entry.get("file"), str) and entry["file"] in files:
            content = files[entry["file"]] or b""
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return resealed(manifest)


class FolderTarget(Target):
    """A reader of a folder, in which every file may be changed."""

    manifest: ClassVar[str] = ""
    """The file that lists the others with their checksums."""

    def prepare(self) -> None:
        """Make the undisturbed folders and what is made of them."""
        self.registry = Registry.discover()
        self.made = self.folder / "made"
        self.build()
        self.files = {path.name: contents(self.inside(path)) for path in sorted(self.made.iterdir())}
        self.answers = {kind: self.answer(self.copied(kind), Changes(kind, {})) for kind in self.files}

    def copied(self, kind: str) -> Path:
        """Return a copy of an undisturbed folder, as commands write into theirs."""
        return fresh(self.folder / "copy", self.made / kind)

    @abc.abstractmethod
    def build(self) -> None:
        """Make a folder of each kind in `made`."""

    def inside(self, folder: Path) -> Path:
        """Return the folder in which files are changed."""
        return folder

    @abc.abstractmethod
    def answer(self, folder: Path, given: Changes) -> Any:
        """Return what the program makes of a folder."""

    def make(self, draw: DrawFn) -> Changes:
        kind = pick(draw, list(self.files))
        whole = self.files[kind]
        manifest = json.loads(whole[self.manifest])
        forged = chance(draw, 0.7)
        names = [name for name in whole if name != self.manifest]
        if draw(st.integers(0, 2)):
            if chance(draw, 0.15):
                return Changes(kind, {self.manifest: damaged(draw, whole[self.manifest])})
            changed = self.changed_manifest(draw, manifest)
            content = values.bytes_of(resealed(changed) if forged else changed)
            return Changes(kind, {self.manifest: content}, forged or SEAL not in manifest)
        files: dict[str, bytes | None] = {}
        for name in names if chance(draw, 0.2) else [pick(draw, names)]:
            others = [each[name] for each in self.files.values() if name in each]
            files[name] = None if chance(draw, 0.03) else changed_file(draw, name, whole[name], others)
        if forged:
            manifest = fitting(manifest, files)
            files[self.manifest] = values.bytes_of(manifest)
        elif chance(draw, 0.3):
            files[self.manifest] = pick(draw, (None, None, b"", b"{", b"[]", b"null"))
        return Changes(kind, files, forged)

    def changed_manifest(self, draw: DrawFn, manifest: Any) -> Any:
        """Return a manifest that says something else."""
        return values.changed(draw, manifest)

    def read(self, given: Changes) -> None:
        folder = self.copied(given.kind)
        for name, content in given.files.items():
            path = self.inside(folder) / name
            path.unlink() if content is None else path.write_bytes(content)
        with warnings_told() as told:
            answer = self.answer(folder, given)
        if answer != self.answers[given.kind] and not (given.forged or told):
            raise Fault(f"silent difference: another result of '{given.kind}', and no word of it")


class ModelTarget(FolderTarget):
    """Models: headers, tables and what was fitted; described, and two samples drawn."""

    name = "model"
    manifest = "model.json"

    def build(self) -> None:
        for kind in seeds.KINDS:
            seeds.run(self.folder / kind, seeds.recipe(self.folder / "data", kind), self.registry)
            fresh(self.made / kind, self.folder / kind / "model")

    def changed_manifest(self, draw: DrawFn, manifest: Any) -> Any:
        if chance(draw, 0.1):
            inner = values.changed(draw, from_yaml(manifest["recipe"]))
            return {**manifest, "recipe": values.text_of(inner)}
        return values.changed(draw, manifest, [json.loads(each["model.json"]) for each in self.files.values()])

    def answer(self, folder: Path, given: Changes) -> Any:
        with redirect_stdout(io.StringIO()):
            inspect.main([str(folder)], standalone_mode=False)
        model = load_model(folder)
        if given.kind == "masked":
            images = torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4)
            samples: Dataset = model.complete(images, count=2, device="cpu")
        elif model.space.dimension > LARGEST:
            return None
        else:
            vectors = {"vectors": [[0.1, 0.2], [0.3, -0.4]]} if given.kind == "vectors" else {}
            samples = model.sample(2, device="cpu", **vectors)  # type: ignore[arg-type]
        return samples.x.tolist()

    def case(self, path: Path) -> Changes:
        """Return a model whose header is changed as a JSON file says: kind, and values by key path."""
        document = json.loads(path.read_text("utf-8"))
        header = values.replaced(json.loads(self.files[document["kind"]]["model.json"]), document["header"])
        return Changes(document["kind"], {"model.json": values.bytes_of(resealed(header))}, forged=True)


class CheckpointTarget(FolderTarget):
    """Facts, tensors and manifests of checkpoints of a run that was stopped, through `cswf resume`."""

    name = "checkpoint"
    manifest = "manifest.json"

    def build(self) -> None:
        self.recipes: dict[str, Any] = {}
        for kind in ("classes", "whitened"):
            sections = seeds.recipe(self.folder / "data", kind, model={"save": kind == "whitened", "knots": 5})
            self.recipes[kind] = load_recipe(sections, registry=self.registry)
            seeds.run(self.made / kind, sections, self.registry, stop=3)
            (self.made / kind / "report.html").unlink(missing_ok=True)
            whole = seeds.run(self.folder / "whole", sections, self.registry)
            assert self.answer(self.copied(kind), Changes(kind, {})) == whole
            fresh(self.folder / "whole").rmdir()

    def inside(self, folder: Path) -> Path:
        return folder / "checkpoints"

    def answer(self, folder: Path, given: Changes) -> Any:
        def announce(step: int, lost: list[str]) -> None:
            for sentence in lost:
                logging.getLogger("cswf").warning(sentence)

        facts = resume(self.recipes[given.kind], RunFolder(folder), device="cpu", announce=announce)
        return facts["samples_sha256"]

    def case(self, path: Path) -> Changes:
        """Return a run whose newest checkpoint has other facts and tensors, as a JSON file says."""
        document = json.loads(path.read_text("utf-8"))
        whole = self.files[document["kind"]]
        newest = max(name for name in whole if name.endswith(".safetensors"))
        tensors, metadata, _ = unpacked(whole[newest])
        facts = values.replaced(json.loads(metadata["facts"]), document.get("facts", {}))
        for name in document.get("without", ()):
            del tensors[name]
        content = safetensors.torch.save(tensors, {**metadata, "facts": values.text_of(facts)})
        manifest = fitting(json.loads(whole[self.manifest]), {newest: content})
        written = None if document.get("manifest") == "missing" else values.bytes_of(manifest)
        return Changes(
            document["kind"], {newest: content, self.manifest: written}, document.get("forged", False)
        )


class PackedTarget(FolderTarget):
    """Packed images: their manifest, whose changes are believed, and their shards."""

    name = "packed"
    manifest = "manifest.json"

    def build(self) -> None:
        fresh(self.made / "pack", self.seeds)

    def answer(self, folder: Path, given: Changes) -> Any:
        manifest = Manifest.read(folder)
        PackedImages.open(folder, manifest)
        find_damage(folder, manifest)
        return loaded(Packed(path=folder, verify="never" if given.forged else "always")).digest()

    def case(self, path: Path) -> Changes:
        name, content = super().case(path)
        return Changes("pack", {name: content}, forged=True)


UPDATE = "update done --data more.npz --steps 1 --quiet"
EVAL = "eval done --metric sliced-wasserstein --against more.npz"
SHARDS = "sample done --count 3 --out shards/ --quiet"
SWEEP = "sweep tiny.yaml seed=1,2 --out sweep"

WAYS: dict[str, tuple[str, ...]] = {
    "stopped/run.json": ("resume stopped --quiet", "report stopped", "update stopped --data more.npz"),
    "stopped/metrics.jsonl": ("resume stopped --quiet",),
    "stopped/recipe.yaml": ("resume stopped --quiet",),
    "done/run.json": (
        *("resume done", UPDATE, "sample done --count 2 --force", EVAL, "inspect done"),
        "run tiny.yaml --out done --resume --quiet",
    ),
    "done/metrics.json": (EVAL, "run tiny.yaml --out done --force --quiet"),
    "done/samples.npz": (EVAL,),
    "done/checkpoints/manifest.json": (UPDATE,),
    "done/counts.safetensors": (UPDATE,),
    "sweep/sweep.json": (f"{SWEEP} --quiet", "report sweep --out page.html"),
    "sweep/seed=1/run.json": (SWEEP,),
    "sweep/seed=1/samples.npz": (SWEEP,),
    "sweep/seed=1/frames.npz": (SWEEP,),
    "shards/request.json": (SHARDS,),
    "shards/manifest.json": (SHARDS,),
}
"""For each file of a run, a sweep or sample shards, the commands that read it back."""


class RunTarget(FolderTarget):
    """Records, logs, scores, sweeps and requests, read by resume, update, sample, eval, sweep and report."""

    name = "run"

    def build(self) -> None:
        sections = seeds.recipe(self.folder / "data", "classes")
        online = {**sections, "model": {"save": False}, "online": {"sets": 2}}
        framed = {**sections, "outputs": {"frames": 3, "snapshots": [0, 4], "checkpoint_every": 1}}
        made = fresh(
            self.made / "runs", {"more.npz": seeds.archive("classes"), "tiny.yaml": to_yaml(framed).encode()}
        )
        seeds.run(made / "done", sections, self.registry)
        seeds.run(made / "stopped", online, self.registry, stop=2)
        seeds.run(self.folder / "counted", online, self.registry)
        (self.folder / "counted/counts.safetensors").rename(made / "done/counts.safetensors")
        for line in (f"{SWEEP} --quiet", SHARDS, "eval done --metric sliced-wasserstein --quiet"):
            check(call(made, line.split(), patience=PREPARING_S))
        for page in made.rglob("report.html"):
            page.unlink()
        self.whole = {name: (made / name).read_bytes() for name in WAYS}

    def make(self, draw: DrawFn) -> Changes:
        name = pick(draw, list(self.whole))
        content = changed_file(draw, name, self.whole[name])
        return Changes("runs", {name: content}, arguments=tuple(pick(draw, WAYS[name]).split()))

    def answer(self, folder: Path, given: Changes) -> Any:
        if given.arguments:
            check(call(folder, given.arguments))

    def case(self, path: Path) -> Changes:
        """Return a case: a JSON file with the file's name, its text and the command's arguments."""
        document = json.loads(path.read_text("utf-8"))
        files = {document["file"]: document["text"].encode()}
        return Changes("runs", files, arguments=tuple(document["arguments"]))


class ReportTarget(FolderTarget):
    """The report's reader: every file of a run's folder; a page comes out whatever is damaged."""

    name = "report"

    def build(self) -> None:
        sections = seeds.recipe(
            self.folder / "data",
            outputs={"frames": 3, "snapshots": [0, 4]},
            evaluate={"metrics": ["sliced-wasserstein", "class-accuracy"]},
        )
        seeds.run(self.made / "run", sections, self.registry)
        (self.made / "run/report.html").unlink()
        made = {path.name for path in (self.made / "run").iterdir()}
        assert made >= {"recipe.yaml", *(f"{name}.npz" for name in ("samples", "frames"))}
        assert made >= {"run.json", "metrics.json", "metrics.jsonl"}

    def make(self, draw: DrawFn) -> Changes:
        name = pick(draw, [*self.files["run"], "run.json", "metrics.json"])
        if name == "recipe.yaml" and draw(st.booleans()):
            content = values.bytes_of(draw(values.anything))
        else:
            content = changed_file(draw, name, self.files["run"][name])
        return Changes("run", {name: content}, arguments=("compare",) * chance(draw, 0.3))

    def answer(self, folder: Path, given: Changes) -> Any:
        page = compare([folder, self.made / "run"]) if given.arguments else single(folder)
        page.encode("utf-8")
        if "<script>alert" in page or "</html>" not in page:
            raise Fault("a page that is not whole: or with another's script")
