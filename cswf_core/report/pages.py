"""Whole pages: of one run, and of several beside each other. What they look like is in `templates/`."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import jinja2
import yaml

from cswf_core.errors import CswfError, RunError, printable
from cswf_core.recipe.render import flattened
from cswf_core.report import images, words
from cswf_core.report.read import COLUMNS, Run, read_run, read_runs
from cswf_core.runs.folder import RunFolder
from cswf_core.scores.document import Score, mapping

GENERATOR = "cswf report"
"""What a page says about its origin; a file with it may be replaced by another page."""

SCRIPTS = ("start.js", "film.js", "curves.js")

OFFLINE = "Particles of which F_p was not made: carried along by the run, or drawn later from its saved model."

NEIGHBOURS = "nearest-neighbours.png"

CUSTOMARY = 50_000
"""Images of each set that published FIDs are computed from, or nearly."""

COMPARED = ("run.json", "metrics.json", "samples.npz", "samples.png", "frames.npz", "recipe.yaml")
"""Files whose damage is told beside the scores of several runs."""

UNCOMPARED = ("name", "description")
"""Keys of a recipe that say nothing about what was computed."""

_KEY = re.compile(r"^(\s*(?:- )?)([^\s:#][^:#]*)(:)(?=\s|$)")

ENDINGS = {
    "done": "",
    "interrupted": "It was stopped before its end, and cswf resume goes on; what it had is shown.",
    "running": "It had not ended when this page was written; run cswf report again to refresh it.",
}
"""A sentence for each status but `failed`, which has a reason of its own."""


@attrs.frozen
class Section:
    """A part of a page under a heading; it is left out if there is nothing to show and nothing wrong."""

    name: str
    title: str
    macro: str
    """Its macro in templates/sections.html."""
    content: Any
    problems: Sequence[str] = ()


def write_report(directory: RunFolder) -> None:
    """Write a run's report.html from the files in its folder; raises `CswfError` if that cannot be done."""
    directory.write("report.html", single(directory.path))


def single(folder: Path) -> str:
    """Return the page of one run."""
    return _made(lambda: _run_page(read_run(folder)), str(folder))


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


def _run_page(run: Run) -> str:
    offline = {"samples-offline.png": f"Offline samples of {run.label}"}
    completed = {"completions.png": "What was seen, completions, and the original, row by row"}
    sections = [
        _samples(run),
        _drawings(run, "offline", "Offline samples", offline, note=OFFLINE),
        _flow(run),
        _curves([run]),
        _metrics(run),
        _neighbours(run),
        _drawings(run, "completions", "Completions", completed),
        _recipe(run),
        _versions(run),
    ]
    return _page(run.name, sections, [run])


def _comparison_page(runs: Sequence[Run]) -> str:
    sample_bytes = images.SAMPLE_BYTES * 2 // (len(runs) + 1)
    frame_bytes = images.FRAME_BYTES * 4 // (3 * len(runs))
    names = list(dict.fromkeys(name for run in runs for name in _facts(run) if name != "started"))
    galleries = [(run, some) for run in runs if (some := images.samples(run, sample_bytes, columns=8))]
    films = [(run, film) for run in runs if (film := images.film(run, frame_bytes))]
    sections = [
        Section("runs", "Runs", "overview", {"runs": runs, "facts": names}),
        _metrics_compared(runs),
        Section("samples", "Samples", "samples_compared", galleries),
        Section("flow", "Flow", "flow_compared", films),
        _curves(runs),
        _differences(runs),
    ]
    title = f"{len(runs)} runs: {', '.join(run.label for run in runs)}"
    return _page(title, sections, runs)


def _page(title: str, sections: Sequence[Section], runs: Sequence[Run]) -> str:
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
        curves=_curve_data(runs),
        runs=runs,
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
    environment.filters |= {"score": words.score, "facts": _facts, "ending": _ending}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def _visible(value: Any) -> Any:
    """Return a value as a page shows it: of a text, line by line, what cannot be seen as escapes."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "\n".join(map(printable, value.split("\n")))


def _ending(run: Run) -> str:
    """Return a sentence on a run that is not simply done."""
    if run.status == "failed":
        return str(run.facts.get("error") or "It has left no reason.")
    return ENDINGS.get(run.status, "How it ended is not known.")


def _facts(run: Run) -> dict[str, str]:
    """Return what was run, name → words; what is not known is left out."""
    record = run.facts
    data = mapping(record.get("data"))
    shape = data.get("shape")
    size = "×".join(map(str, shape)) if isinstance(shape, list) else ""
    samples = f"{words.count(data['samples'])} samples" if data.get("samples") is not None else ""
    done, planned = record.get("steps_done"), record.get("steps_planned")
    steps = words.count(done if done is not None else planned)
    if isinstance(planned, int) and isinstance(done, int) and done != planned:
        steps = f"{done:,} of {planned:,}"
    facts = {
        "data": ", ".join(filter(None, (run.data_name, samples, size))),
        "particles": words.count(record.get("particles")),
        "carried along": _carried(record),
        "steps": steps,
        "time": words.seconds(record.get("seconds")),
        "device": _device(mapping(record.get("device"))),
        "seed": "" if record.get("seed") is None else str(record["seed"]),
        "started": str(record.get("started") or "").replace("T", " ").replace("+00:00", " UTC"),
    }
    return {name: text for name, text in facts.items() if text}


def _carried(record: Mapping[str, Any]) -> str:
    """Return how wide the particles that were carried along spread; nothing if there were none."""
    usual, width = record.get("spread"), record.get("offline_spread")
    return f"particles that spread {width / usual:.2f} times as wide" if usual and width else ""


def _device(device: Mapping[str, Any]) -> str:
    name = str(device.get("name") or "")
    if device.get("type") == "cpu":
        threads = device.get("threads")
        return f"CPU {name}".rstrip() + (f", {threads} thread{'s'[: threads != 1]}" if threads else "")
    return name or str(device.get("type") or "")


def _problems(run: Run, *names: str) -> list[str]:
    """Return the sentences on damaged files of these names."""
    return [run.problems[name] for name in names if name in run.problems]


def _samples(run: Run) -> Section:
    gallery = images.samples(run)
    if gallery is not None and run.samples is not None:
        notes = (gallery.note, f"Some of {run.samples.count:,} samples.")
        gallery = attrs.evolve(gallery, note=" ".join(filter(None, notes)))
    return Section("samples", "Samples", "gallery", gallery, _problems(run, "samples.npz", "samples.png"))


def _drawings(
    run: Run, name: str, title: str, alts: Mapping[str, str], lead: str = "", note: str = ""
) -> Section:
    """Return a section with pictures of the run's folder as they are, file → text; `lead` is on the first."""
    drawn = {file: images.drawing(run, file, alt) for file, alt in alts.items()}
    pictures = [picture for picture in drawn.values() if picture is not None]
    lead = lead if any(list(drawn.values())[:1]) else ""
    content = {"images": pictures, "lead": lead, "note": note} if pictures else None
    return Section(name, title, "drawings", content, _problems(run, *alts))


def _neighbours(run: Run) -> Section:
    names = dict.fromkeys((NEIGHBOURS, *run.evaluation.figures))
    alts = {name: f"{name.removesuffix('.png')} of {run.label}" for name in names}
    lead = "Generated samples beside the training images nearest to them: what was copied would look the same."
    return _drawings(run, "neighbours", "Nearest neighbours", alts, lead)


def _flow(run: Run) -> Section:
    """Return the flow over time: frames with a slider, or what else the run has drawn of it."""
    film = images.film(run)
    content = {
        "film": film,
        "image": images.drawing(run, "flow.png", f"The flow of {run.label}") if film is None else None,
        "animation": images.animation(run),
    }
    problems = _problems(run, "frames.npz", "flow.png", "flow.gif")
    return Section("flow", "Flow", "flow", content if any(content.values()) else None, problems)


def _curves(runs: Sequence[Run]) -> Section:
    """Return the place for the curves of one run or several; a script draws them from `_curve_data`."""
    problems = [f"{run.label}: {text}" for run in runs for text in _problems(run, "metrics.jsonl")]
    stages = any(row[1] != run.rows[0][1] for run in runs for row in run.rows)
    content = {"stages": stages} if any(len(run.rows) > 1 for run in runs) else None
    return Section("curves", "Curves", "curves", content, problems)


def _curve_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what the script draws: for each run its label, colour and columns, milliseconds per step too."""
    listed = []
    for run in runs:
        columns: dict[str, list[float | None]] = {
            name: [row[c] for row in run.rows] for c, name in enumerate(COLUMNS)
        }
        columns["milliseconds"] = [None, *(_pace(a, b) for a, b in zip(run.rows, run.rows[1:], strict=False))]
        del columns["seconds"]
        listed.append({"label": printable(run.label), "colour": run.colour, **columns})
    return {"runs": listed}


def _pace(before: list[float | None], after: list[float | None]) -> float | None:
    """Return the milliseconds that a step took between two logged ones."""
    steps, seconds = ((after[c] or 0) - (before[c] or 0) for c in (0, 4))
    return float(f"{1000 * seconds / steps:.5g}") if steps > 0 and after[4] is not None else None


def _metrics(run: Run) -> Section:
    """Return a run's scores, against training and held-out samples side by side, and published ones."""
    evaluation, problems = run.evaluation, _problems(run, "metrics.json")
    if not evaluation.scores:
        return Section("metrics", "Metrics", "metrics", None, problems)
    splits = (False, True) if any(score.held_out for score in evaluation.scores) else (False,)
    rows = []
    for name in dict.fromkeys(score.row for score in evaluation.scores):
        pair = [evaluation.find(name, held_out=split) for split in splits]
        better = next((score.better for score in pair if score is not None and score.better), "")
        cells = ["" if score is None else words.number(score.value) for score in pair]
        rows.append({"name": name, "held_out": False, "better": better, "cells": cells})
    content = {
        "notes": evaluation.notes,
        "head": ["score", "training data", "held out"] if len(splits) > 1 else ["score", "value"],
        "rows": rows,
        "evaluation": _computed(run),
        "rivals": _rivals([run]),
    }
    return Section("metrics", "Metrics", "metrics", content, problems)


def _metrics_compared(runs: Sequence[Run]) -> Section:
    """Return a row for each score and a column for each run, the best one marked where that can be told."""
    problems = [f"{run.label}: {text}" for run in runs for text in _problems(run, *COMPARED)]
    keys = dict.fromkeys((score.row, score.held_out) for run in runs for score in run.evaluation.scores)
    computed = [(run.label, _computed(run)) for run in runs]
    content = {
        "runs": runs,
        "rows": [_compared_row(name, held_out, runs) for name, held_out in keys],
        "rivals": _rivals(runs),
        "notes": [(run.label, note) for run in runs for note in run.evaluation.notes],
        "evaluations": [(label, result) for label, result in computed if any(result.values())],
    }
    return Section("metrics", "Scores", "metrics_compared", content if keys else None, problems)


def _compared_row(name: str, held_out: bool, runs: Sequence[Run]) -> dict[str, Any]:
    pairs = [(run, run.evaluation.find(name, held_out=held_out)) for run in runs]
    scores = [(run, score) for run, score in pairs if score is not None]
    ways = {score.better for _, score in scores}
    better = ways.pop() if len(ways) == 1 else ""
    bases = {(s.data or run.data_name, s.digest, s.samples, str(s.parameters)) for run, s in scores}
    values = [score.value for _, score in scores if math.isfinite(score.value)]
    best = None
    if better and len(set(values)) > 1 and len(bases) == 1:  # of unlike things, nothing can be told
        best = min(values) if better == "lower" else max(values)
    cells = [("", False) if s is None else (words.number(s.value), s.value == best) for _, s in pairs]
    return {"name": name, "held_out": held_out, "better": better, "cells": cells}


def _computed(run: Run) -> dict[str, Any]:
    """Return how scores were computed: something on each, then what they have in common."""
    protocols = []
    for score in run.evaluation.scores:
        facts = [f"{key} = {value}" for key, value in score.parameters.items()]
        facts += [f"against {score.against}"] if score.against else []
        facts += [f"{score.samples:,} samples"] if score.samples is not None else []
        facts += [words.seconds(score.seconds)] if score.seconds is not None else []
        if facts or score.protocol:
            protocols.append((score.name, score.protocol, ", ".join(facts)))
    return {"protocols": protocols, "facts": run.evaluation_facts}


def _rivals(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return bars of our FID beside published ones, for every data set that has some."""
    charts = []
    for data in dict.fromkeys(run.data_name for run in runs):
        known = _published().get(data)
        ours = [(run, score) for run in runs if run.data_name == data and (score := _fid(run)) is not None]
        if known is None or not ours:
            continue
        bars = [_their_bar(entry) for entry in known["fid"]]
        bars += [_our_bar(run, score, f" run-{run.colour}" if len(ours) > 1 else "") for run, score in ours]
        bars.sort(key=lambda bar: float(bar["value"]))
        us = "This run" if len(runs) == 1 else "These runs"
        charts.append({"data": data, "bars": bars, "source": known["source"], "us": us})
    return charts


@functools.cache
def _published() -> dict[str, Any]:
    """Return published scores by the name of the data set's plugin."""
    text = (files("cswf_core.report") / "published.yaml").read_text(encoding="utf-8")
    return mapping(yaml.safe_load(text))


def _fid(run: Run) -> Score | None:
    score = run.evaluation.find("fid")
    fits = score is not None and score.value == score.value and score.data in ("", run.data_name)
    return score if fits else None


def _our_bar(run: Run, score: Score, colour: str) -> dict[str, Any]:
    """Return the bar of a run; where its number is of fewer images than is customary, it says so."""
    few = min(score.samples or 0, score.count or 0) < CUSTOMARY
    counts = f", of {words.count(score.samples)} samples against {words.count(score.count)}" if few else ""
    return {
        "value": score.value,
        "name": run.label,
        "remark": f"ours{counts}",
        "text": words.number(score.value),
        "kind": f"ours{colour}",
    }


def _their_bar(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "value": entry["value"],
        "name": entry["method"],
        "remark": ", ".join(filter(None, (entry["group"], entry.get("remark")))),
        "text": f"{entry.get('bound', '')}{entry['value']:g}",
        "kind": "peer" if entry["group"] == "nonparametric" else "other",
    }


def _recipe(run: Run) -> Section:
    """Return the recipe as YAML, to read and to copy."""
    lines = [_split_line(line) for line in run.recipe_text.rstrip("\n").split("\n")]
    content = lines if run.recipe_text else None
    return Section("recipe", "Recipe", "recipe", content, _problems(run, "recipe.yaml"))


def _split_line(line: str) -> tuple[str, str, str]:
    """Return what comes before a line's key, the key, and what comes after it."""
    match = _KEY.match(line)
    return (line, "", "") if match is None else (match[1], match[2], line[match.end(2) :])


def _differences(runs: Sequence[Run]) -> Section:
    """Return the keys of the recipes that are not the same in all runs, with the value of each run."""
    flat = [flattened(run.recipe) for run in runs]
    keys = dict.fromkeys(key for recipe in flat for key in recipe if key not in UNCOMPARED)
    values = {key: [recipe.get(key, "–") for recipe in flat] for key in keys}
    rows = [(key, row) for key, row in values.items() if len(set(row)) > 1]
    return Section("recipe", "Recipe differences", "differences", {"runs": runs, "rows": rows})


def _versions(run: Run) -> Section:
    """Return the versions of what a result depends on, and the digests of data and samples, folded away."""
    rows = [(str(name), str(version)) for name, version in mapping(run.facts.get("versions")).items()]
    digests = {
        "SHA-256 of the data": mapping(run.facts.get("data")).get("sha256"),
        "SHA-256 of the samples": run.facts.get("samples_sha256"),
    }
    rows += [(title, str(digest)) for title, digest in digests.items() if digest]
    return Section("versions", "Versions", "versions", rows)
