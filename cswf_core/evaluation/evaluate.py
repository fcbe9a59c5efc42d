"""The evaluation: metrics computed one after the other, and the document with their scores, `metrics.json`."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.evaluation.samples import Generated
from cswf_core.evaluation.task import COPYING, Reference, Task
from cswf_core.interfaces import Comparison, Dataset, Figure, Key, Meaning, Result, Spread, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.memory import out_of_memory_explained
from cswf_core.recipe import Choice, Recipe
from cswf_core.runs.record import command_line, commit, describe_device, versions
from cswf_core.runs.scores import FORMAT, Score, notes_of, of_json
from cswf_core.scores.layout import measured
from cswf_core.scores.replicas import CONFIDENCE, Estimate


@attrs.define(eq=False, kw_only=True)
class Evaluation:
    """Scores so far, and figures to draw."""

    generated: dict[str, Any]
    """What was scored: source, numbers and digests of samples, and notes on them."""
    ending: str = ""
    """What is put behind the names of scores and figures."""
    facts: dict[str, Any]
    """What all scores share: how, where and with what they are computed; notes on them, and the time."""
    results: list[Score] = attrs.field(factory=list)
    files: list[str] = attrs.field(factory=list)
    """Files of all figures."""
    leads: dict[str, str] = attrs.field(factory=dict)
    """File of a figure → a sentence on what it shows."""
    figures: dict[str, Figure] = attrs.field(factory=dict, repr=False)
    """Figures by name that are not drawn yet."""
    spreads: dict[str, Spread] = attrs.field(factory=dict, repr=False)
    """How sure scores are, by name; two evaluations may be paired by them."""
    real: Dataset | None = attrs.field(default=None, repr=False)
    """Some real images of the first reference, to be seen beside the samples; None: there are none to write."""
    features: Mapping[str, Tensor] = attrs.field(factory=dict, repr=False)
    """Features that metrics have computed, by name: n×D."""

    @property
    def document(self) -> dict[str, Any]:
        """The content of metrics.json."""
        return {
            "format": FORMAT,
            "generated": self.generated,
            "scores": [score.entry() for score in self.results],
            "figures": self.files,
            "leads": self.leads,
            **self.facts,
        }

    @property
    def scores(self) -> dict[str, float]:
        """Scores by name, without details."""
        return {score.name: score.value for score in self.results if not score.detail}

    def add(self, figures: Mapping[str, Figure]) -> None:
        """Add figures that a metric has made, by name."""
        self.figures.update(figures)
        self.files = list(dict.fromkeys([*self.files, *(f"{name}.png" for name in figures)]))
        self.leads |= {f"{name}.png": figure.lead for name, figure in figures.items() if figure.lead}


Keep = Callable[[Evaluation], object]


def evaluate(
    generated: Generated,
    task: Task,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    bench: Workbench | None = None,
    keep: Keep | None = None,
) -> Evaluation:
    """Compute all metrics of a task.

    `bench` is the task's own where none is given. `keep` gets the scores so far, at first and after every
    metric, so that they are not lost if a later one fails.
    """
    bench = task.bench() if bench is None else bench
    everything = generated.samples
    samples = everything.take(task.subset(everything)) if len(everything) > task.samples else everything
    originals = task.originals(samples)
    observation = task.observation(samples)
    metrics = task.metrics
    if originals is None and samples.conditions.origin is not None:
        metrics = tuple(metric for metric in metrics if metric.plugin.owner.name != COPYING)
    evaluation = _begun(generated, samples, task, metrics, bench, device)
    comparison_with = partial(
        Comparison,
        generated=samples,
        training=task.training,
        training_called=task.training_called,
        mirrored=task.mirrored,
        held_out=task.held_out,
        originals=originals,
        observation=None if observation is None else observation.to(device),
        bench=bench,
    )
    _tell(evaluation, bench, keep)
    for metric in metrics:
        name = json.dumps(metric.plain(), sort_keys=True, default=str)
        for reference in (*task.references, None)[:1] if metric.part.once else task.references:
            real = task.training if reference is None else reference.samples
            assert real is not None, "metrics without a reference are computed from the training data"
            comparison = comparison_with(
                real=real,
                draw=Key(task.seed, f"metric {name}").open(device, dtype),
                products=task.products if metric is task.metrics[-1] else None,
            )
            _compute(metric, comparison, None if metric.part.once else reference, task, evaluation)
        _tell(evaluation, bench, keep)
    return evaluation


def _begun(
    generated: Generated,
    samples: Dataset,
    task: Task,
    metrics: Sequence[Choice],
    bench: Workbench,
    device: torch.device,
) -> Evaluation:
    """Return an evaluation of some of the generated samples, without scores, by some of a task's metrics."""
    notes = [*generated.notes, *(note for each in task.references for note in each.notes)]
    if len(metrics) < len(task.metrics):
        notes.append(
            "not checked for copies: the samples complete images, and contain parts of them; `cswf eval` "
            "of the run's folder checks the generated parts"
        )
    return Evaluation(
        generated={
            "source": generated.source,
            "count": len(samples),
            "available": len(generated.samples),
            "sha256": bench.sha256(samples),
            "all_sha256": bench.sha256(generated.samples),
            "notes": list(dict.fromkeys(notes)),
        },
        facts={
            "settings": {"seed": task.seed, "precision": "float32", "samples": task.samples},
            "device": describe_device(device),
            "versions": versions(),
            "command": command_line(),
            "commit": commit(),
        },
        ending=generated.ending,
        real=_some_real(task),
        features=bench.features,
    )


def _some_real(task: Task) -> Dataset | None:
    """Return a few real images, as many of each class; None for points and where nothing is compared with."""
    real = next((reference.samples for reference in task.references), task.training)
    if real is None or not real.space.is_image or not task.metrics:
        return None
    most = 120
    labels = real.conditions.labels
    chosen = torch.from_numpy(Key(task.seed, "shown").open().host.permutation(len(real)))
    if labels is not None and real.classes:
        each = max(1, min(12, most // len(real.classes)))
        groups = [chosen[labels.cpu()[chosen] == c][:each] for c in range(len(real.classes))]
        chosen = torch.cat(groups)
    return real.take(chosen[:most])


def _tell(evaluation: Evaluation, bench: Workbench, keep: Keep | None) -> None:
    """Add notes, weights and the time to an evaluation, and hand it over."""
    notes = [*evaluation.generated["notes"], *notes_of(evaluation.results)]
    evaluation.facts |= {"notes": notes, **bench.used, "finished": _now()}
    if keep is not None:
        keep(evaluation)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _compute(
    metric: Choice, comparison: Comparison, reference: Reference | None, task: Task, evaluation: Evaluation
) -> None:
    """Compute one metric and enter its scores; without a reference, these are against nothing."""
    owner = metric.plugin.owner
    bench = comparison.bench
    began = time.perf_counter()
    hint = "score fewer samples (evaluate.samples, --count), or use another device"
    with out_of_memory_explained(f"metric '{owner.name}' does not fit into memory; {hint}"):
        result = metric.checked.compute(comparison)
    seconds = round(time.perf_counter() - began, 3)
    values = {**result.scores, **result.details}
    names = _free_names(list(values), reference, evaluation)
    shared = {key: evaluation.facts[key] for key in ("settings", "device", "versions", "command", "commit")}
    score_of = partial(
        Score,
        metric=owner.name,
        parameters=metric.plain(),
        source=evaluation.generated["source"],
        samples_digest=evaluation.generated["sha256"],
        all_samples_digest=evaluation.generated["all_sha256"],
        protocol=result.protocol,
        notes=(*_notes(metric, comparison, reference, task, result, names), *result.notes),
        seconds=seconds,
        circumstances={**shared, "finished": _now(), "weights": bench.used.get(metric.part.network)},
        **_compared_with(comparison, reference),
    )
    for name, (plain, value) in zip(names, values.items(), strict=True):
        meaning = result.meanings.get(plain, Meaning())
        score = score_of(
            name=name,
            value=value,
            detail=plain not in result.scores,
            better=metric.part.better if meaning.of_samples else "",
            samples=result.counts.get(plain, _count(comparison, result)),
            meaning=meaning,
        )
        spread = result.spreads.get(plain)
        if spread is not None:
            about = {"error": spread.error, "error_method": spread.method, "error_freedom": spread.freedom}
            score = attrs.evolve(score, **about)
            evaluation.spreads[name] = spread
        evaluation.results.append(score)
    ending = evaluation.ending.replace("_", "-")
    evaluation.add({f"{name}{ending}": figure for name, figure in result.figures.items()})


def _count(comparison: Comparison, result: Result) -> int:
    """Return how many generated samples went into a result."""
    return len(comparison.generated) if result.samples is None else result.samples


def _compared_with(comparison: Comparison, reference: Reference | None) -> dict[str, Any]:
    """Return the fields of a score that say what it is against."""
    bench = comparison.bench
    training = comparison.training
    if reference is not None:
        of = {"data": reference.data, "split": reference.split, "count": len(reference.samples)}
        return {**of, "digest": bench.sha256(reference.samples)}
    if training is not None:  # all that such a score is compared with
        return {"training": {"count": len(training), "sha256": bench.sha256(training)}}
    return {}


def _notes(
    metric: Choice,
    comparison: Comparison,
    reference: Reference | None,
    task: Task,
    result: Result,
    names: Sequence[str],
) -> list[str]:
    """Return the notes on scores of these names: of few samples, against some real ones, or too good."""
    notes = []
    listed = ", ".join(names[: len(result.scores)])
    count = _count(comparison, result)
    if count < metric.part.customary:
        notes.append(
            f"{listed}: of {count:,} samples, and published numbers are of {metric.part.customary:,}; "
            f"not to be compared with those"
        )
    real = comparison.training if reference is None else reference.samples
    available = task.of_training if reference is None else reference.of
    if real is not None and available is not None and len(real) != available:
        some = f"{len(real):,} of {available:,} real samples, evenly spread over them; "
        if metric.plugin.owner.name == COPYING:
            notes.append(f"copies are looked for among {some}copies of the others are not found")
        else:
            notes.append(
                f"{', '.join(names)}: against {some}do not compare with scores against all, such as published "
                "ones"
            )
    origin = comparison.generated.conditions.origin
    if reference is None or reference.foreign or comparison.originals is None or origin is None:
        return notes
    completing = int((origin < 0 if reference.split == "test" else origin >= 0).sum())
    if completing >= 0.01 * len(origin):
        notes.append(
            f"{listed}: too good, as {completing:,} of {len(origin):,} samples complete images of "
            f"{reference.name} and contain parts of them; metrics psnr, perceptual-distance and completion-fid "
            "score completions of held-out images (condition.held_out)"
        )
    return notes


def _free_names(plain: Sequence[str], reference: Reference | None, evaluation: Evaluation) -> list[str]:
    """Return the names of scores, numbered if another metric has one of them already."""
    ending = evaluation.ending + ("" if reference is None else reference.suffix)
    taken = {score.name for score in evaluation.results}

    def numbered(number: int) -> list[str]:
        return [f"{name}{'' if number == 1 else f'_{number}'}{ending}" for name in plain]

    return next(names for names in map(numbered, itertools.count(1)) if taken.isdisjoint(names))


@attrs.frozen
class Compared:
    """One score of both sets."""

    first: Score
    second: Score
    difference: Estimate
    """Second minus first."""
    paired: bool
    """Whether both were computed from the same real samples, so that what these add to both cancels out."""

    def verdict(self, names: tuple[str, str]) -> str:
        """Return which set is better and by how much, in a sentence; `names` are the sets'."""
        name = self.first.name
        better = self.first.better
        apart = self.difference.value
        interval = self.difference.interval
        by = self._printed(abs(apart), interval)
        if interval is None:
            return f"{name}: {names[1]} has {by} {'more' if apart > 0 else 'less'}, of unknown uncertainty"
        if self.difference.is_noise:
            return f"{name}: no difference beyond noise ({self.signed})"
        if not better:
            return f"{names[apart > 0]} has {by} {name} more"
        winner = int((apart < 0) == (better == "lower"))
        if (self.first, self.second)[winner].copying:
            more = "less" if better == "lower" else "more"
            return f"{name}: {names[winner]} has {by} {more}, but copies: it is not better"
        return f"{names[winner]} is better by {by} {name}"

    @property
    def signed(self) -> str:
        """The difference with its sign and interval, by the same digits as in the verdict."""
        sign = "+" if self.difference.value > 0 else ""
        return sign + self._printed(self.difference.value, self.difference.interval)

    @property
    def values(self) -> tuple[str, str]:
        """Both scores."""
        return self._printed(self.first.value), self._printed(self.second.value)

    def _printed(self, value: float, interval: float | None = None) -> str:
        return measured(value, interval, share=self.first.meaning.share)


@attrs.frozen
class Comparing:
    """Both evaluations, and every score that both have."""

    evaluations: tuple[Evaluation, Evaluation]
    scores: tuple[Compared, ...]

    @property
    def method(self) -> str:
        """What ± means here, in a sentence."""
        paired = any(score.paired for score in self.scores)
        how = "; where both sets share the real samples' part of it, that part cancels out" if paired else ""
        return (
            f"± is the {CONFIDENCE:.0%} interval of the difference, for all scores here together, from the "
            f"standard errors of both{how}. "
            "It says nothing on other seeds of a flow: for these, compare several runs (cswf table)"
        )


def compare(
    first: Generated,
    second: Generated,
    task: Task,
    *,
    recipes: tuple[Recipe | None, Recipe | None] = (None, None),
    device: torch.device,
    tell: Tell | None = None,
) -> Comparing:
    """Score two sets alike: by one seed, against the same real samples, and as many samples of each.

    FID falls with the number of samples, so of the larger set as many are drawn as the smaller has. `recipes`
    are those of sets that are runs: they say what samples were given of the images that they complete.
    """
    count = min(len(first.samples), len(second.samples), task.samples)
    if count < 2:
        raise DataError("two sets are compared by at least two samples of each")
    task = attrs.evolve(task, samples=count)
    bench = task.bench(tell)
    one, other = (
        evaluate(generated, attrs.evolve(task, recipe=recipe), device=device, bench=bench)
        for generated, recipe in zip((first, second), recipes, strict=True)
    )
    return Comparing((one, other), tuple(_compared(one, other)))


def _compared(first: Evaluation, second: Evaluation) -> list[Compared]:
    """Return every score, details left out, that both evaluations have."""
    theirs = {score.name: score for score in of_json(second.document).scores}
    compared = []
    for score in of_json(first.document).scores:
        other = theirs.get(score.name)
        if other is None or score.detail or not score.meaning.of_samples:
            continue
        ours = first.spreads.get(score.name)
        its = second.spreads.get(score.name)
        error = None if ours is None or its is None else its.error_of_difference(ours)
        if error == 0 and other.value != score.value:  # parts that agree by chance make no number certain
            error = None
        paired = ours is not None and its is not None and its.paired(ours)
        freedom = math.inf if ours is None or its is None else min(ours.freedom, its.freedom)
        compared.append(Compared(score, other, Estimate(other.value - score.value, error, freedom), paired))
    among = len(compared)
    return [attrs.evolve(each, difference=attrs.evolve(each.difference, among=among)) for each in compared]
