"""Scores of several runs beside each other: a column for each, seeds of one recipe taken together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from cswf_core.recipe.render import flattened
from cswf_core.report.facts import versions
from cswf_core.report.published import Ours, charts
from cswf_core.report.read import ReportedRun
from cswf_core.report.scores import FIRST, TITLES, notes, protocols
from cswf_core.report.section import Section, problems_of
from cswf_core.scores import captions
from cswf_core.scores.captions import in_words as score_in_words
from cswf_core.scores.differences import best
from cswf_core.scores.document import ASPECTS
from cswf_core.scores.quantities import measured
from cswf_core.scores.replicas import Summary, common_label, groups, summaries

COMPARED = ("run.json", "metrics.json", "samples.npz", "samples.png", "frames.npz", "recipe.yaml")
"""Files whose damage is told beside the scores of several runs."""

UNCOMPARED = ("name", "description")
"""Keys of a recipe that say nothing about what was computed."""


@attrs.frozen(eq=False)
class Column:
    """One run, or several that differ in their seed only."""

    label: str
    runs: Sequence[ReportedRun]
    scores: Mapping[str, Summary]
    """By name."""

    @property
    def seeds(self) -> str:
        """The seeds that it is taken over, in words; nothing for a single run."""
        if len(self.runs) < 2:
            return ""
        seeds = [run.recipe.get("seed", run.facts.get("seed")) for run in self.runs]
        return f"{len(self.runs)} seeds: {captions.listed(seeds, most=12)}"


@attrs.frozen
class Cell:
    """A score in its column."""

    text: str
    best: bool = False


@attrs.frozen
class ComparisonRow:
    """A score of all columns."""

    name: str
    held_out: bool
    better: str
    sentence: str
    detail: bool
    aspect: str
    cells: Sequence[Cell]
    unranked: str = ""
    """Why the best of all is not marked, although they differ: a key of REASONS; nothing: there is no need."""


REASONS = {
    "noise": "Differences within the noise are not ranked: {}.",
    "unknown": "Not ranked, as no uncertainty is known: {}. Several seeds of each recipe would tell.",
    "copying": "Runs with copies of training images among their samples are not ranked: {}.",
    "unlike": "Not ranked, as they were not computed alike: {}.",
}
"""Why no score of a row is called the best → a sentence for all such rows."""


def columns(runs: Sequence[ReportedRun]) -> list[Column]:
    """Return the columns of a table of runs, each with a label of its own."""
    members = [[runs[number] for number in group] for group in groups([run.recipe for run in runs])]
    choices = (
        [group[0].label if len(group) == 1 else group[0].name for group in members],
        [common_label([run.label for run in group], [run.path for run in group]) for group in members],
    )
    first = [group[0].label for group in members]
    labels = next((labels for labels in choices if len(set(labels)) == len(members)), first)
    return [
        Column(label, group, summaries([run.evaluation for run in group]))
        for label, group in zip(labels, members, strict=True)
    ]


def metrics_compared(runs: Sequence[ReportedRun]) -> Section:
    """Return a row for each score and a column for each recipe, the best one marked where noise allows it."""
    listed = columns(runs)
    names = dict.fromkeys(name for column in listed for name in column.scores)
    rows = [_row(name, listed) for name in names]
    plain = [row for row in rows if not row.detail]
    computed = [(run.label, protocols(run.evaluation), run.evaluation_facts) for run in runs]
    content = {
        "columns": listed,
        "groups": _by_aspect(plain),
        "details": [row for row in rows if row.detail],
        "seeds": any(column.seeds for column in listed),
        "unranked": _unranked(plain),
        "rivals": charts(_ours(listed), "These runs"),
        "notes": [(run.label, note) for run in runs for note in notes(run.evaluation)],
        "evaluations": [each for each in computed if any(each[1:])],
    }
    told = problems_of(runs, *COMPARED)
    return Section("metrics", "Scores", "scores.metrics_compared", content if rows else None, told)


def _by_aspect(rows: Sequence[ComparisonRow]) -> list[tuple[str, list[ComparisonRow]]]:
    tables = [(TITLES[aspect], [row for row in rows if row.aspect == aspect]) for aspect in ASPECTS]
    return [(title, chosen) for title, chosen in tables if chosen]


def _row(name: str, listed: Sequence[Column]) -> ComparisonRow:
    pairs = [(column, column.scores.get(name)) for column in listed]
    present = [(column, summary) for column, summary in pairs if summary is not None]
    ways = {summary.first.better for _, summary in present}
    better = ways.pop() if len(ways) == 1 else ""
    crowned, unranked = _ranked(present, better)
    first = present[0][1].first
    return ComparisonRow(
        name=first.row,
        held_out=first.held_out,
        better=better,
        sentence=next((summary.first.sentence for _, summary in present if summary.first.sentence), ""),
        detail=all(summary.first.detail for _, summary in present),
        aspect=first.aspect,
        cells=[Cell("") if s is None else Cell(_in_words(column, s), s is crowned) for column, s in pairs],
        unranked=unranked,
    )


def _in_words(column: Column, summary: Summary) -> str:
    text = measured(summary.mean, summary.spread, share=summary.first.share)
    missing = len(column.runs) - len(summary.scores)
    remark = f"{len(summary.scores)} of {len(column.runs)} seeds" if missing else summary.remark
    return f"{text} ({remark})" if remark else text


def _ranked(present: Sequence[tuple[Column, Summary]], better: str) -> tuple[Summary | None, str]:
    """Return the best score of a row, if it is that beyond noise, else why there is none."""
    scores = [summary for _, summary in present]
    if not better or len(scores) < 2 or not all(score.of_samples for each in scores for score in each.scores):
        return None, ""
    bases = {(summary.basis, summary.first.data or column.runs[0].data_name) for column, summary in present}
    if len(bases) > 1 or None in (summary.basis for summary in scores):
        return None, "unlike"
    estimates = [summary.estimate for summary in scores]
    number = best([summary.ranked for summary in scores], better)
    crowned = None if number is None else scores[number]
    if any(summary.ranked is None for summary in scores):
        return crowned, "copying"
    if crowned is not None or len({summary.mean for summary in scores}) == 1:
        return crowned, ""
    return None, "noise" if all(each.error is not None for each in estimates) else "unknown"


def _unranked(rows: Sequence[ComparisonRow]) -> list[str]:
    """Return a sentence for each reason for which scores that differ are not ranked."""
    sentences = []
    for reason, sentence in REASONS.items():
        names = [_named(row) for row in rows if row.unranked == reason]
        if names:
            sentences.append(sentence.format(captions.listed(names, most=6)))
    return sentences


def _named(row: ComparisonRow) -> str:
    return f"{score_in_words(row.name)}{' held out' if row.held_out else ''}"


def _ours(listed: Sequence[Column]) -> list[Ours]:
    return [
        Ours(column.label, column.runs[0].data_name, column.scores[FIRST], f"run-{column.runs[0].colour}")
        for column in listed
        if FIRST in column.scores
    ]


def differences(runs: Sequence[ReportedRun]) -> Section:
    """Return the keys of the recipes that are not the same in all runs, with the value of each run."""
    rows = _differing([flattened(run.recipe) for run in runs])
    content = {"runs": runs, "rows": rows, "same": "The recipes are the same in every key.", "all": []}
    return Section("recipe", "Recipe differences", "sections.differences", content)


def versions_compared(runs: Sequence[ReportedRun]) -> Section:
    """Return the versions and digests of all runs: those that differ in sight, the others folded away."""
    tables = [versions(run) for run in runs]
    rows = _differing(tables)
    names = dict.fromkeys(name for table in tables for name in table)
    same = [(name, [table.get(name, "–") for table in tables]) for name in names]
    unlike = {name for name, _ in rows}
    content: dict[str, Any] = {
        "runs": runs,
        "rows": rows,
        "same": "All versions and digests are the same.",
        "all": [(name, values[0]) for name, values in same if name not in unlike],
    }
    return Section("versions", "Versions", "sections.differences", content if names else None)


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return the keys of which not all tables have one value, with these values."""
    keys = dict.fromkeys(key for table in tables for key in table if key not in UNCOMPARED)
    values = {key: [table.get(key, "–") for table in tables] for key in keys}
    return [(key, row) for key, row in values.items() if len(set(map(str, row))) > 1]
