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
    *("data.classes=[0, 1]", "outputs.checkpoint_every=5", "model.knots=16", "evaluate.metrics=[]"),
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
    """The file or folder of the results."""
    source: str = ""
    """The work whose results are copied to `source` first; nothing: none."""
    ranks: int = 1
    plugins: bool = False
    """Whether plugins can be ordered to fail."""

    def target(self, folder: Path) -> Path:
        return folder / self.out

    def begin(self, folder: Path) -> Arguments:
        """Return the command that asks for the work."""
        source = [str(folder / "source")] if self.source else []
        out = [] if self.out == "source" else ["--out", str(self.target(folder)) + "/" * self._shards]
        return (self.command, *source, *self.request, *out, *self.options, *CPU)

    def again(self, folder: Path) -> Arguments:
        """Return the command that goes on after a stop, if this can."""
        return self.begin(folder) if self._shards else self.anew(folder)

    def anew(self, folder: Path) -> Arguments:
        """Return the command that begins anew, which a person is advised to where nothing else helps."""
        forced = ("--force",) if self.command != "eval" and self.target(folder).exists() else ()
        return (*self.begin(folder), *forced)

    def goes_on(self, folder: Path) -> bool:
        """Say whether the work can go on where it was stopped, so that to begin anew would be a loss."""
        del folder
        return False

    @property
    def _shards(self) -> bool:
        return self.name.startswith("shards")


@attrs.frozen
class Run(Work):
    """A run or an update, which goes on with `cswf resume`."""

    def again(self, folder: Path) -> Arguments:
        if not self.goes_on(folder):
            return self.anew(folder)
        return ("resume", str(self.target(folder)), *self.options, *CPU)

    def goes_on(self, folder: Path) -> bool:
        try:
            return RunFolder(self.target(folder)).begun
        except RunError:  # its record is damaged, and resuming will say so
            return True


@attrs.frozen
class Resumed(Run):
    """A run that is begun and gone on with by one and the same command."""

    def begin(self, folder: Path) -> Arguments:
        return (*super().begin(folder), "--resume")

    def again(self, folder: Path) -> Arguments:
        return self.begin(folder)

    def anew(self, folder: Path) -> Arguments:
        return tuple(argument for argument in super().anew(folder) if argument != "--resume")


@attrs.frozen
class Sweep(Work):
    """Several runs, gone on with by the same command."""

    def again(self, folder: Path) -> Arguments:
        return self.begin(folder)

    def goes_on(self, folder: Path) -> bool:
        return (self.target(folder) / "sweep.json").is_file()


TWO = ("--devices", "2")

WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Run("run", "run", SAVING),
        Run("run with frames", "run", FILMED),
        Run("run of points", "run", POINTS),
        Run("run that learns", "run", LEARNING),
        Run("run of plugins", "run", ORDERED, ("--plugins-dir", str(PLUGINS)), plugins=True),
        Resumed("run --resume", "run", SAVING),
        Run("run of two ranks", "run", SAVING, TWO, ranks=2),
        Sweep("sweep", "sweep", ("digits", *TINY, "outputs.frames=0", "seed=0,1")),
        Work("samples", "sample", ("--count", "50"), out="out.npz", source="run"),
        Work("samples of a run", "sample", ("--count", "50"), out="source", source="run"),
        Work("pictures", "sample", ("--count", "20"), source="run"),
        Work("shards", "sample", ("--count", "8500"), source="run"),
        Work("shards of two ranks", "sample", ("--count", "8500"), TWO, source="run", ranks=2),
        Run("update", "update", NEW, source="run"),
        Work("eval", "eval", SCORED, out="source", source="run"),
        Work("eval offline", "eval", ("--samples", "offline", *SCORED), out="source", source="run with frames"),
    )
}
