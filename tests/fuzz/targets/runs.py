"""The files of runs, sweeps and sample shards, read back by the commands that go on with them; and reports."""

from __future__ import annotations

import json
import random
from pathlib import Path

import attrs

from cswf_core.plugins import Registry
from cswf_core.recipe.render import to_yaml
from cswf_core.report.pages import compare, single
from tests.fuzz import seeds, terminal, values
from tests.fuzz.containers import changed_archive, changed_tensors
from tests.fuzz.damage import damaged
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, fresh


@attrs.frozen(eq=False)
class Call:
    """A folder with a file changed, and the command that is to read it."""

    file: str
    content: bytes
    arguments: tuple[str, ...]


WAYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "stopped/run.json": (
        ("resume", "stopped", "--quiet"),
        ("report", "stopped"),
        ("update", "stopped", "--data", "more.npz"),
    ),
    "stopped/metrics.jsonl": (("resume", "stopped", "--quiet"),),
    "stopped/recipe.yaml": (("resume", "stopped", "--quiet"),),
    "done/run.json": (
        ("resume", "done"),
        ("update", "done", "--data", "more.npz", "--steps", "1", "--quiet"),
        ("sample", "done", "--count", "2", "--force"),
        ("eval", "done", "--metric", "sliced-wasserstein", "--against", "more.npz"),
        ("run", "tiny.yaml", "--out", "done", "--resume", "--quiet"),
        ("inspect", "done"),
    ),
    "done/metrics.json": (
        ("eval", "done", "--metric", "sliced-wasserstein", "--against", "more.npz"),
        ("run", "tiny.yaml", "--out", "done", "--force", "--quiet"),
    ),
    "done/samples.npz": (("eval", "done", "--metric", "sliced-wasserstein", "--against", "more.npz"),),
    "done/checkpoints/manifest.json": (("update", "done", "--data", "more.npz", "--steps", "1", "--quiet"),),
    "done/counts.safetensors": (("update", "done", "--data", "more.npz", "--steps", "1", "--quiet"),),
    "sweep/sweep.json": (
        ("sweep", "tiny.yaml", "seed=1,2", "--out", "sweep", "--quiet"),
        ("report", "sweep", "--out", "page.html"),
    ),
    "sweep/seed=1/run.json": (("sweep", "tiny.yaml", "seed=1,2", "--out", "sweep"),),
    "sweep/seed=1/samples.npz": (("sweep", "tiny.yaml", "seed=1,2", "--out", "sweep"),),
    "sweep/seed=1/frames.npz": (("sweep", "tiny.yaml", "seed=1,2", "--out", "sweep"),),
    "shards/request.json": (("sample", "done", "--count", "3", "--out", "shards/", "--quiet"),),
    "shards/manifest.json": (("sample", "done", "--count", "3", "--out", "shards/", "--quiet"),),
}
"""For each file, the commands that read it back."""


class RunTarget(Target):
    """Records, logs, scores, sweeps and requests, read by resume, update, sample, eval, sweep and report."""

    name = "run"
    share = 4_000
    chunk = 30

    def prepare(self) -> None:
        """Make a run that is done, one that was stopped, a sweep, and a folder of shards."""
        registry = Registry.discover()
        self.made = fresh(self.folder / "made")
        self.data = self.folder / "data"
        sections = seeds.recipe(self.data, "classes")
        online = {**sections, "model": {"save": False}, "online": {"sets": 2}}
        (self.made / "tiny.yaml").write_text(to_yaml(sections), encoding="utf-8")
        (self.made / "more.npz").write_bytes(seeds.archive("classes"))
        framed = {**sections, "outputs": {"frames": 3, "snapshots": [0, 4], "checkpoint_every": 1}}
        seeds.run(self.made / "done", sections, registry)
        seeds.run(self.made / "stopped", online, registry, stop=2)
        counted = self.folder / "counted"
        seeds.run(counted, online, registry)
        (self.made / "done/counts.safetensors").write_bytes((counted / "counts.safetensors").read_bytes())
        (self.made / "framed.yaml").write_text(to_yaml(framed), encoding="utf-8")
        for arguments in (
            ("sweep", "framed.yaml", "seed=1,2", "--out", "sweep", "--quiet"),
            ("sample", "done", "--count", "3", "--out", "shards/", "--quiet"),
            ("eval", "done", "--metric", "sliced-wasserstein", "--quiet"),
        ):
            self._call(self.made, arguments)
        (self.made / "tiny.yaml").write_text(to_yaml(framed), encoding="utf-8")
        for page in self.made.rglob("report.html"):
            page.unlink()
        self.files = {name: (self.made / name).read_bytes() for name in WAYS}

    def _call(self, folder: Path, arguments: tuple[str, ...]) -> None:
        """Call a command in a folder, as it is if that is undisturbed."""
        terminal.check(terminal.called_in(folder, arguments, self.folder))

    def make(self, rng: random.Random) -> Call:
        """Return a changed file, and a command."""
        name = rng.choice(list(self.files))
        content = changed_file(rng, name, self.files[name])
        return Call(name, content, rng.choice(WAYS[name]))

    def read(self, given: Call) -> None:
        """Change the file, and call the command."""
        folder = fresh(self.folder / "runs", self.made)
        (folder / given.file).write_bytes(given.content)
        self._call(folder, given.arguments)

    def case(self, path: Path) -> Call:
        """Return a case: a JSON file with the file's name, its text and the command's arguments."""
        document = json.loads(path.read_text("utf-8"))
        return Call(document["file"], document["text"].encode(), tuple(document["arguments"]))


def changed_file(rng: random.Random, name: str, content: bytes) -> bytes:
    """Return a file of a run, changed as its ending says."""
    if rng.random() < 0.1:
        return damaged(rng, content)
    if name.endswith(".json"):
        return values.bytes_of(values.changed(rng, json.loads(content)))
    if name.endswith(".jsonl"):
        rows = values.changed(rng, [json.loads(line) for line in content.splitlines()])
        return b"\n".join(map(values.bytes_of, rows if isinstance(rows, list) else [rows])) + b"\n"
    if name.endswith(".npz"):
        return changed_archive(rng, content)
    if name.endswith(".safetensors"):
        return changed_tensors(rng, content)
    return damaged(rng, content)


class ReportTarget(Target):
    """The report's reader: every file of a run's folder; a page comes out whatever is damaged."""

    name = "report"
    share = 8_000
    chunk = 50

    FILES = (
        "run.json",
        "recipe.yaml",
        "metrics.jsonl",
        "metrics.json",
        "samples.npz",
        "frames.npz",
        "samples.png",
        "flow.png",
    )

    def prepare(self) -> None:
        """Make a run with all files that a page is made of."""
        registry = Registry.discover()
        sections = seeds.recipe(
            self.folder / "data",
            outputs={"frames": 3, "snapshots": [0, 4]},
            evaluate={"metrics": ["sliced-wasserstein", "class-accuracy"]},
        )
        self.made = self.folder / "made"
        seeds.run(self.made, sections, registry)
        self.files = {
            path.name: path.read_bytes()
            for path in sorted(self.made.iterdir())
            if path.name != "report.html" and path.is_file()
        }
        missing = set(self.FILES) - set(self.files)
        assert not missing, missing

    def enter(self, folder: Path) -> None:
        """Write two runs, of which one will be changed."""
        super().enter(folder)
        for name in ("run", "other"):
            fresh(folder / name)
            for file, content in self.files.items():
                (folder / name / file).write_bytes(content)

    def make(self, rng: random.Random) -> tuple[str, bytes, bool]:
        """Return a file, its content, and whether two runs are compared."""
        name = rng.choice([*self.FILES, "run.json", "metrics.json"])
        if name == "recipe.yaml" and rng.random() < 0.5:
            content = values.bytes_of(values.anything(rng))
        else:
            content = changed_file(rng, name, self.files[name])
        return name, content, rng.random() < 0.3

    def read(self, given: tuple[str, bytes, bool]) -> None:
        """Make the page."""
        name, content, compared = given
        path = self.folder / "run" / name
        path.write_bytes(content)
        try:
            page = (
                compare([self.folder / "run", self.folder / "other"])
                if compared
                else single(self.folder / "run")
            )
        finally:
            path.write_bytes(self.files[name])
        page.encode("utf-8")
        if "<script>alert" in page or "</html>" not in page:
            raise Fault("a page that is not whole: or with another's script")

    def case(self, path: Path) -> tuple[str, bytes, bool]:
        """Return a file of a run's folder: its name is behind the last `--`."""
        return path.name.rpartition("--")[2], path.read_bytes(), False
