"""Whole pages: of one run, and of several beside each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cswf_core.errors import CswfError, RunError
from cswf_core.report import comparison, sections
from cswf_core.report.html import GENERATOR, Html, document, tag
from cswf_core.report.read import Run, read_run, read_runs
from cswf_core.runs.folder import RunFolder

_SECTION = re.compile(r'<section id="([a-z]+)"><h2>([^<]+)</h2>')


def write_report(directory: RunFolder) -> None:
    """Write a run's report.html from the files in its folder; raises `CswfError` if that cannot be done."""
    directory.write("report.html", single(directory.path))


def single(folder: Path) -> str:
    """Return the page of one run."""
    return _made(lambda: _run_page(read_run(folder)), str(folder))


def compare(folders: Sequence[Path]) -> str:
    """Return one page on several runs, each given by its folder."""
    return _made(lambda: _comparison_page(read_runs(folders)), ", ".join(map(str, folders)))


def is_report(path: Path) -> bool:
    """Say whether a file is a page of ours, which another may replace."""
    try:
        with path.open("rb") as file:
            return f'content="{GENERATOR}"'.encode() in file.read(1000)
    except OSError:
        return False


def _run_page(run: Run) -> str:
    parts = [
        sections.samples(run),
        sections.offline(run),
        sections.flow(run),
        sections.curves([run]),
        sections.metrics(run),
        sections.neighbours(run),
        sections.completions(run),
        sections.recipe(run),
        sections.versions(run),
    ]
    return _page(run.name, sections.heading(run), parts, [run])


def _comparison_page(runs: Sequence[Run]) -> str:
    names = ", ".join(run.label for run in runs)
    parts = [
        comparison.overview(runs),
        comparison.scores(runs),
        comparison.samples(runs),
        comparison.flows(runs),
        sections.curves(runs),
        comparison.differences(runs),
    ]
    head = tag("header", tag("p", "cswf comparison", class_="over"), tag("h1", f"{len(runs)} runs compared"))
    return _page(f"{len(runs)} runs: {names}", head, parts, runs)


def _page(title: str, head: Html, parts: Sequence[Html], runs: Sequence[Run]) -> str:
    links = [tag("a", Html(m[2]), href=f"#{m[1]}") for part in parts if (m := _SECTION.search(part[:200]))]
    names = tag("nav", *links, aria_label="Sections") if links else Html("")
    foot = tag("footer", tag("p", "Made by cswf report from the files in the run's folder."))
    return document(title, tag("main", head, names, *parts, foot), {"curves-data": sections.curve_data(runs)})


def _made(make: Callable[[], str], what: str) -> str:
    """Turn whatever goes wrong into one sentence: a report must never break a run."""
    try:
        return make()
    except CswfError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"no report of {what} can be made: {type(error).__name__}: {reason}") from error
