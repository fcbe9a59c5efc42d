"""Scores of one run: the result under the title, tables by subject, and how they were computed."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from cswf_core.report import words
from cswf_core.report.published import Ours, charts
from cswf_core.report.read import ReportedRun
from cswf_core.report.section import Section, problems
from cswf_core.scores.captions import in_words as score_in_words
from cswf_core.scores.document import ASPECTS, Score, ScoreDocument, mapping, mismatches
from cswf_core.scores.quantities import measured
from cswf_core.scores.replicas import Summary

TITLES = {
    "quality": "Quality",
    "coverage": "Coverage",
    "condition": "Classes and conditions",
    "copying": "Copying",
    "other": "Other scores",
}
"""Headings of groups of scores, by what these are about."""

FIRST = "fid"
"""The score that stands under the title, if the run has it."""


@attrs.frozen
class ScoreRow:
    """A line of a table of scores."""

    name: str
    better: str
    """`lower`, `higher`, or nothing."""
    sentence: str
    """What it says, in plain words."""
    cells: Sequence[str]
    expected: str
    """What real images would have."""
    held_out: bool = False


@attrs.frozen
class AspectTable:
    """A table of scores that are about one thing."""

    title: str
    anchor: str
    head: Sequence[str]
    rows: Sequence[ScoreRow]

    @property
    def expects(self) -> bool:
        """Whether anything is expected of any score."""
        return any(row.expected for row in self.rows)


@attrs.frozen
class ClassChart:
    """A score of each class by itself, or of each number of samples (`fid_at.5000`), as bars."""

    name: str
    held_out: bool
    better: str
    bars: dict[str, tuple[str, float]]
    """Class → the number in words, and the length of its bar in percent."""

    @property
    def by(self) -> str:
        """What the bars are told apart by."""
        return "number of samples" if self.name.endswith("_at") else "class"


@attrs.frozen
class Headline:
    """The result under the title: a score, and all that a reader needs to make sense of it."""

    score: Score
    text: str
    facts: dict[str, str]
    notes: int
    """How many notes on the scores there are, further down."""


def in_words(score: Score) -> str:
    """Return a score's value with its uncertainty."""
    return measured(score.value, score.error, share=score.share)


def headline(run: ReportedRun) -> Headline | None:
    """Return the score to show under the title: FID if there is one, else the first of quality; else None."""
    document = run.evaluation
    able = [score for score in document.scores if not score.detail and score.of_samples]
    if not able:
        return None
    score = min(able, key=lambda each: (each.row != FIRST, ASPECTS.index(each.aspect), each.held_out))
    facts = {
        "samples": words.count(score.samples),
        "against": score.against,
        "mode": str(score.parameters.get("mode") or ""),
        "uncertainty": _uncertainty(score),
        "held out": _other_split(document, score),
        "copying": _copying(able, score),
    }
    return Headline(
        score, in_words(score), {name: text for name, text in facts.items() if text}, len(notes(document))
    )


def _uncertainty(score: Score) -> str:
    """Return what stands behind ±."""
    if score.error is None:
        return "not computed"
    return f"± standard error{f': {score.error_method}' if score.error_method else ''}"


def _other_split(document: ScoreDocument, score: Score) -> str:
    other = None if score.held_out else document.find(score.row, held_out=True)
    return "" if other is None else f"{in_words(other)} against {other.against}"


def _copying(scores: Sequence[Score], headline: Score) -> str:
    """Return the first score of copies, with what is expected of it."""
    score = next((each for each in scores if each.aspect == "copying" and each is not headline), None)
    if score is None:
        return ""
    expected = "" if score.expected is None else f" ({_expected(score)} expected)"
    return f"{score_in_words(score.name)} {in_words(score)}{expected}"


def _expected(score: Score) -> str:
    if score.expected is None:
        return ""
    return f"{100 * score.expected:.3g} %" if score.share else measured(score.expected)


def notes(document: ScoreDocument) -> list[str]:
    """Return the sentences that nobody should miss: the scores' own, and where they do not fit together."""
    return [*document.notes, *mismatches(document.scores)]


def metrics(run: ReportedRun, drawn: ClassChart | None) -> Section:
    """Return a run's scores, but for the chart that is drawn beside its samples, and published ones."""
    document = run.evaluation
    told = problems(run, "metrics.json")
    if not document.scores:
        return Section("metrics", "Scores", "scores.metrics", None, told)
    fid = document.find(FIRST)
    ours = [] if fid is None else [Ours(run.label, run.data_name, Summary((fid,)))]
    content = {
        "notes": notes(document),
        "groups": groups(document),
        "charts": [chart for chart in class_charts(document) if chart != drawn],
        "protocols": protocols(document),
        "facts": run.evaluation_facts,
        "rivals": charts(ours, "This run" if run.is_run else "These samples"),
    }
    return Section("metrics", "Scores", "scores.metrics", content, told)


def groups(document: ScoreDocument) -> list[AspectTable]:
    """Return tables of scores by subject, those against training and held-out samples side by side."""
    of_classes = {score.name for scores in _families(document).values() for score in scores}
    scores = [score for score in document.scores if score.name not in of_classes]
    tables = []
    for aspect in ASPECTS:
        chosen = [score for score in scores if score.aspect == aspect]
        splits = (False, True) if any(score.held_out for score in chosen) else (False,)
        head = ["training data", "held out"] if len(splits) > 1 else ["value"]
        names = dict.fromkeys(score.row for score in chosen)
        rows = [_row([document.find(name, held_out=split) for split in splits], name) for name in names]
        if rows:
            tables.append(AspectTable(TITLES[aspect], f"scores-{aspect}", head, rows))
    return tables


def _row(pair: Sequence[Score | None], name: str) -> ScoreRow:
    present = [score for score in pair if score is not None]
    return ScoreRow(
        name=name,
        better=next((score.better for score in present if score.better), ""),
        sentence=next((score.sentence for score in present if score.sentence), ""),
        cells=["" if score is None else in_words(score) for score in pair],
        expected=next((_expected(score) for score in present if score.expected is not None), ""),
    )


def class_charts(document: ScoreDocument) -> list[ClassChart]:
    """Return a chart for each score that classes have by themselves, as in `class_fid.cat`."""
    made = []
    for (name, held_out), scores in _families(document).items():
        longest = max((abs(score.value) for score in scores), default=0.0) or 1.0
        bars = {
            score.row.partition(".")[2]: (in_words(score), max(0.4, 100 * abs(score.value) / longest))
            for score in scores
        }
        made.append(ClassChart(name, held_out, scores[0].better, bars))
    return made


def _families(document: ScoreDocument) -> dict[tuple[str, bool], list[Score]]:
    """Return the scores of classes by the name that they share and by their split; at least two of a name."""
    families: dict[tuple[str, bool], list[Score]] = {}
    for score in document.scores:
        name, dot, _ = score.row.partition(".")
        if name and dot:
            families.setdefault((name, score.held_out), []).append(score)
    return {key: scores for key, scores in families.items() if len(scores) > 1}


@attrs.frozen
class Protocol:
    """How the scores of one metric were computed."""

    names: Sequence[str]
    """The scores' names in words."""
    sentences: Sequence[str]
    facts: Sequence[str]


def protocols(document: ScoreDocument) -> list[Protocol]:
    """Return how scores were computed, once for each metric; nothing of one that nothing is known of."""
    metrics: dict[tuple[str, str], list[Score]] = {}
    for score in document.scores:
        metrics.setdefault((score.metric or score.row, str(score.parameters)), []).append(score)
    made = map(_protocol, metrics.values())
    return [protocol for protocol in made if protocol.sentences or protocol.facts]


def _protocol(scores: Sequence[Score]) -> Protocol:
    parameters = ", ".join(f"{key} = {value}" for key, value in scores[0].parameters.items())
    errors = [f"± is the standard error: {score.error_method}" for score in scores if score.error_method]
    facts = [parameters, *errors, *map(_against, scores)]
    return Protocol(
        names=list(dict.fromkeys(score_in_words(score.row.partition(".")[0]) for score in scores)),
        sentences=list(dict.fromkeys(score.protocol for score in scores if score.protocol)),
        facts=list(dict.fromkeys(filter(None, facts))),
    )


def _against(score: Score) -> str:
    known = mapping(score.circumstances.get("settings"))
    parts = (
        f"against {score.against}" if score.against else "",
        f"{score.samples:,} samples" if score.samples is not None else "",
        f"seed {known['seed']}" if known.get("seed") is not None else "",
        words.seconds(score.seconds),
    )
    return ", ".join(filter(None, parts))
