"""The evaluation: metrics computed one after the other, and the document with their scores, `metrics.json`."""

from __future__ import annotations

import datetime
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import attrs
import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.evaluation.samples import Reference
from cswf_core.evaluation.task import Task
from cswf_core.interfaces import Comparison, Dataset, Figure, Key, Workbench
from cswf_core.interfaces.metric import ShareOut, Tell
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.recipe import Choice
from cswf_core.runs.record import describe_device, versions


@attrs.define(eq=False)
class Evaluation:
    """Scores so far, and figures to draw."""

    document: dict[str, Any]
    """The content of metrics.json."""
    figures: dict[str, Figure] = attrs.field(factory=dict, repr=False)
    """Figures by name that are not drawn yet."""

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
    tell: Tell | None = None,
    keep: Keep | None = None,
    share_out: ShareOut | None = None,
) -> Evaluation:
    """Compute all metrics of a task.

    `source` is where the samples come from, and `ending` is put behind the names of scores and figures. `keep`
    gets the scores so far, at first and after every metric, so that they are not lost if a later one fails.
    `share_out` has several devices compute features.
    """
    bench = attrs.evolve(task.bench(tell), share_out=share_out)
    available = len(generated)
    generated = generated.take(task.subset(generated)) if available > task.samples else generated
    about = {
        "source": source,
        "count": len(generated),
        "available": available,
        "sha256": bench.sha256(generated),
    }
    evaluation = Evaluation({"format": 1, "generated": about, "scores": [], "figures": []})
    _describe(evaluation, bench, device)
    if keep is not None:
        keep(evaluation)
    for metric in task.metrics:
        name = json.dumps(metric.plain(), sort_keys=True, default=str)
        for reference in task.references[:1] if metric.part.once else task.references:
            comparison = Comparison(
                generated=generated,
                real=reference.samples,
                draw=Key(task.seed, f"metric {name}").open(device, dtype),
                training=task.training,
                training_called=task.training_called,
                mirrored=task.mirrored,
                held_out=task.held_out,
                originals=task.originals(generated),
                bench=bench,
            )
            against = None if metric.part.once else reference
            _compute(metric, comparison, against, ending, evaluation, task.of_training)
        _describe(evaluation, bench, device)
        if keep is not None:
            keep(evaluation)
    return evaluation


def _describe(evaluation: Evaluation, bench: Workbench, device: torch.device) -> None:
    """Add to the document what the scores so far depend on."""
    evaluation.document |= {
        "notes": _notes(evaluation.document["scores"]),
        **bench.used,
        "device": describe_device(device),
        "versions": versions(),
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def merge_documents(earlier: Any, later: dict[str, Any]) -> dict[str, Any]:
    """Return the document after another evaluation: of two scores of one name, that of more samples stays.

    An earlier document that is damaged is left out.
    """
    try:
        scores = {score["name"]: _with_row(score) for score in earlier["scores"]}
        for score in later["scores"]:
            if score["samples"] >= scores.get(score["name"], score)["samples"]:
                scores[score["name"]] = score
        figures = list(dict.fromkeys([*earlier["figures"], *later["figures"]]))
        notes = _notes(scores.values())
        weights = {key: earlier[key] for key in ("weights",) if key in earlier}
    except (TypeError, KeyError, AttributeError):
        return later
    return {**weights, **later, "scores": list(scores.values()), "notes": notes, "figures": figures}


def _with_row(score: dict[str, Any]) -> dict[str, Any]:
    """Return a score with its row, which earlier files do not have."""
    is_test = (score.get("against") or {}).get("split") == "test"
    return {"row": score["name"].removesuffix("_test") if is_test else score["name"], **score}


def _notes(scores: Iterable[dict[str, Any]]) -> list[str]:
    """Return the notes of all scores, each once."""
    return list(dict.fromkeys(note for score in scores for note in score["notes"]))


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
    try:
        result = metric.checked.compute(comparison)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        hint = "score fewer samples (evaluate.samples, --count), or use another device"
        raise OutOfMemoryError(f"metric '{owner.name}' does not fit into memory; {hint}") from error
    seconds = round(time.perf_counter() - began, 3)
    count = len(comparison.generated) if result.samples is None else result.samples
    scores, values = evaluation.document["scores"], {**result.scores, **result.details}
    data, split = ("", "") if reference is None else (reference.data_suffix, reference.split_suffix)
    rows = _free_rows(list(values), ending + data, split, {score["name"] for score in scores})
    names = [row + split for row in rows]
    some = of_training if reference is None else reference.of
    among = comparison.training if reference is None else reference.samples
    notes = [*_too_few(metric, count, names[: len(result.scores)]), *_some(among, some, names), *result.notes]
    for name, row, (plain, value) in zip(names, rows, values.items(), strict=True):
        entry = {
            "name": name,
            "row": row,
            "value": value,
            "detail": plain not in result.scores,
            "better": metric.part.better,
            "metric": owner.name,
            "parameters": metric.plain(),
            "against": None if reference is None else _described(reference, comparison.bench),
            "samples": count,
            "samples_sha256": evaluation.document["generated"]["sha256"],
            "protocol": result.protocol,
            "notes": notes,
            "seconds": seconds,
        }
        scores.append(entry)
    figures = {f"{name}{ending.replace('_', '-')}": figure for name, figure in result.figures.items()}
    evaluation.figures |= figures
    files = [*evaluation.document["figures"], *(f"{name}.png" for name in figures)]
    evaluation.document["figures"] = list(dict.fromkeys(files))


def _too_few(metric: Choice, count: int, names: Sequence[str]) -> list[str]:
    """Return a note for scores of fewer samples than published ones."""
    if count >= metric.part.customary:
        return []
    return [
        f"{', '.join(names)}: of {count:,} samples, and published numbers are of {metric.part.customary:,}; "
        f"not to be compared with those"
    ]


def _some(real: Dataset | None, available: int | None, names: Sequence[str]) -> list[str]:
    """Return a note for scores against some of the available real samples."""
    if real is None or available is None:
        return []
    return [
        f"{', '.join(names)}: against {len(real):,} of {available:,} real samples, evenly "
        "spread, as memory does not hold them all; not to be compared with scores against all"
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
