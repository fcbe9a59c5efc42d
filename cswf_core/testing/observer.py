"""Checks of observers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedObserver
from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces import Observer
from cswf_core.plugins.watching import hook_fault
from cswf_core.recipe import Recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch, resume
from cswf_core.testing.flows import SHARED, flow_of, recipe_with
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject
from cswf_core.testing.samples import GREY, samples

STEPS = 3
"""Steps of each of two stages."""


class InterruptAfter:
    """Interrupts a run after a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    @hookimpl
    def after_step(self, state: Any) -> None:
        """Interrupt it if it is time."""
        if state.total_step == self.step:
            raise KeyboardInterrupt


class Watched(Subject):
    """An observer, and short runs that it watches."""

    kind = "observer"

    def __init__(self, plugin: Observer) -> None:
        super().__init__(plugin)

    @cached_property
    def observer(self) -> CheckedObserver:
        """The observer behind its checks."""
        observer: CheckedObserver = self.checked
        return observer

    def recipe(self, **sections: Any) -> Recipe:
        """Return a recipe of two stages and a score, which the observer watches."""
        schedule = {"use": "pyramid", "entries": ["(4×4) [3]", "(8×8) [3]"], "steps": STEPS, "directions": 256}
        small = {
            "projection": "locally-connected",
            "schedule": schedule,
            "condition": "one-hot",
            "evaluate": {"metrics": [{"use": "sliced-wasserstein", "directions": 50}]},
            "outputs": {"frames": 0, "log_every": 1, "checkpoint_every": 2},
        }
        return recipe_with("observer", self.plugin, samples(GREY), **{**small, **sections})

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Make a folder for a run, and remove it in the end."""
        with tempfile.TemporaryDirectory(prefix="cswf-kit-") as place:
            yield Path(place) / "run"

    def watch(self, folder: Path) -> Any:
        """Return an object that watches a run."""
        return self.observer.watch(folder)


def a_watcher_has_hooks(subject: Watched) -> None:
    """`watch` returns an object with hooks of the right names, marked with `@hookimpl`."""
    with subject.folder() as folder:
        watcher = subject.watch(folder)
        fault = hook_fault(watcher)
        subject.observer.close(watcher)
    if fault:
        raise FaultError("an object with hooks that watch a flow", fault)


def a_run_survives_it(subject: Watched) -> str:
    """A run of two stages with scores goes to its end, and says which files it has left."""
    with subject.folder() as folder:
        recipe = subject.recipe()
        facts = launch(recipe, RunFolder(folder), device="cpu")
        if facts["status"] != "done":
            raise FaultError("a run that is done", f"{facts['status']}")
        own = {path.name for path in folder.iterdir()}
    with subject.folder() as folder:
        launch(attrs.evolve(recipe, observers=()), RunFolder(folder), device="cpu")
        own -= {path.name for path in folder.iterdir()}
    return f"it leaves {', '.join(sorted(own))} in the run's folder" if own else ""


def the_flow_is_the_same_with_it(subject: Watched) -> None:
    """Watching changes nothing: samples are those of a flow that nobody watches, to the bit."""
    recipe = subject.recipe()
    with subject.folder() as folder:
        folder.mkdir()
        watcher = subject.watch(folder)
        watched = flow_of(recipe, watcher).run()
        subject.observer.close(watcher)
    if not torch.equal(watched.x, flow_of(recipe).run().x):
        raise FaultError("the samples of a flow without it", "others")


def global_generators_are_left_alone(subject: Watched) -> None:
    """Watching draws nothing from the generators of `random`, NumPy and PyTorch."""

    def watched() -> None:
        with subject.folder() as folder:
            folder.mkdir()
            watcher = subject.watch(folder)
            flow_of(subject.recipe(), watcher).run()
            subject.observer.close(watcher)

    require_untouched(watched)


def it_can_be_closed_at_any_time(subject: Watched) -> None:
    """`close` works before the first step, and twice: it is called however a run ends."""
    with subject.folder() as folder:
        watcher = subject.watch(folder)
        if not hasattr(watcher, "close"):
            raise SkipError("it has no `close`")
        for _ in range(2):
            subject.observer.close(watcher)


def an_interrupted_run_goes_on_with_it(subject: Watched) -> None:
    """A run that was interrupted between two checkpoints is resumed with it, and goes to its end."""
    with subject.folder() as folder:
        recipe = subject.recipe()
        with suppress(KeyboardInterrupt):
            launch(recipe, RunFolder(folder), device="cpu", observers=[InterruptAfter(STEPS + 2)])
        facts = resume(recipe, RunFolder(folder), device="cpu")
    if facts["status"] != "done":
        raise FaultError("a run that is done", f"{facts['status']}")


def its_state_comes_back_from_a_checkpoint(subject: Watched) -> None:
    """`recall` of what `keep` returned leads to the same state; with nothing, to that of the beginning."""
    with subject.folder() as folder:
        folder.mkdir()
        watcher = subject.watch(folder)
        if not hasattr(watcher, "remembered"):
            raise SkipError("it has no `remembered`: nothing of it has to survive a kill")
        flow = flow_of(subject.recipe(), watcher)
        begin, evolution = _state(watcher), iter(flow)
        for _ in range(STEPS):
            next(evolution)
        end = _state(watcher)
        other = subject.watch(folder)
        other.recall(end, STEPS)
        _require_same(end, _state(other), "of the checkpoint")
        other.recall({}, 0)
        _require_same(begin, _state(other), "of the beginning, where a run begins anew")
        for each in (watcher, other):
            subject.observer.close(each)


def _state(watcher: Any) -> dict[str, Tensor]:
    """Return a copy of what a watcher keeps in a checkpoint."""
    state = watcher.keep()
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise FaultError("`keep` to return tensors by name", f"{state!r}")
    return {name: tensor.clone() for name, tensor in state.items()}


def _require_same(expected: dict[str, Tensor], got: dict[str, Tensor], words: str) -> None:
    if expected.keys() != got.keys():
        raise FaultError(f"the state {words}, {sorted(expected)}", f"{sorted(got)}")
    for name, tensor in expected.items():
        if not torch.equal(tensor, got[name]):
            raise FaultError(f"'{name}' as in the state {words}", "another value")


KIT = Kit(
    Watched,
    (
        *SHARED,
        a_watcher_has_hooks,
        a_run_survives_it,
        the_flow_is_the_same_with_it,
        global_generators_are_left_alone,
        it_can_be_closed_at_any_time,
        an_interrupted_run_goes_on_with_it,
        its_state_comes_back_from_a_checkpoint,
    ),
)
