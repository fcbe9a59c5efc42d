"""Tables of scores to paste: runs beside one another, or all scores of one document.

A row is a group of runs that differ in their seed only, a column a score; a number is the best of its column
only beyond noise. Five formats: plain letters, CSV, Markdown, LaTeX and JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs

from cswf_core.errors import RunError, did_you_mean, excerpt
from cswf_core.recipe.citations import Citation
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import json_text
from cswf_core.runs.scores import Score, of_json
from cswf_core.scores.layout import Cell, Grid, comma_separated, heading, latex, plain_or_markdown, quantity
from cswf_core.scores.replicas import CONFIDENCE, Group, Summary, best, first_summaries, grouped

Format = Literal["table", "csv", "markdown", "latex", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)

ACRONYMS = {"fid": "FID", "kid": "KID", "psnr": "PSNR", "l2": "L2", "wasserstein": "Wasserstein"}
"""Parts of scores' names that are written otherwise."""

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


def in_words(name: str) -> str:
    """Return a score's name as print has it: `class FID`."""
    return " ".join(ACRONYMS.get(part, part) for part in name.split("_"))


def listed(words: Iterable[object], last: str = " and ", most: int | None = None) -> str:
    """Return words as a sentence lists them, each once: `a, b and c`; of many, `most` and how many more."""
    each = list(dict.fromkeys(map(str, words))) or [""]
    *others, final = each if most is None or len(each) <= most else [*each[:most], f"{len(each) - most} more"]
    return f"{', '.join(others)}{last}{final}" if others else final


def protocols(scores: Sequence[Score], known: Sequence[str] = ()) -> list[str]:
    """Return a sentence for each protocol, without what it says of other scores, among those `known`."""
    alike: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        alike.setdefault((score.metric, score.protocol), []).append(score)
    return [_protocol(group, known) for group in alike.values()]


def _protocol(scores: Sequence[Score], known: Sequence[str]) -> str:
    names = listed(in_words(score.row) for score in scores)
    rows = tuple(score.row for score in scores)
    said = "; ".join(part for part in scores[0].protocol.split("; ") if _concerns(part, rows, known))
    counts = listed(f"{score.samples:,}" for score in scores if score.samples is not None)
    references = listed(score.against for score in scores if score.data)
    of = f"{counts} samples" if counts and f"{counts} samples" not in said else ""
    against = f"against {references}" if references else ""
    parts = filter(None, (said, " ".join(filter(None, (of, against)))))
    return f"{names[:1].upper()}{names[1:]}: {'; '.join(parts) or 'nothing says how'}."


def _concerns(part: str, rows: Sequence[str], known: Sequence[str]) -> bool:
    """Say whether a part of a protocol, perhaps `NAME: …`, concerns one of the rows; see `Result.protocol`."""
    head = re.match(r"(\w+): ", part)
    named = [row for row in known if head is not None and row.startswith(head[1])]
    return not named or any(row in named for row in rows)


def spreads(methods: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what ± means; `methods` has for each way of estimating it the scores that have it so.

    The empty way is that of scores without ±.
    """
    known = {method: names for method, names in methods.items() if method}
    if len(known) == 1:
        sentences = [f"± is the {method}." for method in known]
    else:
        sentences = [f"± of {listed(names)} is the {method}." for method, names in known.items()]
    if "" in methods and known:
        sentences.append(f"Of numbers without ± ({listed(methods[''])}) nobody knows how sure they are.")
    return sentences


def seeds(by_label: Mapping[str, Sequence[int]]) -> list[str]:
    """Return which seeds the runs of each row have; nothing where no seed is known."""
    known = {label: ", ".join(map(str, each)) for label, each in by_label.items() if each}
    if not known:
        return []
    if len(set(known.values())) == 1 and len(known) == len(by_label):
        several = any(len(each) > 1 for each in by_label.values())
        return [f"{'Seeds' if several else 'Seed'} {next(iter(known.values()))}."]
    return [f"Seeds: {'; '.join(f'{label}: {each}' for label, each in known.items())}."]


def circumstances(scores: Sequence[Score]) -> list[str]:
    """Return where and by which versions scores were computed, as far as they say so."""
    parts: dict[str, list[str]] = {"on": [], "by cswf": [], "PyTorch": [], "commit": []}
    for score in scores:
        digits, hyphen, rest = str(score.circumstances.get("commit") or "").partition("-")
        parts["on"].append(str(score.told("device", "name") or score.told("device", "type") or ""))
        parts["by cswf"].append(str(score.told("versions", "cswf") or ""))
        parts["PyTorch"].append(str(score.told("versions", "torch") or ""))
        parts["commit"].append(f"{digits[:12]}{hyphen}{rest}")  # what is behind it: whether files differed
    words = [f"{name} {listed(filter(None, each))}" for name, each in parts.items() if any(each)]
    return [f"Computed {words[0]}{''.join(f', {word}' for word in words[1:])}."] if words else []


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
        bibtex = "\n\n".join(map(str, works)).split("\n") if format == "latex" and works else []
        comments = [f"% {line.removeprefix('% ')}".rstrip() for line in bibtex]
        return "\n".join([_written(self.grid(), format), *comments])

    def grid(self) -> Grid:
        """Return the table as cells: the group's label, then its scores."""
        splits = {score.split for score in self._scores() if score.split}
        heads = [_heading(self.firsts[name].first, apart=len(splits) > 1) for name in self.names]
        winners = {name: self.best(name) for name in self.names}

        def cell(group: Group, name: str, best: bool) -> Cell:
            summary = group.summaries.get(name)
            if summary is None:
                return None
            return summary.printed(summary.spread, share=summary.first.meaning.share, best=best)

        rows = tuple(
            (group.label, *(cell(group, name, winners[name] == i) for name in self.names))
            for i, group in enumerate(self.groups)
        )
        labels = {group.first.name for group in self.groups}
        mark = f"better than all others by more than noise ({CONFIDENCE:.0%} intervals)"
        return Grid(
            headings=("", *heads),
            rows=rows,
            caption=tuple(self.caption()),
            name=labels.pop() if len(labels) == 1 else "scores",
            mark="" if set(winners.values()) <= {None} else mark,
        )

    def best(self, name: str) -> int | None:
        """Return which group has the best score beyond noise; None: none has, or they cannot be compared."""
        columns = [group.summaries.get(name) for group in self.groups]
        bases = {summary.basis for summary in columns if summary is not None}
        if len(bases) != 1 or None in bases or not self.firsts[name].first.meaning.of_samples:
            return None
        estimates = [None if summary is None else summary.ranked for summary in columns]
        return best(estimates, self.firsts[name].first.better)

    def caption(self) -> list[str]:
        """Return the sentences below the table."""
        scores = self._scores()
        return [
            *protocols(scores, [first.first.row for first in self.firsts.values()]),
            *spreads(self._methods()),
            *seeds({group.label: group.seeds for group in self.groups}),
            *circumstances(scores),
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
        return [f"{listed(copying)}: not ranked, as some samples are copies of training images."]

    def _methods(self) -> dict[str, list[str]]:
        """Return the scores by what their ± is; those that have none under an empty text."""
        methods: dict[str, list[str]] = {}
        for name in self.names:
            there = {group.label: group.summaries[name] for group in self.groups if name in group.summaries}
            having = {label: summary for label, summary in there.items() if not summary.remark}
            uniform = len({summary.spread_method for summary in having.values()}) == 1
            for label, summary in having.items():
                words = in_words(name)
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
            whose = "" if len(labels) == len(self.groups) else f"{listed(labels)}: "
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
            f"{trait} ({'; '.join(f'{_brief(v)}: {listed(runs)}' for v, runs in each.items())})"
            for trait, each in values.items()
            if len(each) > 1
        ]
        return [f"{name} cannot be compared: different {listed(parts)}"] if parts else []

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
    runs: Sequence[RunFolder], wanted: Sequence[str] = (), against: str = "", told: Sequence[str] = ()
) -> ScoreTable:
    """Return a table of runs: all scores but details, or those `wanted`, against `train`, `test` or both.

    A wanted score is named with or without its split. Raises `RunError` for one that no run has. `told` is what
    `read_scored` has told of the runs.
    """
    groups = grouped(runs)
    firsts = first_summaries(groups)
    scores = {name: summary.first for name, summary in firsts.items()}
    chosen = {  # one that compares with nothing is there with every split
        name: score
        for name, score in scores.items()
        if not against or not score.data or score.held_out == (against == "test")
    }
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


def _written(grid: Grid, format: Format) -> str:
    return latex(grid) if format == "latex" else plain_or_markdown(grid, markdown=format == "markdown")


def _heading(score: Score, *, apart: bool) -> str:
    """Return a score's name, with its split if columns are `apart` by it, its unit, and an arrow."""
    behind = ", ".join(filter(None, (score.split if apart else "", "%" if score.meaning.share else "")))
    words = in_words(score.row)
    return heading(f"{words} ({behind})" if behind else words, score.better)


def _brief(value: str) -> str:
    """Return the value of a trait for a sentence; of a digest the first digits."""
    return value[:12] if re.fullmatch("[0-9a-f]{64}", value) else excerpt(value) or "none"


def _record(score: Score) -> dict[str, Any]:
    """Return what a score depends on, with the columns of CSV."""
    return {
        "score": score.name,
        "better": score.better,
        "share": score.meaning.share,
        "samples": score.samples,
        "metric": score.metric,
        "data": score.data,
        "split": score.split,
        "reference_count": score.count,
        "reference_sha256": score.digest,
        "parameters": json.dumps(score.parameters, ensure_ascii=False) if score.parameters else "",
        "evaluation_seed": score.told("settings", "seed"),
        "precision": score.told("settings", "precision"),
        "device": score.told("device", "name") or score.told("device", "type"),
        "cswf": score.told("versions", "cswf"),
        "torch": score.told("versions", "torch"),
        "commit": score.circumstances.get("commit") or None,
        "protocol": score.protocol,
    }


def document_table(document: Mapping[str, Any], format: Format) -> str:
    """Return all scores of one metrics.json, details too, in a format; raise `ValueError` if it is none."""
    scores = of_json(dict(document)).scores
    if format == "json":
        return json_text(document)
    if format == "csv":
        names = {"mean": "value", "spread": "error", "spread_method": "error_method"}
        columns = [names.get(each, each) for each in COLUMNS if each not in ("run", "n", "seeds", "best")]
        records = [{**_record(each), **{k: getattr(each, k) for k in names.values()}} for each in scores]
        return comma_separated(columns, records)
    methods: dict[str, list[str]] = {}
    for score in scores:
        methods.setdefault(Summary((score,)).spread_method, []).append(score.name)
    rows = [
        (
            heading(f"{score.name} (%)" if score.meaning.share else score.name, score.better),
            score.against or None,
            quantity(score.value, score.error, share=score.meaning.share),
            None if score.samples is None else f"{score.samples:,}",
        )
        for score in scores
    ]
    caption = [*protocols(scores), *spreads(methods), *circumstances(scores)]
    heads = ("score", "against", "value", "samples")
    return _written(Grid(heads, tuple(rows), tuple(caption), texts=2), format)
