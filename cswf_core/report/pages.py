"""Whole pages: of one run, and of several beside each other. What they look like is in `templates/`."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from cswf_core.errors import CswfError, RunError, printable
from cswf_core.numbers import bytes_in_words
from cswf_core.report import images, scores, sections
from cswf_core.report.sections import Section
from cswf_core.runs.folder import RunFolder
from cswf_core.scores.tables import in_words as score_in_words

GENERATOR = "cswf report"
"""What a page says about its origin; a file with it may be replaced by another page."""


def write_report(directory: RunFolder) -> None:
    """Write a run's report.html from the files in its folder; raises `CswfError` if that cannot be done."""
    directory.write("report.html", single(directory.path))


def single(folder: Path, *, beside: bool = True) -> str:
    """Return the page of one run or evaluation.

    `beside` says that the page will lie in the folder, so that it can refer to the files there.
    """
    return _made(lambda: _run_page(_read(folder), beside=beside), str(folder))


def compare(folders: Sequence[Path]) -> str:
    """Return one page on several runs, each named by its folder."""
    return _made(lambda: _comparison_page(_read_several(folders)), ", ".join(map(str, folders)))


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


def _read(folder: Path, most: int | None = None) -> RunFolder:
    """Read the folder of a run or an evaluation, and so many samples; raise `RunError` if it is none."""
    run = RunFolder(folder)
    if not folder.is_dir() or not (run.is_run or run.file("metrics.json").is_file()):
        raise RunError(
            f"{folder} is not the folder of a run or an evaluation: it has none of run.json, recipe.yaml and "
            "metrics.json"
        )
    for name in ("record", "recipe_text", "recipe", "rows", "frames", "evaluated", "scores"):
        getattr(run, name)  # what is damaged is known before the first section is made
    run.images("samples.npz", most)
    run.images("real.npz", images.FEW_SAMPLES)
    run.label = run.title
    return run


def _read_several(folders: Sequence[Path]) -> list[RunFolder]:
    """Read several runs, each with a label of its own (title, else folder, else path) and one of 8 colours."""
    runs = [_read(folder, images.FEW_SAMPLES) for folder in folders]
    paths = [str(run.path) for run in runs]
    choices = [run.title for run in runs], [run.path.resolve().name for run in runs], paths
    numbered = [f"{path} ({i})" for i, path in enumerate(paths, 1)]
    labels = next((labels for labels in choices if len(set(labels)) == len(runs)), numbered)
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        run.label = label
        run.colour = i % 8
    return runs


def _run_page(run: RunFolder, *, beside: bool) -> str:
    samples, chart = images.samples(run)
    parts = [
        samples,
        images.offline(run),
        images.completions(run),
        sections.curves([run]),
        images.flow(run),
        scores.metrics(run, chart),
        images.neighbours(run),
        sections.limitations(run),
        sections.downloads(run, beside=beside),
        sections.repeat(run),
        sections.recipe(run),
        sections.citation(run),
        Section("versions", "Versions", "sections.versions", sections.versions(run)),
    ]
    return _page(run.title, parts, [run], scores.headline(run))


def _comparison_page(runs: Sequence[RunFolder]) -> str:
    sample_bytes = images.OVERVIEW_BYTES * 2 // (len(runs) + 1)
    gif_bytes = min(images.GIF_BYTES, 4_000_000 // len(runs))
    names = list(dict.fromkeys(name for run in runs for name in sections.facts(run) if name != "started"))
    galleries = [(run, images.overview(run, sample_bytes, columns=8)) for run in runs]
    flows = [(run, images.flow_picture(run, gif_bytes)) for run in runs]
    parts = [
        Section("runs", "Runs", "sections.overview", {"runs": runs, "facts": names}),
        scores.metrics_compared(runs),
        Section("samples", "Samples", "samples.samples_compared", [each for each in galleries if each[1]]),
        images.neighbours_compared(runs),
        Section("flow", "Flow", "samples.flow_compared", [each for each in flows if each[1]]),
        sections.curves(runs),
        sections.recipe_differences(runs),
        sections.versions_compared(runs),
    ]
    title = f"{len(runs)} runs: {', '.join(run.label for run in runs)}"
    return _page(title, parts, runs)


def _page(
    title: str, parts: Sequence[Section], runs: Sequence[RunFolder], headline: Mapping[str, Any] | None = None
) -> str:
    """Fill the template; the page's policy allows its own script and no other, and no address outside."""
    templates = files("cswf_core.report") / "templates"
    script = "\n".join((templates / name).read_text(encoding="utf-8") for name in ("start.js", "curves.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            generator=GENERATOR,
            policy=policy,
            script=script,
            sections=[section for section in parts if section.content or section.problems],
            curves=sections.curve_data(runs),
            runs=runs,
            headline=headline,
        )
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
        "facts": sections.facts,
        "ending": sections.ending,
        "of_classes": scores.score_of_classes,
    }
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _visible(value: Any) -> Any:
    """Return a value as a page shows it: of a text, line by line, what cannot be seen as escapes."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "\n".join(map(printable, value.split("\n")))
