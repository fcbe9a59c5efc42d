"""Tables of scores to paste: runs beside one another, or all scores of one document.

A row is a group of runs that differ in their seed only, a column a score; a number is the best of its column
only beyond noise. Five formats: plain letters, CSV, Markdown, LaTeX and JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

from cswf_core.errors import RunError, did_you_mean, excerpt
from cswf_core.recipe.citations import Citation
from cswf_core.runs.printing import json_text
from cswf_core.scores import captions
from cswf_core.scores.differences import CONFIDENCE, best
from cswf_core.scores.document import Score, mapping, of_json
from cswf_core.scores.groups import Group, grouped, listed
from cswf_core.scores.layout import Cell, Grid, Heading, comma_separated, latex, markdown
from cswf_core.scores.layout import plain as in_plain_letters
from cswf_core.scores.quantities import quantity
from cswf_core.scores.replicas import Summary
from cswf_core.scores.scored import ScoredRun

Format = Literal["table", "csv", "markdown", "latex", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)

WRITERS: dict[str, Callable[[Grid], str]] = {"table": in_plain_letters, "markdown": markdown, "latex": latex}
"""Formats that a grid of cells is written in."""

MARK = f"better than all others by more than noise ({CONFIDENCE:.0%} intervals)"
"""What it means that a number is the best."""

COLUMNS = [
    "run",
    "score",
    "mean",
    "spread",
    "spread_method",
    "n",
    "seeds",
    "best",
    "better",
    "share",
    "samples",
    "metric",
    "data",
    "split",
    "reference_count",
    "reference_sha256",
    "parameters",
    "evaluation_seed",
    "precision",
    "device",
    "cswf",
    "torch",
    "commit",
    "protocol",
]
"""Columns of CSV for runs."""

OF_DOCUMENT = [
    {"mean": "value", "spread": "error", "spread_method": "error_method"}.get(column, column)
    for column in COLUMNS
    if column not in ("run", "n", "seeds", "best")
]
"""Columns of CSV for one document."""


@attrs.frozen
class ScoreTable:
    """Scores of groups of runs, ready to be written."""

    groups: Sequence[Group]
    names: Sequence[str]
    """The scores, a column each."""
    firsts: Mapping[str, Summary]
    """A summary of each score, for its name and meaning."""
    told: Sequence[str] = ()
    """Sentences on what is wrong with the runs."""

    def written(self, format: Format, works: Sequence[Citation] = ()) -> str:
        """Return the table in a format, without a line break at its end.

        LaTeX has BibTeX of the works behind the runs as comments, JSON has all that is known of them.
        """
        if format == "csv":
            return comma_separated(COLUMNS, self.records())
        if format == "json":
            return json_text({**self.plain(), "citations": [work.plain() for work in works]})
        comments = _commented("\n\n".join(map(str, works))) if format == "latex" and works else []
        return "\n".join([WRITERS[format](self.grid()), *comments])

    def grid(self) -> Grid:
        """Return the table as cells: the group's label, then its scores."""
        splits = {score.split for score in self._scores() if score.split}
        heads = [_heading(self.firsts[name].first, apart=len(splits) > 1) for name in self.names]
        winners = {name: self.best(name) for name in self.names}
        rows = tuple(
            (group.label, *(_cell(group.summaries.get(name), winners[name] == i) for name in self.names))
            for i, group in enumerate(self.groups)
        )
        labels = {group.first.name for group in self.groups}
        return Grid(
            headings=(Heading(""), *heads),
            rows=rows,
            caption=tuple(self.caption()),
            name=labels.pop() if len(labels) == 1 else "scores",
            mark=MARK if any(number is not None for number in winners.values()) else "",
        )

    def best(self, name: str) -> int | None:
        """Return which group has the best score beyond noise; None: none has, or they cannot be compared."""
        columns = [group.summaries.get(name) for group in self.groups]
        bases = {summary.basis for summary in columns if summary is not None}
        if len(bases) != 1 or None in bases or not self.firsts[name].first.of_samples:
            return None
        estimates = [None if summary is None else summary.ranked for summary in columns]
        return best(estimates, self.firsts[name].first.better)

    def caption(self) -> list[str]:
        """Return the sentences below the table."""
        scores = self._scores()
        return [
            *captions.protocols(scores, [first.first.row for first in self.firsts.values()]),
            *captions.spreads(self._methods()),
            *captions.seeds({group.label: group.seeds for group in self.groups}),
            *captions.circumstances(scores),
            *self._copying(),
        ]

    def _copying(self) -> list[str]:
        """Return a sentence on the groups that are not ranked."""
        copying = [
            group.label
            for group in self.groups
            if any(group.summaries[name].ranked is None for name in self.names if name in group.summaries)
        ]
        if not copying or len(self.groups) == 1:
            return []
        return [f"{captions.listed(copying)}: not ranked, as some samples are copies of training images."]

    def _methods(self) -> dict[str, list[str]]:
        """Return the scores by what their ± is; those that have none under an empty text."""
        methods: dict[str, list[str]] = {}
        for name in self.names:
            there = {group.label: group.summaries[name] for group in self.groups if name in group.summaries}
            having = {label: summary for label, summary in there.items() if not summary.remark}
            uniform = len({summary.spread_method for summary in having.values()}) == 1
            for label, summary in having.items():
                words = captions.in_words(name)
                methods.setdefault(summary.spread_method, []).append(
                    words if uniform else f"{words} of {label}"
                )
        return methods

    def warnings(self) -> list[str]:
        """Return a sentence for each thing that a reader of the numbers could be misled by."""
        told = [*self.told]
        for name in self.names:
            told += self._incomparable(name)
            for group in self.groups:
                count = len(group.summaries[name].scores) if name in group.summaries else 0
                if 0 < count < len(group.runs):
                    told.append(f"{group.label}: {name} is of {count} of {len(group.runs)} runs")
        having: dict[str, list[str]] = {}
        for group in self.groups:
            for note in dict.fromkeys(note for score in self._scores([group]) for note in score.notes):
                having.setdefault(note, []).append(group.label)
        for note, labels in having.items():
            whose = "" if len(labels) == len(self.groups) else f"{captions.listed(labels)}: "
            told.append(f"note: {whose}{note}")
        return told

    def _incomparable(self, name: str) -> list[str]:
        """Return a sentence if the runs' scores of a name were computed from or by different things."""
        values: dict[str, dict[str, list[str]]] = {}
        for group in self.groups:
            for score in group.summaries[name].scores if name in group.summaries else ():
                for trait, value in score.traits.items():
                    values.setdefault(trait, {}).setdefault(value, []).append(group.label)
        parts = [
            f"{trait} ({'; '.join(f'{_brief(v)}: {captions.listed(runs)}' for v, runs in each.items())})"
            for trait, each in values.items()
            if len(each) > 1
        ]
        return [f"{name} cannot be compared: different {captions.listed(parts)}"] if parts else []

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each score of each group, with the columns of CSV."""
        return [
            {
                "run": group.label,
                "n": len(summary.scores),
                "seeds": " ".join(map(str, group.seeds_of(name))),
                "best": self.best(name) == i,
                **_record(summary.first),
                "mean": summary.mean,
                "spread": summary.spread,
                "spread_method": summary.spread_method,
            }
            for i, group in enumerate(self.groups)
            for name, summary in group.summaries.items()
            if name in self.names
        ]

    def plain(self) -> dict[str, Any]:
        """Return everything, as JSON has it."""
        rows = []
        for i, group in enumerate(self.groups):
            row = group.plain(self.names)
            for name, entry in row["scores"].items():
                score = group.summaries[name].first
                entry |= {"best": self.best(name) == i, **_record(score), "parameters": score.parameters}
            rows.append(row)
        return {"rows": rows, "caption": self.caption(), "warnings": self.warnings()}

    def _scores(self, groups: Sequence[Group] | None = None) -> list[Score]:
        """Return every single score in the table, or of some groups, column by column."""
        return [
            score
            for name in self.names
            for group in groups or self.groups
            if name in group.summaries
            for score in group.summaries[name].scores
        ]


def score_table(
    runs: Sequence[ScoredRun], wanted: Sequence[str] = (), against: str = "", told: Sequence[str] = ()
) -> ScoreTable:
    """Return a table of runs: all scores but details, or those `wanted`, against `train`, `test` or both.

    A wanted score is named with or without its split. Raises `RunError` for one that no run has. `told` is what
    `read_scored` has told of the runs.
    """
    groups = grouped(runs)
    firsts = listed(groups)
    chosen = {name: summary.first for name, summary in firsts.items() if _is_against(summary.first, against)}
    where = f" against '{against}'" if against else ""
    names: list[str] = []
    for name in wanted:
        matching = [each for each, score in chosen.items() if name in (each, score.row)]
        if not matching:
            known = {word for each, score in chosen.items() for word in (each, score.row)}
            raise RunError(f"no run has a score '{excerpt(name)}'{where}{did_you_mean(name, known)}")
        names += matching
    if not wanted:
        names = [name for name, score in chosen.items() if not score.detail]
    if not names:
        raise RunError(f"no run has a score{where}; --score names a detail, such as {next(iter(firsts))}")
    return ScoreTable(groups, list(dict.fromkeys(names)), firsts, told)


def _commented(text: str) -> list[str]:
    """Return lines behind the sign that LaTeX takes for a comment."""
    return [f"% {line.removeprefix('% ')}".rstrip() for line in text.split("\n")]


def _is_against(score: Score, against: str) -> bool:
    """Say whether a score is against a split; one that compares with nothing is there with every split."""
    return not against or not score.data or score.held_out == (against == "test")


def _heading(score: Score, *, apart: bool) -> Heading:
    """Return a score's name, with its split if columns are `apart` by it, and its unit."""
    remarks = [score.split if apart else "", "%" if score.share else ""]
    behind = ", ".join(filter(None, remarks))
    words = captions.in_words(score.row)
    return Heading(f"{words} ({behind})" if behind else words, score.better)


def _brief(value: str) -> str:
    """Return the value of a trait for a sentence; of a digest the first digits."""
    return value[:12] if re.fullmatch("[0-9a-f]{64}", value) else excerpt(value) or "none"


def _cell(summary: Summary | None, is_best: bool) -> Cell:
    if summary is None:
        return None
    return summary.printed(summary.spread, share=summary.first.share, best=is_best)


def _record(score: Score) -> dict[str, Any]:
    """Return what a score depends on, with the columns of CSV."""
    settings, device, versions = (
        mapping(score.circumstances.get(key)) for key in ("settings", "device", "versions")
    )
    return {
        "score": score.name,
        "better": score.better,
        "share": score.share,
        "samples": score.samples,
        "metric": score.metric,
        "data": score.data,
        "split": score.split,
        "reference_count": score.count,
        "reference_sha256": score.digest,
        "parameters": json.dumps(score.parameters, ensure_ascii=False) if score.parameters else "",
        "evaluation_seed": settings.get("seed"),
        "precision": settings.get("precision"),
        "device": device.get("name") or device.get("type"),
        "cswf": versions.get("cswf"),
        "torch": versions.get("torch"),
        "commit": score.circumstances.get("commit"),
        "protocol": score.protocol,
    }


def document_table(document: Mapping[str, Any], format: Format) -> str:
    """Return all scores of one metrics.json, details too, in a format; raise `ValueError` if it is none."""
    scores = of_json(dict(document)).scores
    if format == "json":
        return json_text(document)
    if format == "csv":
        spread = {"value": "value", "error": "error", "error_method": "error_method"}
        records = [{**_record(each), **{k: getattr(each, v) for k, v in spread.items()}} for each in scores]
        return comma_separated(OF_DOCUMENT, records)
    methods: dict[str, list[str]] = {}
    for score in scores:
        methods.setdefault(Summary((score,)).spread_method, []).append(score.name)
    rows = [
        (
            str(Heading(f"{score.name} (%)" if score.share else score.name, score.better)),
            score.against or None,
            quantity(score.value, score.error, share=score.share),
            None if score.samples is None else f"{score.samples:,}",
        )
        for score in scores
    ]
    caption = [*captions.protocols(scores), *captions.spreads(methods), *captions.circumstances(scores)]
    heads = tuple(map(Heading, ("score", "against", "value", "samples")))
    return WRITERS[format](Grid(heads, tuple(rows), tuple(caption), texts=2))
