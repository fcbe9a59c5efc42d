"""The command line: every command with its own options and others, and values that nobody expects."""

from __future__ import annotations

import importlib
import random
import re
from pathlib import Path

import click

from cswf_core.cli.program import cli
from cswf_core.plugins import Registry
from cswf_core.recipe.render import to_yaml
from tests.fuzz import seeds, terminal, values
from tests.fuzz.target import CORPUS, Target, fresh

PLACES = (
    *("done", "stopped", "done/model", "done/model/model.json", "images", "images.npz", "points.npz"),
    *("pack", "tiny.yaml"),
    *("missing", "", ".", "..", "done/run.json", "done/samples.npz", "broken.npz", "empty", "fifo"),
    *("/dev/null", "-"),
    *("caf\u00e9", "bad-\udcff", "new", "new/", "new/deep/er", "x.png", "x.npz", "a\nb", "\x1b[31m", "~"),
    *("tiny.yaml/x",),
)
"""Paths, all inside the folder that a command is called in, whatever it writes."""

NUMBERS = (
    *("0", "1", "2", "-1", "3", "1.5", "nan", "inf", "1e3", "99999999999", "99999999999999999999999"),
    *("9" * 5000,),
    *("0x10", "", " 1", "１", "1_000", "²", "--", "+1"),
)

WORDS = (
    *("digits", "tiny.yaml", "uniform", "one-hot", "fid", "sliced-wasserstein", "{use: digits}"),
    *("{use: npz, path: images.npz}",),
    *("toy-cswf", "mnist", "cifar10:test", "digits:train", "projection", "dataset", "metric", "bash"),
    *("zsh", "cpu", "cuda:7", "auto"),
    *("0:1", "0:1,1:2", "0:99999999999999999999999", "0:", ":1", "0.3,0.7", "1,2,x", "0,1,2", "all"),
    *("none", "500MB", "1GiB", "2x"),
)

OVERRIDES = (
    *("schedule.steps=1", "seed=1", "seed=1,2", "particles.count=2", "schedule.steps=0"),
    *("particles.count=99999999999",),
    *("condition=none", "condition.amplifier=0,2", "model.save=true", "nothing=1", "a", "="),
    *("outputs.frames=2",),
    *("schedule.steps=99999999999", "schedule.directions=99999999", "particles.precision=float64"),
    *("data.count=3",),
    *("evaluate.metrics=[sliced-wasserstein]", "projection=orthogonal", "cdf=sorted", "online={sets: 2}"),
    *("seed=-1",),
)

SLOW = {"bench", "doctor", "completion", "new"}
"""Commands that take long or write much, given seldom."""


class CommandTarget(Target):
    """Command lines, in this process."""

    name = "command"
    share = 12_000
    chunk = 40

    def prepare(self) -> None:
        """Make a folder with a tiny thing of each kind, and learn all commands and options from themselves."""
        registry = Registry.discover()
        self.made = fresh(self.folder / "made" / "deep" / "er")
        sections = seeds.recipe(self.folder / "data")
        (self.made / "tiny.yaml").write_text(to_yaml(sections), encoding="utf-8")
        seeds.run(self.made / "done", sections, registry)
        seeds.run(self.made / "stopped", sections, registry, stop=2)
        (self.made / "images.npz").write_bytes(seeds.archive("classes"))
        (self.made / "points.npz").write_bytes(seeds.archive("points"))
        (self.made / "broken.npz").write_bytes(seeds.archive("points")[:-40])
        fresh(self.made / "pack")
        for path in (path for path in (CORPUS / "packed").iterdir() if path.is_file()):
            (self.made / "pack" / path.name).write_bytes(path.read_bytes())
        (self.made / "images").mkdir()
        (self.made / "images" / "a.png").write_bytes((CORPUS / "pictures" / "grey.png").read_bytes())
        (self.made / "empty").mkdir()
        for page in self.made.rglob("report.html"):
            page.unlink()
        importlib.import_module("sklearn.datasets")  # to load it takes longer than a command may
        self.commands = _commands(cli, ())
        self.before = self._state(self.made)

    def make(self, rng: random.Random) -> tuple[str, ...]:
        """Return the arguments of a command."""
        path, command = rng.choice(self.commands)
        if path[0] in SLOW and rng.random() < 0.7:
            path, command = rng.choice(self.commands)
        arguments = [word for param in command.params for word in self._words(rng, param, path)]
        action = rng.randrange(12)
        if action == 0:
            rng.shuffle(arguments)
        elif action == 1 and arguments:
            del arguments[rng.randrange(len(arguments))]
        elif action == 2:
            arguments.insert(rng.randint(0, len(arguments)), self._any(rng))
        words = [*path, *arguments]
        if action == 3:
            words = [self._any(rng) for _ in range(rng.randrange(5))]
        return tuple(_given(word) for word in words)

    def _words(self, rng: random.Random, param: click.Parameter, path: tuple[str, ...]) -> list[str]:
        if isinstance(param, click.Argument):
            count = 1 if param.nargs == 1 else rng.choice([0, 1, 1, 2, 3])
            return [self._value(rng, param) for _ in range(count)]
        usual = 0.9 if param.required else 0.5 if param.name in ("quiet", "out") else 0.15
        if rng.random() > usual or param.name == "help":
            return []
        name = rng.choice([*param.opts])
        if getattr(param, "is_flag", False):
            return [name]
        if param.name == "devices":  # several would be processes of their own
            return [name, rng.choice(["0", "-1", "x", "1", "", "9" * 5000])]
        value = self._value(rng, param)
        return [f"{name}={value}"] if rng.random() < 0.2 else [name, value]

    def _value(self, rng: random.Random, param: click.Parameter) -> str:
        if rng.random() < 0.12:
            return self._any(rng)
        kind = param.type
        if isinstance(kind, click.Choice):
            return str(rng.choice(list(kind.choices)))
        if isinstance(kind, click.Path):
            return rng.choice([*PLACES[:9], *PLACES])
        if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
            return rng.choice([*NUMBERS[:5], *NUMBERS])
        if param.name == "recipe":
            return rng.choice(["tiny.yaml", "tiny.yaml", "tiny.yaml", *PLACES[:12], "digitss", "missing.yaml"])
        if param.name == "overrides":
            return rng.choice(OVERRIDES)
        if param.name == "device":
            return rng.choice(["cpu", "cpu", "cpu", "auto", "cuda", "cuda:99", "x"])
        return rng.choice([*WORDS, *PLACES, *NUMBERS])

    def _any(self, rng: random.Random) -> str:
        texts = [text for text in values.TEXTS if not text.startswith("/")]  # nothing is to be written there
        options = ["--", "-", "--x", "-h", "--version", "--out"]
        return rng.choice([*PLACES, *NUMBERS, *WORDS, *OVERRIDES, *texts, *options])

    def enter(self, folder: Path) -> None:
        """Copy the tiny things."""
        super().enter(folder)
        self.here = self._copied()

    def _copied(self) -> Path:
        here = fresh(self.folder / "sandbox" / "deep" / "er", self.made)
        (here / "caf\u00e9").mkdir()
        return here

    def read(self, given: tuple[str, ...]) -> None:
        """Call the command, and clear up after it."""
        outcome = terminal.called_in(self.here, given, self.folder)
        if outcome.status != 2 or self._state(self.here) != self.before:
            self.here = self._copied()
        terminal.check(outcome)

    def _state(self, folder: Path) -> list[str]:
        """Return the names in a folder, to see whether a command has written there."""
        return sorted(path.name for path in folder.iterdir() if path.name != "caf\u00e9")

    def case(self, path: Path) -> tuple[str, ...]:
        """Return arguments that are in a file, one a line."""
        return tuple(path.read_text("utf-8").rstrip("\n").split("\n"))


def _given(word: str) -> str:
    """Return a word as a system can hand it over: without zeros; bytes that are no UTF-8 as Python has them."""
    return re.sub(r"[\ud800-\udc7f\udd00-\udfff]", "?", word.replace("\0", ""))


def _commands(group: click.Group, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return all commands that are no groups, with the words that call them."""
    commands: list[tuple[tuple[str, ...], click.Command]] = []
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            commands += _commands(command, (*path, name))
        elif command is not None:
            commands.append(((*path, name), command))
    return commands
