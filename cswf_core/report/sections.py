"""Sections of a page: scores, published numbers, facts, curves, limits, and how to repeat and cite a run."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import attrs
import yaml

from cswf_core.errors import printable
from cswf_core.recipe.render import flattened
from cswf_core.runs.folder import LOGGED, RunFolder
from cswf_core.runs.scores import Score, ScoreDocument, is_number, mapping, mismatches
from cswf_core.scores.layout import comma_separated, measured
from cswf_core.scores.replicas import Group, Summary, best, common_label, first_summaries, groups
from cswf_core.scores.tables import in_words as score_in_words
from cswf_core.scores.tables import listed


@attrs.frozen
class Section:
    """A part of a page under a heading; it is left out if there is nothing to show and nothing wrong."""

    name: str
    title: str
    macro: str
    """The file and the macro in templates/ that it is filled in by, as in `scores.metrics`."""
    content: Any
    problems: Sequence[str] = ()


def problems(run: RunFolder, *names: str) -> list[str]:
    """Return the sentences on a run's damaged files of these names."""
    return [run.problems[name] for name in names if name in run.problems]


def problems_of(runs: Sequence[RunFolder], *names: str) -> list[str]:
    """Return the sentences on damaged files of several runs, each with its run."""
    return [f"{run.label}: {sentence}" for run in runs for sentence in problems(run, *names)]


def seconds_in_words(value: Any) -> str:
    """Return a time in the units that a person would say it in; nothing for what is no number."""
    if not is_number(value):
        return ""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count_in_words(value: Any) -> str:
    """Return a whole number with its thousands apart; other values as they are, None as nothing."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def address(content: bytes, kind: str) -> str:
    """Return the address of a file's content within the page, of a media type such as `image/png`."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def safe_name(text: str) -> str:
    """Return a text as what an anchor is called: letters, digits and - _ . only."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def ending(run: RunFolder) -> str:
    """Return a sentence on a run that is not simply done; nothing on an evaluation, which has no status."""
    if not run.is_run:
        return ""
    sentences = {
        "done": "",
        "failed": str(run.record.get("error") or "It has left no reason."),
        "interrupted": "It was stopped before its end, and cswf resume goes on; what it had is shown.",
        "running": "It had not ended when this page was written; run cswf report again to refresh it.",
    }
    return sentences.get(run.status, "How it ended is not known.")


def facts(run: RunFolder) -> dict[str, str]:
    """Return what was run, name → words; what is not known is left out."""
    record = run.record
    data = mapping(record.get("data"))
    device = mapping(record.get("device"))
    shape = data.get("shape")
    size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
    samples = f"{count_in_words(data['samples'])} samples" if data.get("samples") is not None else ""
    done = record.get("steps_done")
    planned = record.get("steps_planned")
    steps = count_in_words(done if done is not None else planned)
    if isinstance(planned, int) and isinstance(done, int) and done != planned:
        steps = f"{done:,} of {planned:,}"
    usual = record.get("spread")
    width = record.get("offline_spread")
    named = {
        "data": ", ".join(filter(None, (run.data_name, samples, size))),
        "particles": count_in_words(record.get("particles")),
        "carried along": f"particles that spread {width / usual:.2f} times as wide" if usual and width else "",
        "steps": steps,
        "time": seconds_in_words(record.get("seconds")),
        "device": _device(device),
        "seed": "" if record.get("seed") is None else str(record["seed"]),
        "started": str(record.get("started") or "").replace("T", " ").replace("+00:00", " UTC"),
    }
    return {name: text for name, text in named.items() if text}


def _device(device: Mapping[str, Any]) -> str:
    name = str(device.get("name") or "")
    if device.get("type") == "cpu":
        threads = device.get("threads")
        return f"CPU {name}".rstrip() + (f", {threads} thread{'s'[: threads != 1]}" if threads else "")
    return name or str(device.get("type") or "")


def versions(run: RunFolder) -> dict[str, str]:
    """Return the versions of what a result depends on, and the digests of data and samples."""
    rows = {str(name): str(version) for name, version in mapping(run.record.get("versions")).items()}
    digests = {
        "SHA-256 of the data": mapping(run.record.get("data")).get("sha256"),
        "SHA-256 of the samples": run.record.get("samples_sha256"),
    }
    return rows | {title: str(digest) for title, digest in digests.items() if digest}


TITLES = {
    "quality": "Quality",
    "coverage": "Coverage",
    "condition": "Classes and conditions",
    "copying": "Copying",
    "other": "Other scores",
}
"""Headings of groups of scores, by what these are about, in their order."""


def in_words(score: Score) -> str:
    """Return a score's value with its uncertainty."""
    return measured(score.value, score.error, share=score.meaning.share)


def headline(run: RunFolder) -> dict[str, Any] | None:
    """Return the score under the title, with all that a reader needs to make sense of it.

    It is FID if there is one, else the first of quality; None if there is none.
    """
    document = run.scores
    able = [score for score in document.scores if not score.detail and score.meaning.of_samples]
    if not able:
        return None
    order = list(TITLES)
    score = min(able, key=lambda each: (each.row != "fid", order.index(each.meaning.aspect), each.held_out))
    method = f": {score.error_method}" if score.error_method else ""
    other = None if score.held_out else document.find(score.row, held_out=True)
    facts = {
        "samples": count_in_words(score.samples),
        "against": score.against,
        "mode": str(score.parameters.get("mode") or ""),
        "uncertainty": "not computed" if score.error is None else f"± standard error{method}",
        "held out": "" if other is None else f"{in_words(other)} against {other.against}",
        "copying": _copying(able, score),
    }
    return {
        "score": score,
        "text": in_words(score),
        "facts": {name: text for name, text in facts.items() if text},
        "notes": len(notes(document)),
    }


def _copying(scores: Sequence[Score], result: Score) -> str:
    """Return the first score of copies, with what is expected of it."""
    score = next((each for each in scores if each.meaning.aspect == "copying" and each is not result), None)
    if score is None:
        return ""
    expected = _expected(score)
    return f"{score_in_words(score.name)} {in_words(score)}{f' ({expected} expected)' if expected else ''}"


def _expected(score: Score) -> str:
    """Return the value that real images would have, in words; nothing where that is not known."""
    expected = score.meaning.expected
    if expected is None:
        return ""
    return f"{100 * expected:.3g} %" if score.meaning.share else measured(expected)


def notes(document: ScoreDocument) -> list[str]:
    """Return the sentences that nobody should miss: the scores' own, and where they do not fit together."""
    return [*document.notes, *mismatches(document.scores)]


def metrics(run: RunFolder, drawn: Mapping[str, Any] | None) -> Section:
    """Return a run's scores, but for the chart that is drawn beside its samples, and published ones."""
    document = run.scores
    told = problems(run, "metrics.json")
    if not document.scores:
        return Section("metrics", "Scores", "scores.metrics", None, told)
    content = {
        "notes": notes(document),
        "groups": _tables(document),
        "charts": [chart for chart in class_charts(document) if chart != drawn],
        "protocols": _protocols(document),
        "facts": _evaluation_facts(run.evaluated),
        "rivals": _published([Group([run], run.label)], "This run" if run.is_run else "These samples"),
    }
    return Section("metrics", "Scores", "scores.metrics", content, told)


def _tables(document: ScoreDocument) -> list[dict[str, Any]]:
    """Return tables of scores by subject, those against training and held-out samples side by side."""
    of_classes = {score.name for scores in _families(document).values() for score in scores}
    scores = [score for score in document.scores if score.name not in of_classes]
    tables = []
    for aspect, title in TITLES.items():
        chosen = [score for score in scores if score.meaning.aspect == aspect]
        splits = (False, True) if any(score.held_out for score in chosen) else (False,)
        head = ["training data", "held out"] if len(splits) > 1 else ["value"]
        names = dict.fromkeys(score.row for score in chosen)
        rows = [_row([document.find(name, held_out=split) for split in splits], name) for name in names]
        if rows:
            expects = any(row["expected"] for row in rows)
            table = {"title": title, "anchor": f"scores-{aspect}", "head": head, "rows": rows}
            tables.append({**table, "expects": expects})
    return tables


def _row(pair: Sequence[Score | None], name: str) -> dict[str, Any]:
    present = [score for score in pair if score is not None]
    return {
        "name": name,
        "held_out": False,
        "better": next(filter(None, (score.better for score in present)), ""),
        "sentence": next(filter(None, (score.meaning.sentence for score in present)), ""),
        "cells": ["" if score is None else in_words(score) for score in pair],
        "expected": next(filter(None, map(_expected, present)), ""),
    }


def class_charts(document: ScoreDocument) -> list[dict[str, Any]]:
    """Return a chart of bars for each score that classes, or numbers of samples, have by themselves.

    Such are `class_fid.cat` and `fid_at.5000`. The length of a bar is in percent of the longest.
    """
    made = []
    for (name, held_out), scores in _families(document).items():
        longest = max((abs(score.value) for score in scores), default=0.0) or 1.0
        bars = {
            score.row.partition(".")[2]: (in_words(score), max(0.4, 100 * abs(score.value) / longest))
            for score in scores
        }
        by = "number of samples" if name.endswith("_at") else "class"
        chart = {"name": name, "held_out": held_out, "better": scores[0].better, "bars": bars, "by": by}
        made.append(chart)
    return made


def score_of_classes(chart: Mapping[str, Any]) -> str:
    """Return what a chart of classes shows, in words."""
    return _named(chart["name"], held_out=chart["held_out"])


def _families(document: ScoreDocument) -> dict[tuple[str, bool], list[Score]]:
    """Return the scores of classes by the name that they share and by their split; at least two of a name."""
    families: dict[tuple[str, bool], list[Score]] = {}
    for score in document.scores:
        name, dot, _ = score.row.partition(".")
        if name and dot:
            families.setdefault((name, score.held_out), []).append(score)
    return {key: scores for key, scores in families.items() if len(scores) > 1}


def _protocols(document: ScoreDocument) -> list[dict[str, Any]]:
    """Return how scores were computed, once for each metric; nothing of one that nothing is known of."""
    by_metric: dict[tuple[str, str], list[Score]] = {}
    for score in document.scores:
        by_metric.setdefault((score.metric or score.row, str(score.parameters)), []).append(score)
    made = []
    for scores in by_metric.values():
        parameters = ", ".join(f"{key} = {value}" for key, value in scores[0].parameters.items())
        errors = [f"± is the standard error: {score.error_method}" for score in scores if score.error_method]
        facts = [parameters, *errors, *map(_circumstances, scores)]
        protocol = {
            "names": list(dict.fromkeys(score_in_words(score.row.partition(".")[0]) for score in scores)),
            "sentences": list(dict.fromkeys(score.protocol for score in scores if score.protocol)),
            "facts": list(dict.fromkeys(filter(None, facts))),
        }
        if protocol["sentences"] or protocol["facts"]:
            made.append(protocol)
    return made


def _circumstances(score: Score) -> str:
    seed = score.told("settings", "seed")
    parts = (
        f"against {score.against}" if score.against else "",
        f"{score.samples:,} samples" if score.samples is not None else "",
        f"seed {seed}" if seed is not None else "",
        seconds_in_words(score.seconds),
    )
    return ", ".join(filter(None, parts))


def _evaluation_facts(content: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands beside the scores: what was evaluated, where, and with which weights and versions."""
    generated, weights, device = (mapping(content.get(key)) for key in ("generated", "weights", "device"))
    evaluated = generated.get("count")
    available = generated.get("available")
    of = f" of {available:,}" if is_number(available) and available != evaluated else ""
    facts = {
        "samples evaluated": f"{evaluated:,}{of}" if is_number(evaluated) else "",
        "SHA-256 of these samples": generated.get("sha256"),
        "weights": weights.get("file"),
        "SHA-256 of the weights": weights.get("sha256"),
        "evaluated on": device.get("name") or device.get("type"),
        "evaluated at": content.get("finished"),
    }
    versions = {f"{name} (evaluation)": version for name, version in mapping(content.get("versions")).items()}
    return {name: str(value) for name, value in {**facts, **versions}.items() if value}


def _published(columns: Sequence[Group], us: str) -> list[dict[str, Any]]:
    """Return bars of our FIDs beside published ones, for every data set that has some.

    Ours are numbers, against the data set that was flowed to.
    """
    ours = [column for column in columns if "fid" in column.summaries]
    published = yaml.safe_load((files("cswf_core.report") / "published.yaml").read_bytes()) if ours else {}
    made = []
    for data in dict.fromkeys(column.first.data_name for column in ours):
        known = published.get(data)
        fitting = [
            column
            for column in ours
            if column.first.data_name == data
            and math.isfinite(column.summaries["fid"].mean)
            and column.summaries["fid"].first.data in ("", data)
        ]
        if known is None or not fitting:
            continue
        bars = [
            {
                "value": float(entry["value"]),
                "name": entry["method"],
                "remark": ", ".join(filter(None, (entry["group"], entry.get("remark")))),
                "text": f"{entry.get('bound', '')}{entry['value']}",
                "kind": "peer" if entry["group"] == "nonparametric" else "other",
            }
            for entry in known["fid"]
        ]
        bars += [_our_bar(column, coloured=len(fitting) > 1) for column in fitting]
        bars.sort(key=lambda bar: float(bar["value"]))
        anchor = f"published-{safe_name(data)}"
        made.append({"data": data, "anchor": anchor, "bars": bars, "source": known["source"], "us": us})
    return made


def _our_bar(column: Group, *, coloured: bool) -> dict[str, Any]:
    """Return the bar of ours; where its number is of fewer images than is customary, it says so."""
    fid = column.summaries["fid"]
    score = fid.first
    seeds = len(fid.scores)
    few = min(score.samples or 0, score.count or 0) < 50_000
    samples = count_in_words(score.samples)
    real = count_in_words(score.count)
    counts = f"of {samples} samples against {real}" if few else ""
    return {
        "value": fid.mean,
        "name": column.label,
        "remark": ", ".join(filter(None, ("ours", f"{seeds} seeds" if seeds > 1 else "", counts))),
        "text": measured(fid.mean, fid.spread),
        "kind": f"ours run-{column.first.colour}" if coloured else "ours",
    }


REASONS = {
    "noise": "Differences within the noise are not ranked: {}.",
    "unknown": "Not ranked, as no uncertainty is known: {}. Several seeds of each recipe would tell.",
    "copying": "Runs with copies of training images among their samples are not ranked: {}.",
    "unlike": "Not ranked, as they were not computed alike: {}.",
}
"""Why no score of a row is called the best → a sentence for all such rows."""


def metrics_compared(runs: Sequence[RunFolder]) -> Section:
    """Return a row for each score and a column for each recipe, the best one marked where noise allows it.

    A column is one run, or several that differ in their seed only.
    """
    columns = _columns(runs)
    rows = [_compared_row(name, columns) for name in first_summaries(columns)]
    plain = [row for row in rows if not row["detail"]]
    tables = [(title, [row for row in plain if row["aspect"] == aspect]) for aspect, title in TITLES.items()]
    computed = [(run.label, _protocols(run.scores), _evaluation_facts(run.evaluated)) for run in runs]
    heads = [{"label": each.label, "runs": each.runs, "seeds": _seeds(each)} for each in columns]
    content = {
        "columns": heads,
        "groups": [(title, chosen) for title, chosen in tables if chosen],
        "details": [row for row in rows if row["detail"]],
        "seeds": any(head["seeds"] for head in heads),
        "unranked": _unranked(plain),
        "rivals": _published(columns, "These runs"),
        "notes": [(run.label, note) for run in runs for note in notes(run.scores)],
        "evaluations": [each for each in computed if any(each[1:])],
    }
    compared = ("run.json", "metrics.json", "samples.npz", "samples.png", "frames.npz", "recipe.yaml")
    told = problems_of(runs, *compared)
    return Section("metrics", "Scores", "scores.metrics_compared", content if rows else None, told)


def _seeds(column: Group) -> str:
    """Return the seeds that a column is taken over, in words; nothing for a single run."""
    if len(column.runs) < 2:
        return ""
    seeds = [run.recipe.get("seed", run.record.get("seed")) for run in column.runs]
    return f"{len(column.runs)} seeds: {listed(seeds, most=12)}"


def _columns(runs: Sequence[RunFolder]) -> list[Group]:
    """Return the columns of a table of runs, each with a label of its own."""
    members = [[runs[number] for number in group] for group in groups([run.recipe for run in runs])]
    choices = (
        [group[0].label if len(group) == 1 else group[0].title for group in members],
        [common_label([run.label for run in group], [run.path for run in group]) for group in members],
    )
    first = [group[0].label for group in members]
    labels = next((labels for labels in choices if len(set(labels)) == len(members)), first)
    return [Group(group, label) for label, group in zip(labels, members, strict=True)]


def _compared_row(name: str, columns: Sequence[Group]) -> dict[str, Any]:
    """Return a score of all columns; `unranked` is why the best is not marked although they differ."""
    pairs = [(column, column.summaries.get(name)) for column in columns]
    present = [(column, summary) for column, summary in pairs if summary is not None]
    ways = {summary.first.better for _, summary in present}
    better = ways.pop() if len(ways) == 1 else ""
    crowned, unranked = _ranked(present, better)
    first = present[0][1].first
    sentences = (summary.first.meaning.sentence for _, summary in present)
    return {
        "name": first.row,
        "held_out": first.held_out,
        "better": better,
        "sentence": next(filter(None, sentences), ""),
        "detail": all(summary.first.detail for _, summary in present),
        "aspect": first.meaning.aspect,
        "cells": [
            {"text": "" if each is None else _cell(column, each), "best": each is not None and each is crowned}
            for column, each in pairs
        ],
        "unranked": unranked,
    }


def _cell(column: Group, summary: Summary) -> str:
    text = measured(summary.mean, summary.spread, share=summary.first.meaning.share)
    missing = len(column.runs) - len(summary.scores)
    remark = f"{len(summary.scores)} of {len(column.runs)} seeds" if missing else summary.remark
    return f"{text} ({remark})" if remark else text


def _ranked(present: Sequence[tuple[Group, Summary]], better: str) -> tuple[Summary | None, str]:
    """Return the best score of a row, if it is that beyond noise, else why there is none: a key of REASONS."""
    scores = [summary for _, summary in present]
    of_samples = all(score.meaning.of_samples for each in scores for score in each.scores)
    if not better or len(scores) < 2 or not of_samples:
        return None, ""
    bases = {(summary.basis, summary.first.data or column.first.data_name) for column, summary in present}
    if len(bases) > 1 or None in (summary.basis for summary in scores):
        return None, "unlike"
    number = best([summary.ranked for summary in scores], better)
    crowned = None if number is None else scores[number]
    if any(summary.ranked is None for summary in scores):
        return crowned, "copying"
    if crowned is not None or len({summary.mean for summary in scores}) == 1:
        return crowned, ""
    return None, "noise" if all(each.estimate.error is not None for each in scores) else "unknown"


def _unranked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each reason for which scores that differ are not ranked."""
    sentences = []
    for reason, sentence in REASONS.items():
        names = [_named(row["name"], held_out=row["held_out"]) for row in rows if row["unranked"] == reason]
        if names:
            sentences.append(sentence.format(listed(names, most=6)))
    return sentences


def _named(name: str, *, held_out: bool) -> str:
    return f"{score_in_words(name)}{' held out' if held_out else ''}"


def curves(runs: Sequence[RunFolder]) -> Section:
    """Return the place for the curves of one run or several; a script draws them from `curve_data`."""
    stages = any(row[1] != run.rows[0][1] for run in runs for row in run.rows)
    content = {"stages": stages} if any(len(run.rows) > 1 for run in runs) else None
    return Section("curves", "Curves", "sections.curves", content, problems_of(runs, "metrics.jsonl"))


def curve_data(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return what the script draws: for each run its label, colour and columns, milliseconds per step too."""
    drawn = []
    for run in runs:
        columns: dict[str, list[float | None]] = {
            name: [row[c] for row in run.rows] for c, name in enumerate(LOGGED) if name != "seconds"
        }
        columns["milliseconds"] = [None, *(_pace(a, b) for a, b in zip(run.rows, run.rows[1:], strict=False))]
        drawn.append({"label": printable(run.label), "colour": run.colour, **columns})
    return {"runs": drawn}


def _pace(before: list[float | None], after: list[float | None]) -> float | None:
    """Return the milliseconds that a step took between two logged ones."""
    steps, seconds = ((after[c] or 0) - (before[c] or 0) for c in (0, 4))
    return float(f"{1000 * seconds / steps:.5g}") if steps > 0 and after[4] is not None else None


def limitations(run: RunFolder) -> Section:
    """Return what a run's scores do not say, in sentences that are true of it; none where it has no scores."""
    scores = [score for score in run.scores.scores if not score.detail and score.meaning.of_samples]
    sentences = [] if not scores else [*_uncertain(run, scores), *_reference(scores), *_copies(run)]
    return Section("limitations", "Limitations", "sections.sentences", sentences)


def _uncertain(run: RunFolder, scores: Sequence[Score]) -> list[str]:
    """Return sentences on seeds, errors and numbers of samples."""
    sentences = []
    if run.is_run:
        known = any(score.error is not None for score in scores)
        spread = "; the ± beside a score is of its samples, and not of other seeds" if known else ""
        sentences.append(f"These are the scores of one run: another seed gives others{spread}.")
    bare = [score_in_words(score.name) for score in scores if score.error is None]
    if bare:
        sentences.append(f"No uncertainty was computed of {listed(bare, most=6)}.")
    customary = 50_000
    few = [
        score
        for score in scores
        if score.metric == "fid" and score.samples is not None and score.samples < customary
    ]
    for score in few[:1]:
        sentences.append(
            f"{score_in_words(score.name)} is of {score.samples:,} samples, and published numbers are of "
            f"{customary:,}: it falls with the number of samples, so that they do not compare."
        )
    return sentences


OF_FEATURES = (
    "fid",
    "kid",
    "precision-recall",
    "density-coverage",
    "class-fid",
    "completion-fid",
    "perceptual-distance",
)
"""Metrics that see features of a network and not images."""


def _reference(scores: Sequence[Score]) -> list[str]:
    """Return sentences on what the samples were compared with, and by what."""
    sentences = []
    on_training = [score_in_words(score.name) for score in scores if score.split == "train"]
    if on_training:
        rest = "" if any(score.held_out for score in scores) else "; no score is against held-out samples"
        sentences.append(
            f"The reference of {listed(on_training, most=6)} is the training set, which copies of it would "
            f"match perfectly{rest}."
        )
    seen = dict.fromkeys(score_in_words(score.row) for score in scores if score.metric in OF_FEATURES)
    if seen:
        verb = "sees" if len(seen) == 1 else "see"
        sentences.append(
            f"{listed(seen, most=6)} {verb} features of a network that was trained on the photographs of "
            "ImageNet, and nothing that these features miss."
        )
    return sentences


def _copies(run: RunFolder) -> list[str]:
    """Return a sentence on where copies were looked for, of images only."""
    looked = [
        score for score in run.scores.scores if score.meaning.aspect == "copying" and score.meaning.of_samples
    ]
    if not looked:
        there = run.images("samples.npz") is not None
        return ["Copies of training images were not looked for."] if there else []
    spaces = [score.parameters.get("spaces") for score in looked]
    named = [str(space) for each in spaces if isinstance(each, list) for space in each]
    words = {"pixels": "by their pixels", "features": "by their Inception features"}
    ways = " and ".join(words[space] for space in words if space in named) or "by their distance"
    counts = [score.samples for score in looked if score.samples is not None]
    among = f" among {max(counts):,} samples" if counts else ""
    return [
        f"Copies were looked for {ways}{among}: others, and copies that are far away by that measure, are "
        "not found."
    ]


def repeat(run: RunFolder) -> Section:
    """Return the commands that made the run and its scores, to copy; else one that reads the recipe."""
    known = [score.circumstances for score in run.scores.scores]
    written = [str(run.record.get("command") or ""), *(str(each.get("command") or "") for each in known)]
    commands = list(dict.fromkeys(filter(None, written)))
    if not commands and run.recipe_text:
        commands = ["cswf run recipe.yaml"]
    commits = dict.fromkeys(str(each["commit"]) for each in known if each.get("commit"))
    content = {"commands": commands, "commits": list(commits)} if commands else None
    return Section("repeat", "Repeat it", "cite.repeat", content)


def recipe(run: RunFolder) -> Section:
    """Return the recipe as YAML, to read and to copy: each line as what precedes its key, the key, the rest."""
    key = re.compile(r"^(\s*(?:- )?)([^\s:#][^:#]*)(:)(?=\s|$)")
    lines = []
    for line in run.recipe_text.rstrip("\n").split("\n"):
        match = key.match(line)
        lines.append((line, "", "") if match is None else (match[1], match[2], line[match.end(2) :]))
    content = lines if run.recipe_text else None
    return Section("recipe", "Recipe", "cite.recipe", content, problems(run, "recipe.yaml"))


def citation(run: RunFolder) -> Section:
    """Return the papers behind a run as BibTeX, to copy, and the licence of its data."""
    works = run.record.get("citations")
    bibtex = "\n\n".join(map(str, works)) if isinstance(works, list) else ""
    content = {"bibtex": bibtex, "licence": str(run.record.get("licence") or "")}
    return Section("cite", "Cite it", "cite.citation", content if any(content.values()) else None)


def downloads(run: RunFolder, *, beside: bool) -> Section:
    """Return files to save: the scores within the page; all samples, if the page lies `beside` them."""
    files: list[dict[str, Any]] = []

    def add(name: str, content: bytes, kind: str) -> None:
        files.append({"name": name, "href": address(content, kind), "size": len(content)})

    scores = run.attempt("metrics.json", lambda path: path.read_bytes())
    if scores is not None:
        add("metrics.json", scores, "application/json")
    if run.scores.scores:
        records = map(_csv_record, run.scores.scores)
        table = comma_separated(list(_csv_record(run.scores.scores[0])), records)
        add("scores.csv", f"{table}\n".encode(), "text/csv")
    if beside:
        paths = [run.file(name) for name in ("samples.npz", "samples-offline.npz")]
        files += [
            {"name": path.name, "href": path.name, "size": path.stat().st_size}
            for path in paths
            if path.is_file()
        ]
    return Section("downloads", "Downloads", "cite.downloads", files)


def _csv_record(score: Score) -> dict[str, Any]:
    return {
        "score": score.name,
        "value": score.value,
        "standard error": score.error,
        "method of the error": score.error_method,
        "better": score.better,
        "metric": score.metric,
        "data": score.data,
        "split": score.split,
        "real samples": score.count,
        "generated samples": score.samples,
        "seed of evaluation": score.told("settings", "seed"),
        "protocol": score.protocol,
    }


def recipe_differences(runs: Sequence[RunFolder]) -> Section:
    """Return the keys of the recipes that are not the same in all runs, with the value of each run."""
    recipes = [flattened(run.recipe) for run in runs]
    rows = [row for row in _differing(recipes) if row[0] not in ("name", "description")]
    content = {"runs": runs, "rows": rows, "same": "The recipes are the same in every key.", "all": []}
    return Section("recipe", "Recipe differences", "sections.differences", content)


def versions_compared(runs: Sequence[RunFolder]) -> Section:
    """Return the versions and digests of all runs: those that differ in sight, the others folded away."""
    tables = [versions(run) for run in runs]
    rows = _differing(tables)
    names = dict.fromkeys(name for table in tables for name in table)
    unlike = {name for name, _ in rows}
    content: dict[str, Any] = {
        "runs": runs,
        "rows": rows,
        "same": "All versions and digests are the same.",
        "all": [(name, tables[0].get(name, "–")) for name in names if name not in unlike],
    }
    return Section("versions", "Versions", "sections.differences", content if names else None)


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return the keys of which not all tables have one value, with these values."""
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: [table.get(key, "–") for table in tables] for key in keys}
    return [(key, row) for key, row in values.items() if len(set(map(str, row))) > 1]
