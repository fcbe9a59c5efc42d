"""Works that are disturbed: how each is begun, gone on with and begun anew, and where its results lie."""

from __future__ import annotations

from pathlib import Path

import attrs

from cswf_core.errors import RunError
from cswf_core.runs.folder import RunFolder

PLUGINS = Path(__file__).parent / "plugins"
"""Plugins that fail on order."""

Arguments = tuple[str, ...]

CPU = ("--device", "cpu")
TINY = (
    *("particles.count=40", "schedule.directions=32", "schedule.step_size=8", "schedule.steps=40"),
    *("data.classes=[0, 1]", "outputs.checkpoint_every=5", "model.knots=17", "evaluate.metrics=[]"),
)
SAVING = ("digits", *TINY, "outputs.frames=0", "model.save=true")
FILMED = ("digits", *TINY, "outputs.frames=8", "evaluate.metrics=[sliced-wasserstein]", "particles.offline=5")
POINTS = (
    *("toy-cswf", "particles.count=60", "schedule.directions=16", "schedule.steps=30"),
    *("outputs.checkpoint_every=4", "outputs.frames=0", "evaluate.metrics=[]"),
)
LEARNING = (
    *("online-digits", "particles.count=60", "data.classes=[0, 1]", "condition.room=4"),
    *("schedule.directions=32", "schedule.steps=20", "schedule.step_size=8", "online.sets=4"),
    *("online.steps=15", "evaluate.metrics=[]", "online.arrivals=[{use: digits, classes: [2, 3]}]"),
    *("outputs.checkpoint_every=5", "outputs.frames=0"),
)
ORDERED = (
    *SAVING,
    "projection=on-order",
    "cdf=on-order",
    "observers=[on-order]",
    "evaluate.metrics=[on-order]",
)
NEW = ("--data", "{use: digits, classes: [2]}", "--steps", "15")
SHARDS = ("--count", "8500")
SCORED = ("--metric", "sliced-wasserstein")


@attrs.frozen
class Work:
    """Something that a person asks for, in a folder of its own."""

    name: str
    command: str
    request: Arguments
    """The command's arguments, but for folders."""
    options: Arguments = ()
    out: str = "out"
    """The file or folder of the results; that of shards ends with a slash."""
    source: str = ""
    """The work whose results are copied to `source` first; nothing: none."""
    ranks: int = 1
    plugins: bool = False
    """Whether plugins can be ordered to fail."""
    repeats: bool = False
    """Whether the same command goes on after a stop; else `cswf resume` does, for a run or an update."""

    def target(self, folder: Path) -> Path:
        return folder / self.out

    def begin(self, folder: Path) -> Arguments:
        """Return the command that asks for the work."""
        source = [str(folder / "source")] if self.source else []
        out = [] if self.out == "source" else ["--out", f"{folder}/{self.out}"]
        return (self.command, *source, *self.request, *out, *self.options, *CPU)

    def again(self, folder: Path) -> Arguments:
        """Return the command that goes on after a stop, if this can."""
        if self.repeats:
            return self.begin(folder)
        if not self.goes_on(folder):
            return self.anew(folder)
        return ("resume", str(self.target(folder)), *self.options, *CPU)

    def anew(self, folder: Path) -> Arguments:
        """Return the command that begins anew, which a person is advised to where nothing else helps."""
        begun = tuple(argument for argument in self.begin(folder) if argument != "--resume")
        forced = ("--force",) if self.command != "eval" and self.target(folder).exists() else ()
        return (*begun, *forced)

    def goes_on(self, folder: Path) -> bool:
        """Say whether the work can go on where it was stopped, so that to begin anew would be a loss."""
        target = self.target(folder)
        if self.command == "sweep":
            return (target / "sweep.json").is_file()
        if self.command not in ("run", "update"):
            return False
        try:
            return RunFolder(target).begun
        except RunError:  # its record is damaged, and resuming will say so
            return True


TWO = ("--devices", "2")

WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work("run", "run", SAVING),
        Work("run with frames", "run", FILMED),
        Work("run of points", "run", POINTS),
        Work("run that learns", "run", LEARNING),
        Work("run of plugins", "run", ORDERED, ("--plugins-dir", str(PLUGINS)), plugins=True),
        Work("run --resume", "run", SAVING, ("--resume",), repeats=True),
        Work("run of two ranks", "run", SAVING, TWO, ranks=2),
        Work("sweep", "sweep", ("digits", *TINY, "outputs.frames=0", "seed=0,1"), repeats=True),
        Work("samples", "sample", ("--count", "50"), out="out.npz", source="run"),
        Work("samples of a run", "sample", ("--count", "50"), out="source", source="run"),
        Work("pictures", "sample", ("--count", "20"), source="run"),
        Work("shards", "sample", SHARDS, out="out/", source="run", repeats=True),
        Work("shards of two ranks", "sample", SHARDS, TWO, out="out/", source="run", ranks=2, repeats=True),
        Work("update", "update", NEW, source="run"),
        Work("eval", "eval", SCORED, out="source", source="run"),
        Work("eval offline", "eval", ("--samples", "offline", *SCORED), out="source", source="run with frames"),
    )
}
