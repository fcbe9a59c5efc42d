"""The metrics, one after the other, and the document that says what they found and how."""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.evaluation.task import Reference, Task
from cswf_core.flow import boundary
from cswf_core.flow.memory import is_out_of_memory
from cswf_core.interfaces import Comparison, Dataset, Figure, Key, Result, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.recipe import Choice
from cswf_core.runs.record import describe_device, versions


@attrs.define(eq=False)
class Evaluated:
    """What an evaluation has found so far."""

    document: dict[str, Any]
    """What metrics.json says."""
    figures: dict[str, Figure] = attrs.field(factory=dict, repr=False)

    @property
    def scores(self) -> dict[str, float]:
        """The numbers by name."""
        return {score["name"]: score["value"] for score in self.document["scores"]}


def evaluate(
    generated: Dataset,
    task: Task,
    *,
    source: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    ending: str = "",
    tell: Tell | None = None,
) -> Evaluated:
    """Compute all metrics of a task; `source` says where samples come from, `ending` is put behind names."""
    bench = task.bench(tell)
    available = len(generated)
    if available > task.samples:
        chosen = Key(task.seed, "evaluated").open().host.permutation(available)[: task.samples]
        generated = generated.take(torch.from_numpy(chosen).sort().values)
    evaluated = Evaluated({"format": 1, "scores": []})
    for index, metric in enumerate(task.metrics):
        for reference in task.references[:1] if metric.part.once else task.references:
            comparison = Comparison(
                generated=generated,
                real=reference.samples,
                draw=Key(task.seed, "metric", index=index).open(device, dtype),
                training=task.training,
                held_out=task.held_out,
                originals=task.originals(generated),
                bench=bench,
            )
            against = None if metric.part.once else reference
            _compute(metric, comparison, against, ending, evaluated)
    evaluated.document |= {
        "generated": {
            "source": source,
            "count": len(generated),
            "available": available,
            "sha256": bench.sha256(generated),
        },
        "notes": _notes(evaluated.document["scores"]),
        "figures": [f"{name}.png" for name in evaluated.figures],
        **bench.used,
        "device": describe_device(device),
        "versions": versions(),
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    return evaluated


def merged(earlier: Any, later: dict[str, Any]) -> dict[str, Any]:
    """Return what metrics.json says after another evaluation: a score stays that was of more samples.

    An earlier document that is none is left out.
    """
    try:
        scores = {score["name"]: score for score in earlier["scores"]}
        for score in later["scores"]:
            if score["samples"] >= scores.get(score["name"], score)["samples"]:
                scores[score["name"]] = score
        figures = list(dict.fromkeys([*earlier["figures"], *later["figures"]]))
        notes = _notes(scores.values())
    except (TypeError, KeyError):
        return later
    return {**later, "scores": list(scores.values()), "notes": notes, "figures": figures}


def _notes(scores: Iterable[dict[str, Any]]) -> list[str]:
    """Return the notes of all scores, each once."""
    return list(dict.fromkeys(note for score in scores for note in score["notes"]))


def _compute(
    metric: Choice, comparison: Comparison, reference: Reference | None, ending: str, found: Evaluated
) -> None:
    """Compute one metric and enter its scores."""
    owner, began = metric.plugin.owner, time.perf_counter()
    with boundary.calling(owner, "compute"), _fitting(owner.name):
        result = boundary.check_result(metric.part.compute(comparison), owner)
    seconds = round(time.perf_counter() - began, 3)
    count = len(comparison.generated) if result.samples is None else result.samples
    ending = ("" if reference is None else reference.ending) + ending
    scores = found.document["scores"]
    for name, value in result.scores.items():
        entry = {
            "name": _free(name + ending, {score["name"] for score in scores}),
            "value": value,
            "better": metric.part.better,
            "metric": owner.name,
            "parameters": metric.plain(),
            "against": None if reference is None else _described(reference, comparison.bench),
            "samples": count,
            "protocol": result.protocol,
            "notes": [*_few(metric, count, result), *result.notes],
            "seconds": seconds,
        }
        scores.append(entry)
    found.figures |= dict(result.figures)


def _few(metric: Choice, count: int, result: Result) -> list[str]:
    """Say where numbers cannot be compared with published ones, which are of more samples."""
    if count >= metric.part.customary:
        return []
    names = ", ".join(result.scores)
    return [
        f"{names}: of {count:,} samples, and published numbers are of {metric.part.customary:,}; "
        f"not to be compared with those"
    ]


def _described(reference: Reference, bench: Workbench) -> dict[str, Any]:
    return {
        "data": reference.data,
        "split": reference.split,
        "count": len(reference.samples),
        "sha256": bench.sha256(reference.samples),
    }


def _free(name: str, taken: Collection[str]) -> str:
    """Return a score's name, numbered if another metric has it already."""
    numbered = (name if n == 1 else f"{name}_{n}" for n in itertools.count(1))
    return next(free for free in numbered if free not in taken)


@contextmanager
def _fitting(metric: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        hint = "score fewer samples (evaluate.samples, --count), or use another device"
        raise OutOfMemoryError(f"metric '{metric}' does not fit into memory; {hint}") from error
