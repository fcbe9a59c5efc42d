"""Whole pages: of one run, and of several beside each other. What they look like is in `templates/`."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from cswf_core.errors import CswfError, RunError, printable
from cswf_core.numbers import bytes_in_words
from cswf_core.report import cite, comparison, images, pictured, scores
from cswf_core.report.curves import curve_data, curves
from cswf_core.report.facts import ending, facts, versions
from cswf_core.report.limitations import limitations
from cswf_core.report.read import ReportedRun, read_run, read_runs
from cswf_core.report.section import Section
from cswf_core.runs.folder import RunFolder
from cswf_core.scores.captions import in_words as score_in_words

GENERATOR = "cswf report"
"""What a page says about its origin; a file with it may be replaced by another page."""

SCRIPTS = ("start.js", "pager.js", "film.js", "curves.js")


def write_report(directory: RunFolder) -> None:
    """Write a run's report.html from the files in its folder; raises `CswfError` if that cannot be done."""
    directory.write("report.html", single(directory.path))


def single(folder: Path, *, samples: int | None = None, beside: bool = True) -> str:
    """Return the page of one run or evaluation.

    It holds as many of its samples as some megabytes do, or `samples` of them. `beside` says that the page will
    lie in the folder, so that it can refer to the files there.
    """
    return _made(lambda: _run_page(read_run(folder, samples), beside=beside), str(folder))


def compare(folders: Sequence[Path]) -> str:
    """Return one page on several runs, each named by its folder."""
    return _made(lambda: _comparison_page(read_runs(folders)), ", ".join(map(str, folders)))


def is_report(path: Path) -> bool:
    """Say whether a file is a page of ours, which another may replace."""
    try:
        with path.open("rb") as file:
            return f'content="{GENERATOR}"'.encode() in file.read(1000)
    except OSError:
        return False


def _made(make: Callable[[], str], folders: str) -> str:
    """Turn whatever goes wrong into one sentence: a report must never break a run."""
    try:
        return make()
    except CswfError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"no report of {folders} can be made: {type(error).__name__}: {reason}") from error


def _run_page(run: ReportedRun, *, beside: bool) -> str:
    gallery = images.samples(run)
    chart = pictured.chart_beside(run, gallery)
    sections = [
        pictured.samples(run, gallery, chart),
        pictured.offline(run),
        pictured.completions(run),
        curves([run]),
        pictured.flow(run),
        scores.metrics(run, chart),
        pictured.neighbours(run),
        limitations(run),
        cite.downloads(run, beside=beside),
        cite.repeat(run),
        cite.recipe(run),
        cite.citation(run),
        Section("versions", "Versions", "sections.versions", versions(run)),
    ]
    return _page(run.name, sections, [run], scores.headline(run))


def _comparison_page(runs: Sequence[ReportedRun]) -> str:
    sample_bytes = images.OVERVIEW_BYTES * 2 // (len(runs) + 1)
    frame_bytes = images.FRAME_BYTES * 4 // (3 * len(runs))
    names = list(dict.fromkeys(name for run in runs for name in facts(run) if name != "started"))
    galleries = [(run, some) for run in runs if (some := images.samples(run, sample_bytes, columns=8))]
    films = [(run, film) for run in runs if (film := images.film(run, frame_bytes))]
    sections = [
        Section("runs", "Runs", "sections.overview", {"runs": runs, "facts": names}),
        comparison.metrics_compared(runs),
        Section("samples", "Samples", "samples.samples_compared", galleries),
        pictured.neighbours_compared(runs),
        Section("flow", "Flow", "samples.flow_compared", films),
        curves(runs),
        comparison.differences(runs),
        comparison.versions_compared(runs),
    ]
    title = f"{len(runs)} runs: {', '.join(run.label for run in runs)}"
    return _page(title, sections, runs)


def _page(
    title: str,
    sections: Sequence[Section],
    runs: Sequence[ReportedRun],
    headline: scores.Headline | None = None,
) -> str:
    """Fill the template; the page's policy allows its own script and no other, and no address outside."""
    templates = files("cswf_core.report") / "templates"
    script = "\n".join((templates / name).read_text(encoding="utf-8") for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    template = _templates().get_template("page.html")
    return template.render(
        title=title,
        generator=GENERATOR,
        policy=policy,
        script=script,
        sections=[section for section in sections if section.content or section.problems],
        curves=curve_data(runs),
        runs=runs,
        headline=headline,
    )


@functools.cache
def _templates() -> jinja2.Environment:
    """Return the templates; texts are escaped in them unless they are said to be safe."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cswf_core.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
    )
    environment.filters |= {
        "score": score_in_words,
        "size": bytes_in_words,
        "facts": facts,
        "ending": ending,
        "of_classes": pictured.score_of_classes,
    }
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _visible(value: Any) -> Any:
    """Return a value as a page shows it: of a text, line by line, what cannot be seen as escapes."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "\n".join(map(printable, value.split("\n")))
