"""What tests share: the command line in-process, one demo's run, small parts to build flows from."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when PyTorch is imported, here and in children: one core a worker

import attrs
import hypothesis
import pytest
from filelock import FileLock

from cswf_core import cli
from tests.apart import Apart, prepared
from tests.processes import as_it_was

if TYPE_CHECKING:
    from cswf_core.flow.flow import Flow
    from cswf_core.interfaces import Dataset, Owner
    from cswf_core.plugins import Registry
    from cswf_core.ranks import Ranks

# PyTorch is imported in functions: the process that hands tests to workers reads this file too, and needs none.

hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


os.fsync = lambda _: None  # an eighth of all time; commands in processes of their own do wait for the disk


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of the demo's run, which one of two workers makes then, and with long ones."""
    long = {"packaging", "browser", "compile", "pages", "processes"}

    def place(item: pytest.Item) -> tuple[bool, bool]:
        marks = {mark.name for mark in item.iter_markers()}
        return "digits_run" not in getattr(item, "fixturenames", ()), marks.isdisjoint(long)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what has been imported to itself: the collector of garbage would go through it again and again."""
    gc.freeze()


@attrs.frozen
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str


@attrs.frozen
class CommandLine:
    """Calls `cswf` as a person would, in this process."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str | Path) -> Outcome:
        self.capsys.readouterr()
        self.monkeypatch.setattr(sys, "argv", ["cswf", *map(str, arguments)])
        with as_it_was(), pytest.raises(SystemExit) as ended:
            cli.main()
        captured = self.capsys.readouterr()
        return Outcome(ended.value.code or 0, captured.out, captured.err)

    def output(self, *arguments: str | Path) -> str:
        """What a command prints that does what it should."""
        done = self(*arguments)
        assert done.status == 0, done.err
        return done.out

    def refusal(self, *arguments: str | Path) -> str:
        """The sentence that a command answers to a person's mistake, on one line and with status 2."""
        done = self(*arguments)
        assert done.status == 2, done.out
        assert len(done.err.strip().splitlines()) == 1, done.err
        return done.err


@pytest.fixture
def cswf(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(capsys, monkeypatch)


@pytest.fixture(scope="session")
def apart() -> Iterator[Apart]:
    """Calls `cswf` in a process of its own, one after the other or several at once."""
    with prepared() as commands:
        yield commands


@cache
def installed() -> Registry:
    """The plugins as installed, loaded once."""
    from cswf_core.plugins import Registry

    return Registry.discover()


@pytest.fixture(scope="session")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Let a function fill a folder, once for all workers of pytest-xdist; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def digits_run(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The folder that the demo leaves: `cswf run digits`, once for all tests."""
    from cswf_core.recipe import load_recipe
    from cswf_core.runs.folder import RunFolder
    from cswf_core.session.run import launch

    return made_once("digits", lambda folder: launch(load_recipe("digits"), RunFolder(folder), device="cpu"))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def skip_without(name: str) -> None:
    """Skip a test whose published data set is not on this machine."""
    from cswf_core.errors import DataError
    from cswf_core.interfaces import Key
    from cswf_plugins.datasets.cifar10 import Cifar10
    from cswf_plugins.datasets.fashion_mnist import FashionMnist
    from cswf_plugins.datasets.mnist import Mnist

    source = {"mnist": Mnist, "fashion-mnist": FashionMnist, "cifar10": Cifar10}[name](download=False, count=1)
    try:
        source.load(Key(0, "data").open())
    except DataError:
        pytest.skip(
            f"{name} is neither in ~/.cache/cswf nor in $CSWF_DATA; `cswf run {name}-class` downloads it"
        )


def random_data(d: int = 5, n: int = 40, classes: int = 3, seed: int = 1) -> Dataset:
    """Labelled points with a different mean for each class."""
    import torch

    from cswf_core.interfaces import Conditions, Dataset, Key, Space

    draw = Key(seed, "test data").open(dtype=torch.float64)
    labels = torch.arange(n) % classes
    x = draw.normal(d, n) + labels
    names = tuple(str(c) for c in range(classes))
    return Dataset(x=x, space=Space((d,)), conditions=Conditions(labels=labels), classes=names)


def small_flow(
    data: Dataset | None = None,
    *,
    condition: object | None = None,
    projection: object | None = None,
    cdf: object | None = None,
    schedule: object | None = None,
    coordinates: object | None = None,
    start: Dataset | None = None,
    observers: tuple[object, ...] = (),
    owners: dict[str, Owner] | None = None,
    sets: int | None = None,
    ranks: Ranks | None = None,
    plan: object | None = None,
    **settings: object,
) -> Flow:
    """A flow with everything small; any part can be replaced."""
    import torch

    from cswf_core import checks
    from cswf_core.flow.flow import Flow
    from cswf_core.flow.settings import Parts, Settings
    from cswf_core.interfaces import Owner
    from cswf_core.online import OnlineFlow
    from cswf_plugins.cdfs.sorted import Sorted
    from cswf_plugins.conditions.none import NoCondition
    from cswf_plugins.conditions.one_hot import OneHot
    from cswf_plugins.projections.uniform import Uniform
    from cswf_plugins.schedules.constant import Constant

    data = data if data is not None else random_data()
    labelled = data.conditions.labels is not None
    chosen = {
        "condition": condition or (OneHot(amplifier=3.0) if labelled else NoCondition()),
        "projection": projection or Uniform(),
        "cdf": cdf or Sorted(),
        "schedule": schedule or Constant(steps=3, directions=300),
    }
    chosen |= {} if coordinates is None else {"coordinates": coordinates}
    parts = {kind: checks.checked(p, (owners or {}).get(kind, Owner.of(kind, p))) for kind, p in chosen.items()}
    settings = {"dtype": torch.float64, "count": 30, **settings}
    kind = Flow if sets is None else partial(OnlineFlow, sets=sets)
    flow = kind(data, Parts(**parts), Settings(**settings), start=start, observers=observers, ranks=ranks)
    if plan is not None:
        flow.new_stepper = plan
    return flow
