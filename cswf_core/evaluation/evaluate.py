"""The evaluation: metrics computed one after the other, and the document with their scores, `metrics.json`."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.evaluation.samples import Reference
from cswf_core.evaluation.task import COPYING, Task
from cswf_core.interfaces import Comparison, Dataset, Figure, Key, Meaning, Spread, Workbench
from cswf_core.interfaces.metric import ShareOut, Tell
from cswf_core.kernels.memory import out_of_memory_explained
from cswf_core.recipe import Choice
from cswf_core.runs.record import command_line, commit, describe_device, versions
from cswf_core.scores.document import FORMAT, notes_of

MOST_REAL = 120
MOST_OF_A_CLASS = 12
"""Real images that are written to be seen beside samples: in all, and of a class."""

FLATTERING = 0.01
"""Share of completions of real images among the samples from which on scores against these are too good."""

GIVEN = (
    "not checked for copies: the samples complete images, and contain parts of them; `cswf eval` of the run's "
    "folder checks the generated parts"
)
"""A note on completions of images that are not known."""


@attrs.define(eq=False)
class Evaluation:
    """Scores so far, and figures to draw."""

    document: dict[str, Any]
    """The content of metrics.json."""
    figures: dict[str, Figure] = attrs.field(factory=dict, repr=False)
    """Figures by name that are not drawn yet."""
    spreads: dict[str, Spread] = attrs.field(factory=dict, repr=False)
    """How sure scores are, by name; two evaluations may be paired by them."""
    real: Dataset | None = attrs.field(default=None, repr=False)
    """Some real images of the first reference, to be seen beside the samples; None: there are none to write."""
    features: Mapping[str, Tensor] = attrs.field(factory=dict, repr=False)
    """Features that metrics have computed, by name: n×D."""

    @property
    def scores(self) -> dict[str, float]:
        """Scores by name, without details."""
        return {score["name"]: score["value"] for score in self.document["scores"] if not score["detail"]}


Keep = Callable[[Evaluation], object]


def evaluate(
    generated: Dataset,
    task: Task,
    *,
    source: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    ending: str = "",
    notes: Sequence[str] = (),
    bench: Workbench | None = None,
    tell: Tell | None = None,
    keep: Keep | None = None,
    share_out: ShareOut | None = None,
) -> Evaluation:
    """Compute all metrics of a task.

    `source` is where the samples come from, `notes` say what their scores may depend on, and `ending` is put
    behind the names of scores and figures. `bench` is that of another evaluation with the same task. `keep`
    gets the scores so far, at first and after every metric, so that they are not lost if a later one fails.
    `share_out` has several devices compute features.
    """
    bench = attrs.evolve(task.bench(tell) if bench is None else bench, share_out=share_out)
    everything = generated
    generated = generated.take(task.subset(generated)) if len(generated) > task.samples else generated
    originals, observation = task.originals(generated), task.observation(generated)
    notes = [*notes, *(note for each in task.references for note in each.notes)]
    metrics = task.metrics
    if originals is None and generated.conditions.origin is not None:
        metrics = tuple(metric for metric in metrics if metric.plugin.owner.name != COPYING)
        notes += [GIVEN] if len(metrics) < len(task.metrics) else []
    about = {
        "source": source,
        "count": len(generated),
        "available": len(everything),
        "sha256": bench.sha256(generated),
        "all_sha256": bench.sha256(everything),
        "notes": list(dict.fromkeys(notes)),
    }
    document = {"format": FORMAT, "generated": about, "scores": [], "figures": [], "leads": {}}
    evaluation = Evaluation(
        document | _circumstances(task, device), real=_some_real(task), features=bench.features
    )
    _describe(evaluation, bench)
    if keep is not None:
        keep(evaluation)
    for metric in metrics:
        name = json.dumps(metric.plain(), sort_keys=True, default=str)
        unasked = task.products is not None and metric is task.metrics[-1]
        references: Sequence[Reference | None] = task.references
        if metric.part.once:
            references = [next(iter(task.references), None)]
        for reference in references:
            samples = task.training if reference is None else reference.samples
            assert samples is not None, "metrics without a reference are computed from the training data"
            comparison = Comparison(
                generated=generated,
                real=samples,
                draw=Key(task.seed, f"metric {name}").open(device, dtype),
                training=task.training,
                training_called=task.training_called,
                mirrored=task.mirrored,
                held_out=task.held_out,
                originals=originals,
                observation=None if observation is None else observation.to(device),
                products=task.products if unasked else None,
                bench=bench,
            )
            against = None if metric.part.once else reference
            _compute(metric, comparison, against, ending, evaluation, task.of_training)
        _describe(evaluation, bench)
        if keep is not None:
            keep(evaluation)
    return evaluation


def _some_real(task: Task) -> Dataset | None:
    """Return a few real images, as many of each class; None for points and where nothing is compared with."""
    real = next((reference.samples for reference in task.references), task.training)
    if real is None or not real.space.is_image or not task.metrics:
        return None
    labels, order = real.conditions.labels, Key(task.seed, "shown").open().host.permutation(len(real))
    chosen = torch.from_numpy(order)
    if labels is not None and real.classes:
        each = max(1, min(MOST_OF_A_CLASS, MOST_REAL // len(real.classes)))
        groups = [chosen[labels.cpu()[chosen] == c][:each] for c in range(len(real.classes))]
        chosen = torch.cat(groups)
    return real.take(chosen[:MOST_REAL])


def _circumstances(task: Task, device: torch.device) -> dict[str, Any]:
    """Return what all scores of an evaluation share: how, where and with what they are computed."""
    return {
        "settings": {"seed": task.seed, "precision": task.precision, "samples": task.samples},
        "device": describe_device(device),
        "versions": versions(),
        "command": command_line(),
        "commit": commit(),
    }


def _describe(evaluation: Evaluation, bench: Workbench) -> None:
    """Add to the document, and to the scores that do not say so yet, what they depend on, and the time."""
    document = evaluation.document
    finished = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    notes = [*document["generated"]["notes"], *notes_of(document["scores"])]
    document |= {"notes": notes, **bench.used, "finished": finished}
    shared = {key: document[key] for key in ("settings", "device", "versions", "command", "commit")}
    for score in document["scores"]:
        if "finished" not in score:
            score |= {**shared, "finished": finished, "weights": bench.used.get(score.pop("network"))}


def _compute(
    metric: Choice,
    comparison: Comparison,
    reference: Reference | None,
    ending: str,
    evaluation: Evaluation,
    of_training: int | None,
) -> None:
    """Compute one metric and enter its scores; without a reference, these are against nothing.

    `of_training` is how many training data there are, if only some are compared with.
    """
    owner, began = metric.plugin.owner, time.perf_counter()
    hint = "score fewer samples (evaluate.samples, --count), or use another device"
    with out_of_memory_explained(f"metric '{owner.name}' does not fit into memory; {hint}"):
        result = metric.checked.compute(comparison)
    seconds = round(time.perf_counter() - began, 3)
    count = len(comparison.generated) if result.samples is None else result.samples
    scores, values = evaluation.document["scores"], {**result.scores, **result.details}
    data, split = ("", "") if reference is None else (reference.data_suffix, reference.split_suffix)
    rows = _free_rows(list(values), ending + data, split, {score["name"] for score in scores})
    names = [row + split for row in rows]
    some = of_training if reference is None else reference.of
    among = comparison.training if reference is None else reference.samples
    notes = [
        *_too_few(metric, count, names[: len(result.scores)]),
        *_some(among, some, names, copying=metric.plugin.owner.name == COPYING),
        *_flattered(comparison, reference, names[: len(result.scores)]),
        *result.notes,
    ]
    training = None
    if reference is None and comparison.training is not None:  # all that such a score is compared with
        training = {"count": len(comparison.training), "sha256": comparison.bench.sha256(comparison.training)}
    for name, row, (plain, value) in zip(names, rows, values.items(), strict=True):
        spread, meaning = result.spreads.get(plain), result.meanings.get(plain, Meaning())
        entry = {
            "name": name,
            "row": row,
            "value": value,
            "detail": plain not in result.scores,
            "better": metric.part.better if meaning.of_samples else "",
            "metric": owner.name,
            "parameters": metric.plain(),
            "against": None if reference is None else _described(reference, comparison.bench),
            "training": training,
            "network": metric.part.network,
            "samples": result.counts.get(plain, count),
            "source": evaluation.document["generated"]["source"],
            "samples_sha256": evaluation.document["generated"]["sha256"],
            "all_samples_sha256": evaluation.document["generated"]["all_sha256"],
            "error": spread.error if spread is not None else None,
            "error_method": spread.method if spread is not None else "",
            "error_freedom": None if spread is None or math.isinf(spread.freedom) else spread.freedom,
            "meaning": attrs.asdict(meaning),
            "protocol": result.protocol,
            "notes": notes,
            "seconds": seconds,
        }
        scores.append(entry)
        if spread is not None:
            evaluation.spreads[name] = spread
    figures = {f"{name}{ending.replace('_', '-')}": figure for name, figure in result.figures.items()}
    evaluation.figures |= figures
    files = [*evaluation.document["figures"], *(f"{name}.png" for name in figures)]
    evaluation.document["figures"] = list(dict.fromkeys(files))
    evaluation.document["leads"] |= {
        f"{name}.png": figure.lead for name, figure in figures.items() if figure.lead
    }


def _too_few(metric: Choice, count: int, names: Sequence[str]) -> list[str]:
    """Return a note for scores of fewer samples than published ones."""
    if count >= metric.part.customary:
        return []
    return [
        f"{', '.join(names)}: of {count:,} samples, and published numbers are of {metric.part.customary:,}; "
        f"not to be compared with those"
    ]


def _some(real: Dataset | None, available: int | None, names: Sequence[str], *, copying: bool) -> list[str]:
    """Return a note for scores against some of the available real samples."""
    if real is None or available is None or len(real) == available:
        return []
    some = f"{len(real):,} of {available:,} real samples, evenly spread over them; "
    if copying:
        return [f"copies are looked for among {some}copies of the others are not found"]
    return [f"{', '.join(names)}: against {some}do not compare with scores against all, such as published ones"]


def _flattered(comparison: Comparison, reference: Reference | None, names: Sequence[str]) -> list[str]:
    """Return a note for scores against images of which the samples were given parts."""
    origin = comparison.generated.conditions.origin
    if reference is None or reference.foreign or comparison.originals is None or origin is None:
        return []
    completing = int((origin < 0 if reference.split == "test" else origin >= 0).sum())
    if completing < FLATTERING * len(origin):
        return []
    return [
        f"{', '.join(names)}: too good, as {completing:,} of {len(origin):,} samples complete images of "
        f"{reference.name} and contain parts of them; metrics psnr, perceptual-distance and completion-fid "
        "score completions of held-out images (condition.held_out)"
    ]


def _described(reference: Reference, bench: Workbench) -> dict[str, Any]:
    return {
        "data": reference.data,
        "split": reference.split,
        "count": len(reference.samples),
        "sha256": bench.sha256(reference.samples),
    }


def _free_rows(names: Sequence[str], ending: str, split: str, taken: Collection[str]) -> list[str]:
    """Return the scores' names without their split, numbered if another metric has one of them already."""
    for number in itertools.count(1):
        rows = [f"{name}{'' if number == 1 else f'_{number}'}{ending}" for name in names]
        if not {row + split for row in rows} & set(taken):
            return rows
    raise AssertionError("numbers do not end")
