"""Pages of one run, and of several beside each other, with their pictures; their looks are in `templates/`."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import attrs
import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cswf_core.errors import CswfError, RunError, printable
from cswf_core.files import read_whole
from cswf_core.numbers import bytes_in_words
from cswf_core.pictures.frames import GIF_PIXELS
from cswf_core.pictures.grid import Bytes, arrangement, mosaic, png
from cswf_core.pictures.read import read_picture
from cswf_core.report import sections
from cswf_core.report.sections import Section, address, class_charts, problems, safe_name
from cswf_core.runs.folder import RunFolder, SampledImages
from cswf_core.runs.two_samples import read_test
from cswf_core.scores.tables import in_words as score_in_words

GENERATOR = "cswf report"
"""What a page says about its origin; a file with it may be replaced by another page."""

OVERVIEW_BYTES = 600_000
GIF_BYTES = 1_900_000
MOST_BYTES = 10**8
"""Bytes of an overview of samples and of an animation, before they are packed; of a picture that is read."""

FEW_SAMPLES = 120
"""Images that are enough for an overview: samples in a comparison of runs, and real images."""

COLUMNS = 12
ROWS = 20
"""Samples of an overview at most: in a row; rows, which are classes if there are any."""


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
    """Read the folder of a run or an evaluation, with `most` samples; raise `RunError` if it is none."""
    run = RunFolder(folder)
    if not folder.is_dir() or not (run.is_run or run.file("metrics.json").is_file()):
        raise RunError(
            f"{folder} is not the folder of a run or an evaluation: it has none of run.json, recipe.yaml and "
            "metrics.json"
        )
    for name in ("record", "recipe_text", "recipe", "rows", "frames", "evaluated", "scores"):
        getattr(run, name)  # what is damaged is known before the first section is made
    run.images("samples.npz", most)
    run.images("real.npz", FEW_SAMPLES)
    run.label = run.title
    return run


def _read_several(folders: Sequence[Path]) -> list[RunFolder]:
    """Read several runs, each with a label of its own (title, else folder, else path) and one of 8 colours."""
    runs = [_read(folder, FEW_SAMPLES) for folder in folders]
    paths = [str(run.path) for run in runs]
    choices = [run.title for run in runs], [run.path.resolve().name for run in runs], paths
    numbered = [f"{path} ({i})" for i, path in enumerate(paths, 1)]
    labels = next((labels for labels in choices if len(set(labels)) == len(runs)), numbered)
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        run.label = label
        run.colour = i % 8
    return runs


def _run_page(run: RunFolder, *, beside: bool) -> str:
    gallery, chart = samples(run)
    parts = [
        gallery,
        offline(run),
        completions(run),
        sections.curves([run]),
        flow(run),
        sections.metrics(run, chart),
        neighbours(run),
        sections.limitations(run),
        sections.downloads(run, beside=beside),
        sections.repeat(run),
        sections.recipe(run),
        sections.citation(run),
        Section("versions", "Versions", "sections.versions", sections.versions(run)),
    ]
    return _page(run.title, parts, [run], sections.headline(run))


def _comparison_page(runs: Sequence[RunFolder]) -> str:
    sample_bytes = OVERVIEW_BYTES * 2 // (len(runs) + 1)
    gif_bytes = min(GIF_BYTES, 4_000_000 // len(runs))
    names = list(dict.fromkeys(name for run in runs for name in sections.facts(run) if name != "started"))
    galleries = [(run, overview(run, sample_bytes, columns=8)) for run in runs]
    flows = [(run, flow_picture(run, gif_bytes)) for run in runs]
    parts = [
        Section("runs", "Runs", "sections.overview", {"runs": runs, "facts": names}),
        sections.metrics_compared(runs),
        Section("samples", "Samples", "samples.samples_compared", [each for each in galleries if each[1]]),
        neighbours_compared(runs),
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
        "of_classes": sections.score_of_classes,
    }
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _visible(value: Any) -> Any:
    """Return a value as a page shows it: of a text, line by line, what cannot be seen as escapes."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "\n".join(map(printable, value.split("\n")))


@attrs.frozen
class Picture:
    """A picture within a page; its place is kept before it is decoded."""

    src: str = attrs.field(repr=False)
    alt: str
    width: int
    height: int
    kind: Literal["pixels", "drawing"] = "drawing"
    """`pixels` are enlarged with sharp edges, a `drawing` is shown as it is, on white."""


def overview(run: RunFolder, budget: int = OVERVIEW_BYTES, columns: int = COLUMNS) -> dict[str, Any] | None:
    """Return an overview of a run's samples: by class if these have names, else what the run has drawn.

    It has one picture of all samples (`whole`) and one of real images, or lines for classes, and a note.
    """
    loaded = run.images("samples.npz")
    gallery: dict[str, Any] = {"whole": None, "real": None, "lines": [], "note": ""}
    if loaded is None or (loaded.labels is not None and not run.classes):
        drawn = drawing(run, "samples.png", f"Samples of {run.label}")
        if drawn is not None or loaded is None:
            return None if drawn is None else {**gallery, "whole": drawn, "real": _real(run, budget)}
    if loaded.labels is not None:
        return {**gallery, **_by_class(loaded.images, loaded.labels, run, budget, columns)}
    most = min(columns, COLUMNS) * 6
    whole = _together(loaded.images, budget, most, f"samples of {run.label}")
    return {**gallery, "whole": whole, "real": _real(run, budget)}


def _real(run: RunFolder, budget: int) -> Picture | None:
    """Return real images as one picture; None if the run has kept none."""
    real = run.images("real.npz")
    return None if real is None else _together(real.images, budget // 2, COLUMNS * 3, "real images")


def _together(images: Bytes, budget: int, most: int, alt: str) -> Picture:
    """Return the first of n×C×H×W images as one picture, as many as the budget of bytes allows."""
    count = max(1, min(len(images), most, budget // images[0].size))
    whole = mosaic(images[:count], arrangement(None, count))
    return _enlarged(whole, max(images.shape[-2:]), f"{count} {alt}")


def _by_class(
    images: Bytes, labels: NDArray[np.int64], run: RunFolder, budget: int, columns: int
) -> dict[str, Any]:
    """Return a line of images for each class, with real ones beside them where there are some."""
    present = np.unique(labels)
    chosen = present[:ROWS]
    real: SampledImages | None = run.images("real.npz")
    if real is not None and real.labels is None:
        real = None
    wanted, few = (columns, 0) if real is None else (min(columns, 8), 3)
    room = budget // (len(chosen) * images[0].size)
    lines = []
    for c in chosen:
        name = run.classes[c] if 0 <= c < len(run.classes) else f"class {c}"
        row = _row(images[labels == c], max(1, min(wanted, room - few)), f"samples of class {name}")
        beside = None if real is None else _row(real.images[real.labels == c], few, f"real images of {name}")
        lines.append({"name": name, "samples": row, "real": beside})
    rest = f"{len(chosen)} of {len(present)} classes are shown." if len(present) > len(chosen) else ""
    return {"lines": lines, "note": rest}


def _row(images: Bytes, columns: int, alt: str) -> Picture | None:
    """Return the first of n×C×H×W images in a row with places for `columns`; None if there is none."""
    if not len(images):
        return None
    numbers = np.array([[i if i < len(images) else -1 for i in range(columns)]])
    return _enlarged(mosaic(images, numbers), max(images.shape[-2:]), alt)


def _enlarged(picture: Image.Image, side: int, alt: str) -> Picture:
    """Return a picture of few pixels, enlarged by a whole factor to some 64 pixels on the screen an image."""
    factor = max(1, 64 // side)
    width = picture.width * factor
    height = picture.height * factor
    return Picture(address(png(picture), "image/png"), alt, width, height, "pixels")


def drawing(run: RunFolder, name: str, alt: str) -> Picture | None:
    """Return a PNG of the run's folder as it is; None if there is none."""

    def read(path: Path) -> Picture:
        content = read_whole(path, MOST_BYTES)
        return Picture(address(content, "image/png"), alt, *read_picture(path, "RGB").size)

    return run.attempt(name, read)


def animation(run: RunFolder, budget: int = GIF_BYTES) -> Picture | None:
    """Return the flow as an animation, of fewer images if flow.gif has more bytes; None if it has none."""
    content = run.attempt("flow.gif", _gif)
    frames = run.frames
    if frames is not None and (content is None or len(content) > budget):
        content = frames.gif()
        if len(content) > budget and frames.images is not None:
            most = math.ceil(GIF_PIXELS / math.prod(side + 1 for side in frames.images.shape[-2:]))
            content = frames.fewer(most * budget // (len(content) * 5 // 4)).gif()
    if content is None or len(content) > budget:
        return None
    width, height = (int.from_bytes(content[at : at + 2], "little") for at in (6, 8))
    return Picture(address(content, "image/gif"), f"The flow of {run.label}, step by step", width, height)


def _gif(path: Path) -> bytes:
    content = read_whole(path, MOST_BYTES)
    if not content.startswith((b"GIF87a", b"GIF89a")) or len(content) < 10:
        raise ValueError("it is no GIF")
    return content


def flow_picture(run: RunFolder, budget: int = GIF_BYTES) -> Picture | None:
    """Return the animation of a run's flow, or what else the run has drawn of it."""
    return animation(run, budget) or drawing(run, "flow.png", f"The flow of {run.label}")


def flow(run: RunFolder) -> Section:
    """Return the flow over time."""
    return _pictured("flow", "Flow", flow_picture(run), problems(run, "frames.npz", "flow.png", "flow.gif"))


def _pictured(name: str, title: str, picture: Picture | None, told: Sequence[str], note: str = "") -> Section:
    """Return a section with one picture, and a note below it."""
    content = None if picture is None else {"image": picture, "note": note}
    return Section(name, title, "samples.drawing", content, told)


def samples(run: RunFolder) -> tuple[Section, dict[str, Any] | None]:
    """Return an overview of a run's samples, beside real images and a score of their classes; and its chart."""
    gallery = overview(run)
    told = problems(run, "samples.npz", "samples.png", "real.npz")
    if gallery is None:
        return Section("samples", "Samples", "samples.samples", None, told), None
    names = {line["name"] for line in gallery["lines"]}
    chart = next((chart for chart in class_charts(run.scores) if names & set(chart["bars"])), None)
    loaded = run.images("samples.npz")
    count = 0 if loaded is None else loaded.count
    some = f"Some of {count:,} samples." if count > 1 else ""
    content = {"gallery": gallery, "chart": chart, "note": " ".join(filter(None, (gallery["note"], some)))}
    return Section("samples", "Samples", "samples.samples", content, told), chart


def offline(run: RunFolder) -> Section:
    """Return the samples of which F_p was not made."""
    note = "Particles of which F_p was not made: carried along by the run, or drawn later from its saved model."
    file = "samples-offline.png"
    picture = drawing(run, file, f"Offline samples of {run.label}")
    archive = "samples-offline.npz"
    test = run.attempt(archive, read_test)
    if test is not None:
        note = f"{note} Compared{str(test).removeprefix('compared')}."
    return _pictured("offline", "Offline samples", picture, problems(run, file, archive), note)


def completions(run: RunFolder) -> Section:
    """Return what was seen of images, with completions and originals."""
    picture = drawing(run, "completions.png", "What was seen, completions, and the original, row by row")
    return _pictured("completions", "Completions", picture, problems(run, "completions.png"))


def _figures(run: RunFolder, ending: str = "") -> list[dict[str, Any]]:
    """Return the figures of a run's metrics, each with a title, a sentence, and an anchor with this ending."""
    figures = []
    for file in run.scores.figures:
        name = file.removesuffix(".png")
        picture = drawing(run, file, f"{name} of {run.label}")
        if picture is not None:
            figure = {
                "anchor": f"figure-{safe_name(name)}{ending}",
                "title": name.replace("-", " ").capitalize(),
                "lead": run.scores.leads.get(file, ""),
                "image": picture,
            }
            figures.append(figure)
    return figures


def neighbours(run: RunFolder) -> Section:
    """Return the figures of a run's metrics: its samples beside the training images nearest to them."""
    figures = _figures(run)
    told = problems(run, *run.scores.figures)  # known once the figures have been read
    return Section("neighbours", "Nearest neighbours", "samples.figures", figures, told)


def neighbours_compared(runs: Sequence[RunFolder]) -> Section:
    """Return the figures of the metrics of several runs."""
    cards = [(run, _figures(run, f"-{number}")) for number, run in enumerate(runs, 1)]
    content = [card for card in cards if card[1]]
    return Section("neighbours", "Nearest neighbours", "samples.figures_compared", content)
