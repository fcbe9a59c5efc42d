"""Checks of metrics, which score samples, and of observers, which watch runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedMetric, CheckedObserver
from cswf_core.errors import DataError
from cswf_core.hookspecs import WatchedState, hookimpl
from cswf_core.interfaces import Comparison, Dataset, Key, Metric, Result, Workbench
from cswf_core.recipe import Recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch, resume
from cswf_core.testing.flows import COLOUR, GREY, POINTS, flow_of, recipe_with, samples
from cswf_core.testing.outcome import (
    FaultError,
    SkipError,
    Subject,
    one_sentence,
    require,
    takeable,
)

STEPS = 3
"""Steps of each of the two stages that an observer watches."""


def noise(samples: Dataset) -> Tensor:
    """Return noise in [−1, 1), as much as there are samples: d×n."""
    return 2 * Key(5, "noise").open(dtype=samples.x.dtype).uniform(*samples.x.shape) - 1


class Scores(Subject[CheckedMetric]):
    """A metric, and samples to score: real ones, and generated ones that are nearly as good, or noise."""

    kind = "metric"

    def __init__(self, plugin: Metric, data: Dataset | None = None) -> None:
        super().__init__(plugin)
        self.bench = Workbench()
        # Few, as some metrics have a network look at each.
        self.offered = (data,) if data is not None else tuple(samples(space, 60) for space in (COLOUR, POINTS))

    def try_out(self, data: Dataset) -> None:
        """Score real samples beside themselves."""
        self.checked.check(data, Workbench())
        self.result(data, data, data)

    @cached_property
    def _taken(self) -> Dataset | SkipError:
        try:
            return next(takeable(self.offered, self.try_out, SkipError))
        except SkipError as reason:
            return reason

    @property
    def data(self) -> Dataset:
        """The first samples that the metric takes; raises `SkipError` with its sentence if it takes none."""
        if isinstance(self._taken, SkipError):
            raise SkipError(str(self._taken))
        return self._taken

    @cached_property
    def real(self) -> Dataset:
        """Real samples: every second one."""
        return self.data.take(torch.arange(0, len(self.data), 2))

    @cached_property
    def good(self) -> Dataset:
        """Other samples of the same distribution, each as if it completed the real one of its number."""
        others = self.data.take(torch.arange(1, len(self.data), 2))
        origin = self.real.conditions.origin
        completing = None if origin is None else origin[: len(others)]
        return attrs.evolve(
            others, conditions=attrs.evolve(others.conditions, origin=completing), held_out=None
        )

    @cached_property
    def noise(self) -> Dataset:
        """As many samples without any likeness: noise, with the labels of the real ones."""
        return attrs.evolve(self.real, x=noise(self.real), held_out=None)

    def answers(self) -> list[dict[str, float]]:
        """Return scores that share nothing with other comparisons."""
        return [self.scores(self.good, bench=Workbench())]

    def scores(
        self, generated: Dataset, real: Dataset | None = None, bench: Workbench | None = None
    ) -> dict[str, float]:
        """Return the scores of samples beside real ones."""
        return dict(self.result(generated, self.real if real is None else real, self.data, bench).scores)

    def result(
        self, generated: Dataset, real: Dataset, data: Dataset, bench: Workbench | None = None
    ) -> Result:
        """Return the result of a comparison; without a bench of their own, comparisons share what they can."""
        completed = generated.conditions.origin is not None
        comparison = Comparison(
            generated=generated,
            real=real,
            draw=Key(2, "metric").open(dtype=torch.float64),
            training=data.genuine(),
            held_out=data.held_out,
            originals=data.originals(generated.conditions) if completed else None,
            bench=self.bench if bench is None else bench,
        )
        return self.checked.compute(comparison)


def scores_are_finite_numbers_with_a_protocol(subject: Scores) -> str:
    """`compute` returns a `Result` with at least one finite number, for samples that are good and for noise.

    `Result.protocol` has a sentence that can stand beside the scores in print.
    """
    result = subject.result(subject.good, subject.real, subject.data)
    subject.scores(subject.noise)
    require(bool(result.scores), "at least one score", "none")
    require(bool(result.protocol.strip()), "a protocol, in a sentence", "none")
    return ", ".join(f"{name} {value:.3g}" for name, value in result.scores.items())


def the_order_of_samples_does_not_matter(subject: Scores) -> None:
    """Scores are of sets: generated and real samples in another order have the same."""
    scores = subject.scores(subject.good)
    others = {
        "generated": subject.scores(_reversed(subject.good)),
        "real": subject.scores(subject.good, _reversed(subject.real)),
    }
    for noun, other in others.items():
        for name in scores.keys() | other.keys():
            a = scores.get(name)
            b = other.get(name)
            near = a is not None and b is not None and abs(a - b) <= 1e-4 * max(abs(a), abs(b))
            require(near, f"{name} of {a} again", f"{b} for another order of {noun} samples")


def _reversed(samples: Dataset) -> Dataset:
    order = torch.arange(len(samples) - 1, -1, -1)
    return attrs.evolve(samples.take(order), held_out=samples.held_out)


def identical_sets_score_best(subject: Scores) -> None:
    """Real samples in place of generated ones score better than noise: both are treated alike.

    Where lower is better, they have at most a tenth of the score of noise. A score that is the same for both is
    a scale to read the others by; at least one is not.
    """
    better = subject.checked.plugin.better
    if not better:
        raise SkipError("it does not say which way its scores get better")
    best = subject.scores(subject.real)
    worst = subject.scores(subject.noise)
    telling = {name: value for name, value in best.items() if value != worst[name]}
    require(bool(telling), "a score that differs for noise", "the same of all, whatever is generated")
    for name, value in telling.items():
        if better == "lower":
            limit = 0.1 * abs(worst[name])
            fine = value <= limit + 1e-9
            bound = f"at most {limit:.4g}"
        else:
            fine = value >= worst[name]
            bound = f"at least {worst[name]:.4g}"
        expected = f"{name} of {bound} where both sets are the same (noise has {worst[name]:.4g})"
        require(fine, expected, f"{value:.4g}")


def samples_are_left_as_they_are(subject: Scores) -> None:
    """Computing scores changes neither the generated nor the real samples, which other metrics share."""
    generated, real = (attrs.evolve(s, x=noise(s)) for s in (subject.good, subject.real))  # as new
    before = generated.digest(), real.digest()
    subject.scores(generated, real)
    same = before == (generated.digest(), real.digest())
    require(same, "samples that `compute` leaves alone", "other values")


def few_samples_have_scores_or_are_refused(subject: Scores) -> None:
    """One generated sample has a finite score, or a `DataError` says how many are needed."""
    try:
        subject.scores(subject.good.take(torch.arange(1)))
    except DataError as error:
        one_sentence(error)


def data_that_cannot_be_scored_are_refused_before_the_flow(subject: Scores) -> None:
    """`check` refuses points, or images without labels, by a `DataError` wherever `compute` would."""
    for data in (samples(POINTS), samples(COLOUR)):
        generated = attrs.evolve(data, held_out=None)
        try:
            subject.result(generated, data, data)
        except DataError as refusal:
            try:
                subject.checked.check(data, Workbench())
            except DataError:
                continue
            raise FaultError(
                f"`check` to refuse samples of {data.space}, which are then not flowed to for nothing",
                f"a refusal by `compute` only: {refusal}",
            ) from None


class Watched(Subject[CheckedObserver]):
    """An observer, and short runs that it watches."""

    kind = "observer"

    def recipe(self) -> Recipe:
        """Return a recipe of two stages and a score, which the observer watches."""
        schedule = {"use": "pyramid", "entries": ["(4×4) [3]", "(8×8) [3]"], "steps": STEPS, "directions": 256}
        return recipe_with(
            "observer",
            self.plugin,
            samples(GREY),
            projection="locally-connected",
            schedule=schedule,
            condition="one-hot",
            evaluate={"metrics": [{"use": "sliced-wasserstein", "directions": 50}]},
            outputs={"frames": 0, "log_every": 1, "checkpoint_every": 2},
        )

    def answers(self) -> list[Tensor]:
        """Return the samples of a flow that it watches."""
        with self.folder() as folder:
            folder.mkdir()
            watcher = self.checked.watch(folder)
            x = flow_of(self.recipe(), watcher).run().x
            self.checked.close(watcher)
        return [x]

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Make a folder for a run, and remove it in the end."""
        with tempfile.TemporaryDirectory(prefix="cswf-kit-") as place:
            yield Path(place) / "run"


def a_run_survives_it(subject: Watched) -> str:
    """A run of two stages with scores goes to its end, and says which files it has left."""
    with subject.folder() as folder:
        recipe = subject.recipe()
        facts = launch(recipe, RunFolder(folder), device="cpu")
        require(facts["status"] == "done", "a run that is done", facts["status"])
        own = {path.name for path in folder.iterdir()}
    with subject.folder() as folder:
        launch(attrs.evolve(recipe, observers=()), RunFolder(folder), device="cpu")
        own -= {path.name for path in folder.iterdir()}
    return f"it leaves {', '.join(sorted(own))} in the run's folder" if own else ""


def the_flow_is_the_same_with_it(subject: Watched) -> None:
    """Watching changes nothing: samples are those of a flow that nobody watches, to the bit."""
    (watched,) = subject.answers()
    same = torch.equal(watched, flow_of(subject.recipe()).run().x)
    require(same, "the samples of a flow without it", "others")


def it_can_be_closed_at_any_time(subject: Watched) -> None:
    """`close` works before the first step, and twice: it is called however a run ends."""
    with subject.folder() as folder:
        watcher = subject.checked.watch(folder)
        if not hasattr(watcher, "close"):
            raise SkipError("it has no `close`")
        for _ in range(2):
            subject.checked.close(watcher)


def an_interrupted_run_goes_on_with_it(subject: Watched) -> None:
    """A run that was interrupted between two checkpoints is resumed with it, and goes to its end."""

    @hookimpl
    def interrupt(state: WatchedState) -> None:
        if state.total_step == STEPS + 2:
            raise KeyboardInterrupt

    with subject.folder() as folder:
        recipe = subject.recipe()
        with suppress(KeyboardInterrupt):
            launch(recipe, RunFolder(folder), device="cpu", observers=[SimpleNamespace(after_step=interrupt)])
        facts = resume(recipe, RunFolder(folder), device="cpu")
    require(facts["status"] == "done", "a run that is done", facts["status"])


def its_state_comes_back_from_a_checkpoint(subject: Watched) -> None:
    """`recall` of what `keep` returned leads to the same state; with nothing, to that of the beginning."""
    with subject.folder() as folder:
        folder.mkdir()
        watcher = subject.checked.watch(folder)
        if not hasattr(watcher, "remembered"):
            raise SkipError("it has no `remembered`: nothing of it has to survive a kill")
        flow = flow_of(subject.recipe(), watcher)
        begin = _state(watcher)
        evolution = iter(flow)
        for _ in range(STEPS):
            next(evolution)
        end = _state(watcher)
        other: Any = subject.checked.watch(folder)
        other.recall(end, STEPS)
        _require_same(end, _state(other), "of the checkpoint")
        other.recall({}, 0)
        _require_same(begin, _state(other), "of the beginning, where a run begins anew")
        for each in (watcher, other):
            subject.checked.close(each)


def _state(watcher: Any) -> dict[str, Tensor]:
    """Return a copy of what a watcher keeps in a checkpoint."""
    state = watcher.keep()
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise FaultError("`keep` to return tensors by name", f"{state!r}")
    return {name: tensor.clone() for name, tensor in state.items()}


def _require_same(expected: dict[str, Tensor], got: dict[str, Tensor], words: str) -> None:
    require(expected.keys() == got.keys(), f"the state {words}, {sorted(expected)}", sorted(got))
    for name, tensor in expected.items():
        require(torch.equal(tensor, got[name]), f"'{name}' as in the state {words}", "another value")
