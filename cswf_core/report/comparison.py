"""The sections of a page that set several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cswf_core.report import images, words
from cswf_core.report.html import Html, details, join, table, tag
from cswf_core.report.read import Run
from cswf_core.report.scores import Score
from cswf_core.report.sections import COLOURS, badge, computed, direction, player, rivals, section

FILES = ("run.json", "metrics.json", "samples.npz", "samples.png", "frames.npz", "recipe.yaml")
"""Files whose damage is told in the overview."""

UNCOMPARED = ("name", "description")
"""Keys of a recipe that say nothing about what was computed."""


def overview(runs: Sequence[Run]) -> Html:
    """Return what was run, a row for each run."""
    known = [words.facts(run) for run in runs]
    names = list(dict.fromkeys(name for facts in known for name in facts if name != "started"))
    rows = [
        [_titled(run, i), tag("td", badge(run)), *(facts.get(name, "") for name in names)]
        for i, (run, facts) in enumerate(zip(runs, known, strict=True))
    ]
    ends = [
        tag("p", f"{run.label}: {words.status(run)[1]}", class_=f"ending {words.status(run)[0]}")
        for run in runs
        if words.status(run)[1]
    ]
    content = (table(["run", "status", *names], rows, class_="overview"), *ends)
    return section("runs", "Runs", *content)


def scores(runs: Sequence[Run]) -> Html:
    """Return a row for each score and a column for each run, the best one marked where that can be told."""
    names = list(
        dict.fromkeys(
            score.name for run in runs if run.evaluation is not None for score in run.evaluation.scores
        )
    )
    rows = [_scores(name, runs) for name in names]
    told = [
        join(tag("h3", run.label), how)
        for run in runs
        if run.evaluation is not None and (how := computed(run.evaluation))
    ]
    head = ["score", *(_titled(run, i) for i, run in enumerate(runs))]
    content = [table(head, rows, class_="scores compared"), *rivals(runs), *_noted(runs)] if rows else []
    if told:
        content.append(details("How these were computed", *told))
    return section("metrics", "Scores", *content, problems=_damaged(runs))


def _scores(name: str, runs: Sequence[Run]) -> list[str]:
    found = [None if run.evaluation is None else run.evaluation.find(name) for run in runs]
    ways = {score.better for score in found if score is not None}
    better = ways.pop() if len(ways) == 1 else ""
    same = {_basis(run, score) for run, score in zip(runs, found, strict=True) if score is not None}
    values = [score.value for score in found if score is not None and math.isfinite(score.value)]
    best = None
    if better and len(set(values)) > 1 and len(same) == 1:  # of unlike things, nothing can be told
        best = min(values) if better == "lower" else max(values)
    cells = []
    for score in found:
        if score is None:
            cells.append(tag("td", "–", class_="n none"))
        elif score.value == best:
            mark = tag("span", "best", class_="mark")
            cells.append(tag("td", mark, " ", tag("b", words.number(score.value)), class_="n best"))
        else:
            cells.append(tag("td", words.number(score.value), class_="n"))
    base = name.removesuffix("_test")
    split = join(" ", tag("small", "held out")) if base != name else Html("")
    return [join(words.score(base), split, direction(better)), *cells]


def _basis(run: Run, score: Score) -> tuple[object, ...]:
    """Return what must be the same for two scores to be compared."""
    return score.data or run.data_name, score.digest, score.samples, str(score.parameters)


def _noted(runs: Sequence[Run]) -> list[Html]:
    """Return what evaluators must see, told in full view."""
    lines = [
        tag("p", tag("b", run.label), f": {note}")
        for run in runs
        if run.evaluation is not None
        for note in run.evaluation.notes
    ]
    return [tag("aside", *lines, class_="notes")] if lines else []


def _damaged(runs: Sequence[Run]) -> list[str]:
    return [f"{run.label}: {run.problems[name]}" for run in runs for name in FILES if name in run.problems]


def samples(runs: Sequence[Run]) -> Html:
    """Return the samples of all runs side by side."""
    shown = [images.samples(run, images.SAMPLE_BYTES * 2 // (len(runs) + 1), columns=8) for run in runs]
    return section("samples", "Samples", _side_by_side(runs, shown))


def flows(runs: Sequence[Run]) -> Html:
    """Return the frames of all runs side by side, under one slider."""
    shown = [images.frames(run, images.FRAME_BYTES * 4 // (3 * len(runs))) for run in runs]
    return section("flow", "Flow", player(_side_by_side(runs, shown)) if any(shown) else Html(""))


def differences(runs: Sequence[Run]) -> Html:
    """Return the keys of the recipes that are not the same in all runs, with the value of each run."""
    flat = [words.flattened(run.recipe) for run in runs]
    keys = dict.fromkeys(key for recipe in flat for key in recipe)
    rows = []
    for key in keys:
        values = [recipe.get(key, "–") for recipe in flat]
        if key not in UNCOMPARED and len(set(values)) > 1:
            rows.append([tag("code", key), *values])
    head = ["key", *(_titled(run, i) for i, run in enumerate(runs))]
    same = "The recipes are the same in every key."
    content = table(head, rows, class_="different") if rows else tag("p", same)
    return section("recipe", "Recipe differences", content)


def _side_by_side(runs: Sequence[Run], shown: Sequence[Html]) -> Html:
    cards = [
        tag("div", tag("h3", _titled(run, i)), content, class_="card")
        for i, (run, content) in enumerate(zip(runs, shown, strict=True))
        if content
    ]
    return tag("div", *cards, class_="cards") if cards else Html("")


def _titled(run: Run, index: int) -> Html:
    """Return a run's label with the colour that it has in curves."""
    return join(tag("span", "", class_=f"chip run-{index % COLOURS}", aria_hidden="true"), run.label)
