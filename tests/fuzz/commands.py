"""The command line in this process: every command with its own options, and values that nobody expects."""

from __future__ import annotations

import importlib
import io
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from unittest import mock

import attrs
import click
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from cswf_core import cli
from cswf_core.cli import program
from cswf_core.errors import CswfError
from cswf_core.plugins import Registry
from cswf_core.recipe.render import to_yaml
from tests.fuzz import seeds, values
from tests.fuzz.oracle import SECONDS, Fault, TooLong
from tests.fuzz.target import CORPUS, Target, contents, fresh
from tests.fuzz.values import chance, pick
from tests.processes import as_it_was

WORK = {
    ("flow.py", "run"),
    ("sampling.py", "run"),
    ("evaluate.py", "evaluate"),
    ("measure.py", "measure"),
    ("packed.py", "pack"),
    ("sweep.py", "run"),
    ("__init__.py", "check_plugin"),
}
"""Functions that work as long as they are asked to: a command that is inside of one may be stopped."""

SLICE = 0.4
"""Seconds of work after which a command is looked at, whether it is inside of such a function."""

PREPARING_S = 600.0
"""Seconds that a command may work for which undisturbed files are made."""

UNFORESEEN = "this is no mistake of yours"
"""Words of the sentence behind an error that nobody has foreseen."""


class Stopwatch:
    """Stops a command: as Ctrl-C does where it works, with `TooLong` where it does something else."""

    def __init__(self) -> None:
        self.stopped = False
        self.slices = 0

    def look(self, number: int, frame: FrameType | None) -> None:
        """Look at a command after a slice of its time."""
        self.slices += 1
        codes = [inner.f_code for inner, _ in traceback.walk_stack(frame)]
        working = any((Path(code.co_filename).name, code.co_name) in WORK for code in codes)
        if working and not self.stopped:
            self.stopped = True
            self.slices = 0
            raise KeyboardInterrupt
        if self.slices * SLICE >= SECONDS:
            raise TooLong


@attrs.frozen
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str
    stopped: bool
    """Whether it was stopped at work."""
    traceback: bool
    """Whether tracebacks were asked for."""


def call(folder: Path, arguments: Sequence[str], patience: float = SLICE) -> Outcome:
    """Call `cswf` in a folder as a person would. What nobody has foreseen is raised.

    `patience` are the seconds of work after which a command is looked at.
    """
    watch = Stopwatch()
    # Files with names: a command may give away the descriptor of what it prints to.
    paths = [Path(tempfile.gettempdir()) / f"cswf-fuzz-{os.getpid()}-{name}" for name in ("out", "err")]
    outputs = [io.TextIOWrapper(path.open("wb"), encoding="utf-8", write_through=True) for path in paths]
    before = signal.signal(signal.SIGPROF, watch.look)
    signal.setitimer(signal.ITIMER_PROF, patience, patience)
    threads = torch.get_num_threads()
    status: object = None
    try:
        argv = mock.patch.object(sys, "argv", ["cswf", *arguments])
        with as_it_was(), redirect_stdout(outputs[0]), redirect_stderr(outputs[1]), argv:
            os.chdir(folder)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            cli.main()
    except SystemExit as ended:
        status = ended.code
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        torch.set_num_threads(threads)
        for output in outputs:
            output.close()
        out, err = (path.read_text("utf-8", "replace") for path in paths)
        for path in paths:
            path.unlink()
    return Outcome(int(str(status or 0)), out, err, watch.stopped, "--traceback" in arguments)


def check(outcome: Outcome) -> None:
    """Raise `Fault` if an answer is no answer, and `CswfError` if the command line was refused."""
    status, err = outcome.status, outcome.err
    if "Traceback (most recent call last)" in err and (UNFORESEEN in err or not outcome.traceback):
        raise Fault(f"a traceback: {err[-4000:]}")
    if status not in (0, 1, 2, 130, 143):
        raise Fault(f"exit status {status}: {err}")
    if status in (130, 143) and not outcome.stopped:
        raise Fault(f"exit status {status} without a signal: {err}")
    for text in (outcome.out, err):
        sign = next((sign for sign in text if not (sign.isprintable() or sign in "\n\r\t")), "")
        if sign:
            raise Fault(f"a terminal would obey what is printed: {sign!r} in {text[:2000]!r}")
    if status in (1, 2):
        if not err.strip():
            raise Fault(f"exit status {status} without a word")
        raise CswfError(err)


PLACES = (
    *("done", "stopped", "done/model", "done/model/model.json", "images", "images.npz", "points.npz", "pack"),
    *("tiny.yaml", "missing", "", ".", "..", "done/run.json", "done/samples.npz", "broken.npz", "empty"),
    *("fifo", "/dev/null", "-", "caf\u00e9", "bad-\udcff", "new", "new/", "new/deep/er", "x.png", "x.npz"),
    *("a\nb", "\x1b[31m", "~", "tiny.yaml/x"),
)
"""Paths, all inside the folder that a command is called in, whatever it writes."""

NUMBERS = (
    *("0", "1", "2", "-1", "3", "1.5", "nan", "inf", "1e3", "99999999999", "99999999999999999999999"),
    *("9" * 5000, "0x10", "", " 1", "１", "1_000", "²", "--", "+1"),
)

WORDS = (
    *("digits", "tiny.yaml", "uniform", "one-hot", "fid", "sliced-wasserstein", "{use: digits}", "toy-cswf"),
    *("{use: npz, path: images.npz}", "mnist", "cifar10:test", "digits:train", "projection", "dataset"),
    *("metric", "bash", "zsh", "cpu", "cuda:7", "auto", "0:1", "0:1,1:2", "0:99999999999999999999999", "0:"),
    *(":1", "0.3,0.7", "1,2,x", "0,1,2", "all", "none", "500MB", "1GiB", "2x"),
)

OVERRIDES = (
    *("schedule.steps=1", "seed=1", "seed=1,2", "particles.count=2", "schedule.steps=0", "seed=-1"),
    *("nothing=1", "particles.count=99999999999", "condition=none", "condition.amplifier=0,2"),
    *("model.save=true", "a", "=", "outputs.frames=2", "schedule.steps=99999999999"),
    *("schedule.directions=99999999", "data.count=3", "particles.precision=float64"),
    *("evaluate.metrics=[sliced-wasserstein]", "projection=orthogonal", "cdf=sorted", "online={sets: 2}"),
)

ANYTHING = (
    *(*PLACES, *NUMBERS, *WORDS, *OVERRIDES, "--", "-", "--x", "-h", "--version", "--out"),
    *(text for text in values.TEXTS if not text.startswith("/")),  # nothing is to be written there
)

SLOW = {"bench", "doctor", "completion", "new"}
"""Commands that take long or write much, given seldom."""


class CommandTarget(Target):
    """Command lines, in this process."""

    name = "command"

    def prepare(self) -> None:
        registry = Registry.discover()
        sections = seeds.recipe(self.folder / "data")
        points = seeds.archive("points")
        things = {
            "tiny.yaml": to_yaml(sections).encode(),
            "images.npz": seeds.archive("classes"),
            "points.npz": points,
            "broken.npz": points[:-40],
        }
        self.made = fresh(self.folder / "made", things)
        seeds.run(self.made / "done", sections, registry)
        seeds.run(self.made / "stopped", sections, registry, stop=2)
        fresh(self.made / "pack", contents(CORPUS / "packed"))
        fresh(self.made / "images", {"a.png": (CORPUS / "pictures" / "grey.png").read_bytes()})
        for name in ("empty", "caf\u00e9"):
            (self.made / name).mkdir()
        for page in self.made.rglob("report.html"):
            page.unlink()
        importlib.import_module("sklearn.datasets")  # to load it takes longer than a command may
        self.commands = _commands(program.cli, ())
        self.here = self._copied()

    def make(self, draw: DrawFn) -> tuple[str, ...]:
        path, command = pick(draw, self.commands)
        if path[0] in SLOW:
            path, command = pick(draw, self.commands)
        arguments = [word for param in command.params for word in self._words(draw, param)]
        match draw(st.integers(0, 11)):
            case 0:
                arguments = draw(st.permutations(arguments))
            case 1 if arguments:
                del arguments[draw(st.integers(0, len(arguments) - 1))]
            case 2:
                arguments.insert(draw(st.integers(0, len(arguments))), pick(draw, ANYTHING))
            case 3:
                return tuple(_given(word) for word in draw(st.lists(st.sampled_from(ANYTHING), max_size=4)))
        return tuple(_given(word) for word in (*path, *arguments))

    def _words(self, draw: DrawFn, param: click.Parameter) -> list[str]:
        if isinstance(param, click.Argument):
            count = 1 if param.nargs == 1 else pick(draw, (0, 1, 1, 2, 3))
            return [self._value(draw, param) for _ in range(count)]
        usual = 0.9 if param.required else 0.5 if param.name in ("quiet", "out") else 0.15
        if param.name == "help" or not chance(draw, usual):
            return []
        name = pick(draw, param.opts)
        if getattr(param, "is_flag", False):
            return [name]
        if param.name == "devices":  # several would be processes of their own
            return [name, pick(draw, ("0", "-1", "x", "1", "", "9" * 5000))]
        value = self._value(draw, param)
        return [f"{name}={value}"] if chance(draw, 0.2) else [name, value]

    def _value(self, draw: DrawFn, param: click.Parameter) -> str:
        if chance(draw, 0.12):
            return pick(draw, ANYTHING)
        if isinstance(param.type, click.Choice):
            return str(pick(draw, list(param.type.choices)))
        if isinstance(param.type, click.Path):
            return pick(draw, (*PLACES[:9], *PLACES))
        if isinstance(param.type, (click.types.IntParamType, click.types.FloatParamType)):
            return pick(draw, (*NUMBERS[:5], *NUMBERS))
        known = {
            "recipe": (*("tiny.yaml",) * 6, *PLACES[:12], "digitss", "missing.yaml"),
            "overrides": OVERRIDES,
            "device": ("cpu", "cpu", "cpu", "auto", "cuda", "cuda:99", "x"),
        }
        return pick(draw, known.get(param.name or "", (*WORDS, *PLACES, *NUMBERS)))

    def _copied(self) -> Path:
        """Copy the tiny things, so deep that `..` is nobody else's."""
        fresh(self.folder / "sandbox")
        return fresh(self.folder / "sandbox" / "deep" / "er", self.made)

    def read(self, given: tuple[str, ...]) -> None:
        outcome = call(self.here, given)
        if outcome.status != 2 or _names(self.here) != _names(self.made):
            self.here = self._copied()
        check(outcome)

    def case(self, path: Path) -> tuple[str, ...]:
        return tuple(path.read_text("utf-8").rstrip("\n").split("\n"))


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, to see whether a command has written there."""
    return sorted(path.name for path in folder.iterdir())


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
