"""Checks of metrics."""

from __future__ import annotations

from functools import cached_property

import attrs
import torch
from torch import Tensor

from cswf_core.checks import CheckedMetric
from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Key, Metric, Result, Workbench
from cswf_core.testing.flows import SHARED
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject
from cswf_core.testing.samples import COLOUR, POINTS, samples

ROUNDING = 1e-4
"""How far scores that should be equal may be apart, in parts of their size."""

SHARE = 0.1
"""Of the score of noise, where lower is better, that identical sets may have."""

COUNT = 30
"""Samples of each set: few, as some metrics have a network look at each."""


def noise(samples: Dataset, seed: int = 5) -> Tensor:
    """Return noise in [−1, 1), as much as there are samples: d×n."""
    return 2 * Key(seed, "noise").open(dtype=samples.x.dtype).uniform(*samples.x.shape) - 1


class Scores(Subject):
    """A metric, and samples to score: real ones, and generated ones that are nearly as good, or noise."""

    kind = "metric"

    def __init__(self, plugin: Metric, data: Dataset | None = None) -> None:
        super().__init__(plugin)
        self.bench = Workbench()
        made = (samples(space, 2 * COUNT) for space in (COLOUR, POINTS))
        self.offered = (data,) if data is not None else tuple(made)

    @cached_property
    def metric(self) -> CheckedMetric:
        """The metric behind its checks."""
        metric: CheckedMetric = self.checked
        return metric

    @cached_property
    def _taken(self) -> Dataset | str:
        refusals = []
        for data in self.offered:
            try:
                self.metric.check(data, Workbench())
                self.result(data, data, data)
            except DataError as error:
                refusals.append(str(error))
            else:
                return data
        return refusals[0]

    @property
    def data(self) -> Dataset:
        """The first samples that the metric takes; raises `SkipError` with its sentence if it takes none."""
        if isinstance(self._taken, str):
            raise SkipError(self._taken)
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
        return self.metric.compute(comparison)


def scores_are_finite_numbers_by_name(subject: Scores) -> str:
    """`compute` returns a `Result` with at least one finite number, for samples that are good and for noise."""
    result = subject.result(subject.good, subject.real, subject.data)
    subject.scores(subject.noise)
    if not result.scores:
        raise FaultError("at least one score", "none")
    return ", ".join(f"{name} {value:.3g}" for name, value in result.scores.items())


def a_result_says_how_it_was_computed(subject: Scores) -> None:
    """`Result.protocol` has a sentence that can stand beside the scores in print."""
    if not subject.result(subject.good, subject.real, subject.data).protocol.strip():
        raise FaultError("a protocol, in a sentence", "none")


def scores_are_repeatable(subject: Scores) -> None:
    """The same samples and the same key give the same scores, without a draw from global generators."""
    first, second = (
        require_untouched(lambda: subject.scores(subject.good, bench=Workbench())) for _ in range(2)
    )
    _require_equal(first, second, "the second time", 0.0)


def _require_equal(first: dict[str, float], second: dict[str, float], when: str, tolerance: float) -> None:
    for name in first.keys() | second.keys():
        a, b = first.get(name), second.get(name)
        if a is None or b is None or not abs(a - b) <= tolerance * max(abs(a), abs(b)):
            raise FaultError(f"{name} of {a} again", f"{b} {when}")


def _reversed(samples: Dataset) -> Dataset:
    order = torch.arange(len(samples) - 1, -1, -1)
    return attrs.evolve(samples.take(order), held_out=samples.held_out)


def the_order_of_generated_samples_does_not_matter(subject: Scores) -> None:
    """Scores are of sets: generated samples in another order have the same."""
    scores = subject.scores(_reversed(subject.good))
    _require_equal(subject.scores(subject.good), scores, "for another order of generated samples", ROUNDING)


def the_order_of_real_samples_does_not_matter(subject: Scores) -> None:
    """Real samples in another order give the same scores."""
    scores = subject.scores(subject.good, _reversed(subject.real))
    _require_equal(subject.scores(subject.good), scores, "for another order of real samples", ROUNDING)


def identical_sets_score_best(subject: Scores) -> None:
    """Real samples in place of generated ones score better than noise: both are treated alike.

    Where lower is better, they have at most a tenth of the score of noise. A score that is the same for both is
    a scale to read the others by; at least one is not.
    """
    better = subject.metric.plugin.better
    if not better:
        raise SkipError("it does not say which way its scores get better")
    best, worst = subject.scores(subject.real), subject.scores(subject.noise)
    telling = {name: value for name, value in best.items() if value != worst[name]}
    if not telling:
        raise FaultError("a score that differs for noise", "the same of all, whatever is generated")
    for name, value in telling.items():
        limit = SHARE * abs(worst[name]) if better == "lower" else worst[name]
        if not (value <= limit + 1e-9 if better == "lower" else value >= limit):
            bound = f"at most {limit:.4g}" if better == "lower" else f"at least {limit:.4g}"
            raise FaultError(
                f"{name} of {bound} where both sets are the same (noise has {worst[name]:.4g})", f"{value:.4g}"
            )


def samples_are_left_as_they_are(subject: Scores) -> None:
    """Computing scores changes neither the generated nor the real samples, which other metrics share."""
    generated, real = (attrs.evolve(s, x=noise(s)) for s in (subject.good, subject.real))  # as new
    before = generated.digest(), real.digest()
    subject.scores(generated, real)
    if before != (generated.digest(), real.digest()):
        raise FaultError("samples that `compute` leaves alone", "other values")


def few_samples_have_scores_or_are_refused(subject: Scores) -> None:
    """One generated sample has a finite score, or a `DataError` says how many are needed."""
    try:
        subject.scores(subject.good.take(torch.arange(1)))
    except DataError as error:
        if "\n" in "\n".join(map(str, error.args)):
            raise FaultError("one sentence", f"{str(error)!r}") from None


def data_that_cannot_be_scored_are_refused_before_the_flow(subject: Scores) -> None:
    """`check` refuses points, or images without labels, by a `DataError` wherever `compute` would."""
    for data in (samples(POINTS), samples(COLOUR)):
        generated = attrs.evolve(data, held_out=None)
        try:
            subject.result(generated, data, data)
        except DataError as refusal:
            try:
                subject.metric.check(data, Workbench())
            except DataError:
                continue
            raise FaultError(
                f"`check` to refuse samples of {data.space}, which are then not flowed to for nothing",
                f"a refusal by `compute` only: {refusal}",
            ) from None


KIT = Kit(
    Scores,
    (
        *SHARED,
        scores_are_finite_numbers_by_name,
        a_result_says_how_it_was_computed,
        scores_are_repeatable,
        the_order_of_generated_samples_does_not_matter,
        the_order_of_real_samples_does_not_matter,
        identical_sets_score_best,
        samples_are_left_as_they_are,
        few_samples_have_scores_or_are_refused,
        data_that_cannot_be_scored_are_refused_before_the_flow,
    ),
)
