"""The kit that proves a plugin: checks of everything its contract asks for, on tiny data, in seconds.

In a test: `from cswf_core.testing import check_projection`, then `check_projection(Strokes())`. Each of these
functions runs all checks of a kind; it returns the outcomes, or raises one `FailedChecksError` that lists every
failure. `check_plugin` only collects outcomes. Each check is a function whose name is its claim, and whose
`subject` is of the class that its kind has here; `excused`, claims with reasons, leaves out those that a plugin
breaks on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cswf_core.errors import PluginError, did_you_mean
from cswf_core.interfaces import (
    CDFEstimator,
    ConditionEncoder,
    Coordinates,
    Dataset,
    DatasetSource,
    Metric,
    Observer,
    Owner,
    ProjectionSampler,
    Schedule,
    Space,
)
from cswf_core.testing.cdf import Distributions
from cswf_core.testing.condition import Encoding
from cswf_core.testing.data import SourceSubject
from cswf_core.testing.flows import SHARED
from cswf_core.testing.outcome import (
    Check,
    FailedChecksError,
    OnResult,
    Outcome,
    Subject,
    answers_follow_from_their_keys,
    claims_about,
    run,
)
from cswf_core.testing.projection import SamplerSubject
from cswf_core.testing.scores import Scores, Watched
from cswf_core.testing.stages import CoordinateSubject, ScheduleSubject

__all__ = [
    "KITS",
    "FailedChecksError",
    "Outcome",
    "check_cdf",
    "check_condition",
    "check_coordinates",
    "check_dataset",
    "check_metric",
    "check_observer",
    "check_plugin",
    "check_projection",
    "check_schedule",
]

SUBJECTS: tuple[type[Subject[Any]], ...] = (
    SamplerSubject,
    Distributions,
    Encoding,
    ScheduleSubject,
    CoordinateSubject,
    SourceSubject,
    Scores,
    Watched,
)
KITS: Mapping[str, Sequence[Check]] = {
    subject.kind: (*SHARED, *claims_about(subject), answers_follow_from_their_keys, *subject.in_flows)
    for subject in SUBJECTS
}
"""The checks of each kind of plugin."""

Excused = Mapping[str, str]
"""Claims that a plugin breaks on purpose, each with the reason."""


def check_plugin(
    kind: str,
    plugin: object,
    *,
    on_result: OnResult | None = None,
    excused: Excused | None = None,
    **options: Any,
) -> list[Outcome]:
    """Return the outcome of every check of a kind; `on_result` hears of each as soon as it is known.

    `options` are those of the kind's own function: `spaces` or `data`.
    """
    if kind not in KITS:
        raise PluginError(f"there is no kind of plugin '{kind}'{did_you_mean(kind, KITS)}")
    (subject,) = (subject for subject in SUBJECTS if subject.kind == kind)
    return run(KITS[kind], subject(plugin, **options), excused or {}, on_result)


def _require(kind: str, plugin: object, excused: Excused | None, **options: Any) -> list[Outcome]:
    """Return outcomes if none has failed; else raise `FailedChecksError` with all failures.

    It is raised too if no checks could be done but those of every kind, which look at nothing but the class.
    """
    outcomes = check_plugin(kind, plugin, excused=excused, **options)
    owner = Owner.of(kind, plugin)
    claims: dict[str, list[str]] = {}
    for outcome in outcomes:  # a mistake that breaks many of them is told once
        if outcome.result == "failed":
            claims.setdefault(outcome.sentence, []).append(outcome.claim)
    if claims:
        head = f"{owner}: {sum(map(len, claims.values()))} of {len(outcomes)} checks failed"
        lines = [f"  - {_listed(broken)}: {sentence}" for sentence, broken in claims.items()]
        raise FailedChecksError("\n".join([head, *lines]))
    own = outcomes[len(SHARED) :]
    if all(outcome.result == "skipped" for outcome in own):
        raise FailedChecksError(f"{owner}: nothing could be checked: {own[0].sentence}")
    return outcomes


def _listed(claims: Sequence[str]) -> str:
    """Return the first three of some claims by name, and how many others there are."""
    others = f" and {len(claims) - 3} others" if len(claims) > 3 else ""
    return ", ".join(claims[:3]) + others


def check_projection(
    plugin: ProjectionSampler, *, spaces: Sequence[Space] | None = None, excused: Excused | None = None
) -> list[Outcome]:
    """Check a projection sampler, in 1×8×8 and 3×8×8 pixels and 6 dimensions, or in other `spaces`."""
    return _require("projection", plugin, excused, spaces=spaces)


def check_cdf(plugin: CDFEstimator, *, excused: Excused | None = None) -> list[Outcome]:
    """Check a CDF estimator, on normal, skewed, tied and equal values and on outliers."""
    return _require("cdf", plugin, excused)


def check_condition(
    plugin: ConditionEncoder, *, data: Dataset | None = None, excused: Excused | None = None
) -> list[Outcome]:
    """Check a condition, on samples with labels, vectors and held-out ones, or on other `data`."""
    return _require("condition", plugin, excused, data=data)


def check_schedule(
    plugin: Schedule, *, spaces: Sequence[Space] | None = None, excused: Excused | None = None
) -> list[Outcome]:
    """Check a schedule, for 6 dimensions and 1×8×8 and 3×8×8 pixels, or for other `spaces`."""
    return _require("schedule", plugin, excused, spaces=spaces)


def check_coordinates(
    plugin: Coordinates, *, spaces: Sequence[Space] | None = None, excused: Excused | None = None
) -> list[Outcome]:
    """Check coordinates, in 1×8×8 and 3×8×8 pixels and 6 dimensions, or in other `spaces`."""
    return _require("coordinates", plugin, excused, spaces=spaces)


def check_dataset(plugin: DatasetSource, *, excused: Excused | None = None) -> list[Outcome]:
    """Check a data source; it is loaded three times, so give it parameters that make it small."""
    return _require("dataset", plugin, excused)


def check_metric(
    plugin: Metric, *, data: Dataset | None = None, excused: Excused | None = None
) -> list[Outcome]:
    """Check a metric, on 3×8×8 images or points with labels, or on other `data`, 60 samples or so."""
    return _require("metric", plugin, excused, data=data)


def check_observer(plugin: Observer, *, excused: Excused | None = None) -> list[Outcome]:
    """Check an observer, in short runs of two stages, one of which is interrupted and goes on."""
    return _require("observer", plugin, excused)
