"""Sections of a page: facts, curves, limitations, and how to repeat, save and cite a run."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from cswf_core.errors import printable
from cswf_core.recipe.render import flattened
from cswf_core.runs.folder import LOGGED, RunFolder
from cswf_core.runs.scores import Score, is_number, mapping
from cswf_core.scores.layout import comma_separated
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
    data, device = mapping(record.get("data")), mapping(record.get("device"))
    shape = data.get("shape")
    size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
    samples = f"{count_in_words(data['samples'])} samples" if data.get("samples") is not None else ""
    done, planned = record.get("steps_done"), record.get("steps_planned")
    steps = count_in_words(done if done is not None else planned)
    if isinstance(planned, int) and isinstance(done, int) and done != planned:
        steps = f"{done:,} of {planned:,}"
    usual, width = record.get("spread"), record.get("offline_spread")
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
