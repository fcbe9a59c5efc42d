"""Sections of pictures: samples with a pager, figures of metrics, the flow over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cswf_core.report import images
from cswf_core.report.embedding import safe_name
from cswf_core.report.read import ReportedRun
from cswf_core.report.scores import ClassChart, class_charts
from cswf_core.report.section import Section, problems
from cswf_core.scores.captions import in_words as score_in_words

OFFLINE = "Particles of which F_p was not made: carried along by the run, or drawn later from its saved model."


def chart_beside(run: ReportedRun, gallery: images.Gallery | None) -> ClassChart | None:
    """Return the score of classes that is drawn beside their samples; None if there is no such score."""
    names = {line.name for line in gallery.lines} if gallery is not None else set()
    fitting = (chart for chart in class_charts(run.evaluation) if names and names & set(chart.bars))
    return next(fitting, None)


def samples(run: ReportedRun, gallery: images.Gallery | None, chart: ClassChart | None) -> Section:
    """Return an overview of a run's samples, real images and scores of classes, and a pager through more."""
    told = problems(run, "samples.npz", "samples.png", "real.npz")
    if gallery is None:
        return Section("samples", "Samples", "samples.samples", None, told)
    sheets = images.sheets(run)
    paged = len(sheets) > 1 or (run.samples is not None and len(run.samples.images) > images.MOST_TOGETHER)
    content = {
        "gallery": gallery,
        "chart": chart,
        "label": run.label,
        "sheets": sheets if paged else (),
        "note": " ".join(filter(None, (gallery.note, _how_many(run, paged=paged)))),
    }
    return Section("samples", "Samples", "samples.samples", content, told)


def _how_many(run: ReportedRun, *, paged: bool) -> str:
    """Return a sentence on how many samples are in the page, of how many."""
    loaded = run.samples
    if loaded is None:
        return ""
    if not paged:
        return f"Some of {loaded.count:,} samples." if loaded.count > 1 else ""
    if len(loaded.images) == loaded.count:
        return f"All {loaded.count:,} samples are in this page."
    return f"{len(loaded.images):,} of {loaded.count:,} samples are in this page; all are in samples.npz."


def drawn(run: ReportedRun, name: str, title: str, file: str, alt: str, note: str = "") -> Section:
    """Return a section with one picture of the run's folder as it is."""
    picture = images.drawing(run, file, alt)
    content = None if picture is None else {"image": picture, "note": note}
    return Section(name, title, "samples.drawing", content, problems(run, file))


def offline(run: ReportedRun) -> Section:
    """Return the samples of which F_p was not made."""
    file = "samples-offline.png"
    return drawn(run, "offline", "Offline samples", file, f"Offline samples of {run.label}", OFFLINE)


def completions(run: ReportedRun) -> Section:
    """Return what was seen of images, with completions and originals."""
    alt = "What was seen, completions, and the original, row by row"
    return drawn(run, "completions", "Completions", "completions.png", alt)


def figures(run: ReportedRun) -> list[dict[str, Any]]:
    """Return the figures of a run's metrics, each with an anchor, a title and a sentence."""
    listed = []
    for file in run.evaluation.figures:
        name = file.removesuffix(".png")
        picture = images.drawing(run, file, f"{name} of {run.label}")
        if picture is not None:
            title = name.replace("-", " ").capitalize()
            lead = run.evaluation.leads.get(file, "")
            anchor = f"figure-{safe_name(name)}"
            listed.append({"anchor": anchor, "title": title, "lead": lead, "image": picture})
    return listed


def neighbours(run: ReportedRun) -> Section:
    """Return the figures of a run's metrics: its samples beside the training images nearest to them."""
    listed = figures(run)
    told = problems(run, *run.evaluation.figures)
    return Section("neighbours", "Nearest neighbours", "samples.figures", listed, told)


def neighbours_compared(runs: Sequence[ReportedRun]) -> Section:
    """Return the figures of the metrics of several runs."""
    cards = [(run, listed) for run in runs if (listed := figures(run))]
    for run, listed in cards:
        for figure in listed:
            figure["anchor"] += f"-{runs.index(run) + 1}"
    return Section("neighbours", "Nearest neighbours", "samples.figures_compared", cards)


def flow(run: ReportedRun) -> Section:
    """Return the flow over time: frames with a slider, or what else the run has drawn of it."""
    film = images.film(run)
    content: Mapping[str, Any] = {
        "film": film,
        "image": images.drawing(run, "flow.png", f"The flow of {run.label}") if film is None else None,
        "animation": images.animation(run),
    }
    told = problems(run, "frames.npz", "flow.png", "flow.gif")
    return Section("flow", "Flow", "samples.flow", content if any(content.values()) else None, told)


def score_of_classes(chart: ClassChart) -> str:
    """Return what a chart of classes shows, in words."""
    return f"{score_in_words(chart.name)}{' held out' if chart.held_out else ''}"
