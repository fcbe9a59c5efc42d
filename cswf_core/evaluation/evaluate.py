"""The metrics, one after the other, and the document that says what they found and how."""

from __future__ import annotations

import datetime
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import OutOfMemoryError
from cswf_core.evaluation.task import Reference, Task
from cswf_core.interfaces import Comparison, Dataset, Figure, Key, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.recipe import Choice
from cswf_core.runs.record import describe_device, versions


@attrs.define(eq=False)
class Evaluated:
    """What an evaluation has found so far."""

    document: dict[str, Any]
    """What metrics.json says."""
    figures: dict[str, Figure] = attrs.field(factory=dict, repr=False)
    """Pictures by name that nobody has drawn yet."""

    @property
    def scores(self) -> dict[str, float]:
        """The numbers by name, without details."""
        return {score["name"]: score["value"] for score in self.document["scores"] if not score["detail"]}


Keep = Callable[[Evaluated], object]


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
) -> Evaluated:
    """Compute all metrics of a task.

    `source` says where samples come from, and `ending` is put behind the names of scores and figures. `keep` is
    handed what has been found, at first and after every metric, so that it is not lost if a later one fails.
    """
    bench = task.bench(tell)
    available = len(generated)
    generated = generated.take(_chosen(generated, task)) if available > task.samples else generated
    about = {
        "source": source,
        "count": len(generated),
        "available": available,
        "sha256": bench.sha256(generated),
    }
    evaluated = Evaluated({"format": 1, "generated": about, "scores": [], "figures": []})
    _sign(evaluated, bench, device)
    if keep is not None:
        keep(evaluated)
    for metric in task.metrics:
        name = json.dumps(metric.plain(), sort_keys=True, default=str)
        for reference in task.references[:1] if metric.part.once else task.references:
            comparison = Comparison(
                generated=generated,
                real=reference.samples,
                draw=Key(task.seed, f"metric {name}").open(device, dtype),
                training=task.training,
                held_out=task.held_out,
                originals=task.originals(generated),
                bench=bench,
            )
            against = None if metric.part.once else reference
            _compute(metric, comparison, against, ending, evaluated)
        _sign(evaluated, bench, device)
        if keep is not None:
            keep(evaluated)
    return evaluated


def _chosen(generated: Dataset, task: Task) -> Tensor:
    """Return which samples to score of too many: completions of held-out images, then others at random."""
    order = torch.from_numpy(Key(task.seed, "evaluated").open().host.permutation(len(generated)))
    origin = generated.conditions.origin
    if origin is not None:
        held_out = origin[order] < 0
        order = torch.cat([order[held_out], order[~held_out]])
    return order[: task.samples].sort().values


def _sign(evaluated: Evaluated, bench: Workbench, device: torch.device) -> None:
    """Write down what the scores so far depend on."""
    evaluated.document |= {
        "notes": _notes(evaluated.document["scores"]),
        **bench.used,
        "device": describe_device(device),
        "versions": versions(),
        "finished": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


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
        weights = {key: earlier[key] for key in ("weights",) if key in earlier}
    except (TypeError, KeyError):
        return later
    return {**weights, **later, "scores": list(scores.values()), "notes": notes, "figures": figures}


def _notes(scores: Iterable[dict[str, Any]]) -> list[str]:
    """Return the notes of all scores, each once."""
    return list(dict.fromkeys(note for score in scores for note in score["notes"]))


def _compute(
    metric: Choice, comparison: Comparison, reference: Reference | None, ending: str, found: Evaluated
) -> None:
    """Compute one metric and enter its scores."""
    owner, began = metric.plugin.owner, time.perf_counter()
    with _fitting(owner.name):
        result = metric.checked.compute(comparison)
    seconds = round(time.perf_counter() - began, 3)
    count = len(comparison.generated) if result.samples is None else result.samples
    endings = ending + ("" if reference is None else reference.ending)
    scores = found.document["scores"]
    values = {**result.scores, **result.details}
    names = _free(list(values), endings, {score["name"] for score in scores})
    notes = [*_few(metric, count, names[: len(result.scores)]), *result.notes]
    for name, (plain, value) in zip(names, values.items(), strict=True):
        entry = {
            "name": name,
            "value": value,
            "detail": plain not in result.scores,
            "better": metric.part.better,
            "metric": owner.name,
            "parameters": metric.plain(),
            "against": None if reference is None else _described(reference, comparison.bench),
            "samples": count,
            "samples_sha256": found.document["generated"]["sha256"],
            "protocol": result.protocol,
            "notes": notes,
            "seconds": seconds,
        }
        scores.append(entry)
    figures = {f"{name}{ending.replace('_', '-')}": figure for name, figure in result.figures.items()}
    found.figures |= figures
    found.document["figures"] += [
        f"{name}.png" for name in figures if f"{name}.png" not in found.document["figures"]
    ]


def _few(metric: Choice, count: int, names: Sequence[str]) -> list[str]:
    """Say where numbers cannot be compared with usual ones, which are of more samples."""
    if count >= metric.part.customary:
        return []
    return [
        f"{', '.join(names)}: of {count:,} samples, and published numbers are of {metric.part.customary:,}; "
        f"not to be compared with those"
    ]


def _described(reference: Reference, bench: Workbench) -> dict[str, Any]:
    return {
        "data": reference.data,
        "split": reference.split,
        "count": len(reference.samples),
        "sha256": bench.sha256(reference.samples),
    }


def _free(names: Sequence[str], ending: str, taken: Collection[str]) -> list[str]:
    """Return the names of scores with their ending, and with a number if another metric has one of them."""
    for number in itertools.count(1):
        found = [f"{name}{'' if number == 1 else f'_{number}'}{ending}" for name in names]
        if not set(found) & set(taken):
            return found
    raise AssertionError("numbers do not end")


@contextmanager
def _fitting(metric: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        hint = "score fewer samples (evaluate.samples, --count), or use another device"
        raise OutOfMemoryError(f"metric '{metric}' does not fit into memory; {hint}") from error
