"""How to repeat, save and cite a run: its commands, recipe, files, papers and the licence of its data."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from cswf_core.errors import printable
from cswf_core.report.embedding import Download, download
from cswf_core.report.read import ReportedRun
from cswf_core.report.section import Section, problems
from cswf_core.scores.document import Score, mapping

_KEY = re.compile(r"^(\s*(?:- )?)([^\s:#][^:#]*)(:)(?=\s|$)")

CSV_COLUMNS = (
    "score",
    "value",
    "standard error",
    "method of the error",
    "better",
    "metric",
    "data",
    "split",
    "real samples",
    "generated samples",
    "seed of evaluation",
    "protocol",
)


def repeat(run: ReportedRun) -> Section:
    """Return the commands that made the run and its scores, to copy; else one that reads the recipe."""
    written = [str(run.facts.get("command") or "")]
    written += [str(score.circumstances.get("command") or "") for score in run.evaluation.scores]
    commands = list(dict.fromkeys(filter(None, written)))
    if not commands and run.recipe_text:
        commands = ["cswf run recipe.yaml"]
    commits = dict.fromkeys(
        str(score.circumstances["commit"]) for score in run.evaluation.scores if "commit" in score.circumstances
    )
    content = {"commands": commands, "commits": list(commits)} if commands else None
    return Section("repeat", "Repeat it", "cite.repeat", content)


def recipe(run: ReportedRun) -> Section:
    """Return the recipe as YAML, to read and to copy."""
    lines = [_split_line(line) for line in run.recipe_text.rstrip("\n").split("\n")]
    content = lines if run.recipe_text else None
    return Section("recipe", "Recipe", "cite.recipe", content, problems(run, "recipe.yaml"))


def _split_line(line: str) -> tuple[str, str, str]:
    """Return what comes before a line's key, the key, and what comes after it."""
    match = _KEY.match(line)
    return (line, "", "") if match is None else (match[1], match[2], line[match.end(2) :])


def citation(run: ReportedRun) -> Section:
    """Return the papers behind a run as BibTeX, to copy, and the licence of its data."""
    listed = run.facts.get("citations")
    works = [str(work) for work in listed] if isinstance(listed, list) else []
    licence = str(run.facts.get("licence") or "")
    content = {"bibtex": "\n\n".join(works), "licence": licence}
    return Section("cite", "Cite it", "cite.citation", content if any(content.values()) else None)


def downloads(run: ReportedRun, *, beside: bool) -> Section:
    """Return files to save: the scores within the page; all samples, if the page lies `beside` them."""
    files: list[Download] = []
    scores = run.file("metrics.json")
    if scores is not None:
        files.append(download("metrics.json", scores, "application/json"))
    if run.evaluation.scores:
        files.append(download("scores.csv", table(run.evaluation.scores), "text/csv"))
    if beside:
        paths = [run.path / name for name in ("samples.npz", "samples-offline.npz")]
        files += [Download(path.name, path.name, path.stat().st_size) for path in paths if path.is_file()]
    return Section("downloads", "Downloads", "cite.downloads", files)


def table(scores: Sequence[Score]) -> bytes:
    """Return scores as CSV, a line for each, in UTF-8; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for score in scores:
        seed = mapping(score.circumstances.get("settings")).get("seed")
        value = (score.name, score.value, score.error, score.error_method, score.better, score.metric)
        compared = (score.data, score.split, score.count, score.samples, seed, score.protocol)
        writer.writerow(map(_cell, (*value, *compared)))
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return what a cell holds; a text that a spreadsheet would compute begins with an apostrophe."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
