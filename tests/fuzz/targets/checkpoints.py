"""Checkpoints: a run that was stopped goes on from tampered files, with its own result or with a sentence."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import attrs

from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import resume
from tests.fuzz import seeds, values
from tests.fuzz.containers import Tensors, changed_tensors
from tests.fuzz.damage import damaged
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, fresh
from tests.fuzz.targets.models import Told

MANIFEST = "checkpoints/manifest.json"


@attrs.frozen(eq=False)
class TamperedRun:
    """A run that was stopped, with other files; None for one that is missing."""

    kind: str
    files: dict[str, bytes | None]
    forged: bool = False
    """Whether the manifest's checksums fit what was changed, so that another result is no fault."""


class CheckpointTarget(Target):
    """Facts, tensors and manifests of checkpoints, through `cswf resume`."""

    name = "checkpoint"
    share = 2_000
    chunk = 20

    def prepare(self) -> None:
        """Make runs that were stopped after their second step, and let copies of them come to their ends."""
        self.registry = Registry.discover()
        self.recipes: dict[str, Any] = {}
        self.results: dict[str, str] = {}
        self.stopped = self.folder / "stopped"
        for kind in ("classes", "whitened"):
            sections = seeds.recipe(self.folder / "data", kind, model={"save": kind == "whitened", "knots": 4})
            self.recipes[kind] = load_recipe(sections, registry=self.registry)
            seeds.run(self.stopped / kind, sections, self.registry, stop=3)
            (self.stopped / kind / "report.html").unlink(missing_ok=True)
            self.results[kind] = seeds.run(self.folder / "whole" / kind, sections, self.registry)
            copy = fresh(self.folder / "copy", self.stopped / kind)
            facts = resume(self.recipes[kind], RunFolder(copy), device="cpu")
            assert facts["samples_sha256"] == self.results[kind]
        self.files = {
            kind: {
                f"checkpoints/{path.name}": path.read_bytes() for path in sorted(folder.glob("checkpoints/*"))
            }
            for kind, folder in ((kind, self.stopped / kind) for kind in self.recipes)
        }

    def make(self, rng: random.Random) -> TamperedRun:
        """Return a run with other checkpoints."""
        kind = rng.choice(list(self.files))
        files: dict[str, bytes | None] = {**self.files[kind]}
        names = [name for name in files if name.endswith(".safetensors")]
        chosen = names if rng.random() < 0.5 else [rng.choice(names)]
        for name in chosen:
            files[name] = self._tampered(rng, self.files[kind][name])
        action = rng.randrange(10)
        manifest = json.loads(self.files[kind][MANIFEST])
        if action < 3:
            files[MANIFEST] = rng.choice([None, None, b"", b"{", b"[]", b"null"])
        elif action < 7:
            for entry in manifest["checkpoints"]:
                content = files[f"checkpoints/{entry['file']}"] or b""
                entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            files[MANIFEST] = _written(manifest)
            return TamperedRun(kind, files, forged=True)
        elif action < 9:
            files = {**self.files[kind], MANIFEST: values.bytes_of(values.changed(rng, manifest))}
        else:
            files[MANIFEST] = damaged(rng, self.files[kind][MANIFEST])
        if rng.random() < 0.05:
            files[rng.choice(names)] = None
        return TamperedRun(kind, files)

    def _tampered(self, rng: random.Random, content: bytes) -> bytes:
        if rng.random() < 0.5:
            return changed_tensors(
                rng, content, [other for f in self.files.values() for n, other in f.items() if n != MANIFEST]
            )
        file = Tensors.parse(content)
        facts = file.facts
        key = rng.choice(["position", "habits", "position", "habits", "directions", *facts])
        changed = values.changed(rng, [facts.get(key)])
        facts[key] = changed[0] if isinstance(changed, list) and changed else values.anything(rng)
        file.metadata["facts"] = values.text_of(facts)
        return file.content()

    def read(self, given: TamperedRun) -> None:
        """Go on with the run; its samples are those of a run that was not stopped, or something is said."""
        folder = fresh(self.folder / "run", self.stopped / given.kind)
        for name, content in given.files.items():
            if content is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content)
        announced: list[str] = []
        with Told() as told:
            facts = resume(
                self.recipes[given.kind],
                RunFolder(folder),
                device="cpu",
                announce=lambda step, lost: announced.extend(lost),
            )
        same = facts["samples_sha256"] == self.results[given.kind]
        if not same and not given.forged:
            words = [*announced, *told.sentences]
            raise Fault(
                f"silent difference: another result of '{given.kind}' ({'; '.join(words) or 'no word'})"
            )

    def case(self, path: Path) -> TamperedRun:
        """Return files that are in a JSON mapping: name → text, hexadecimal, or null."""
        document = json.loads(path.read_text("utf-8"))
        return TamperedRun(document["kind"], self._files(document), document.get("forged", False))

    def _files(self, document: dict[str, Any]) -> dict[str, bytes | None]:
        """Return the files of a case: facts and tensors of the newest checkpoint are changed as it says."""
        files: dict[str, bytes | None] = {**self.files[document["kind"]]}
        newest = max(name for name in files if name.endswith(".safetensors"))
        file = Tensors.parse(self.files[document["kind"]][newest])
        file.metadata["facts"] = values.text_of(values.replaced(file.facts, document.get("facts", {})))
        for name in document.get("without", ()):
            del file.tensors[name]
        files[newest] = content = file.content()
        manifest = json.loads(self.files[document["kind"]][MANIFEST])
        manifest["checkpoints"][0] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files[MANIFEST] = None if document.get("manifest") == "missing" else _written(manifest)
        return files


def _written(manifest: Any) -> bytes:
    """Return a manifest as the program would have written it."""
    return values.bytes_of(values.sealed(manifest) if values.SEAL in manifest else manifest)
