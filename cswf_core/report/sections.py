"""The sections of a page that a run has alone, or that look the same for several runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cswf_core.report import images, words
from cswf_core.report.html import Html, details, join, table, tag
from cswf_core.report.published import Published, published
from cswf_core.report.read import COLUMNS, Run
from cswf_core.report.scores import DIRECTIONS, Evaluation, Score

NEIGHBOURS = "nearest-neighbours.png"

CUSTOMARY = 50_000
"""Images of each set that published FIDs are computed from, or nearly."""

COLOURS = 8
"""Colours that runs are told apart by; the ninth has the first one's again."""

_KEY = re.compile(r"^(\s*(?:- )?)([^\s:#][^:#]*)(:)(?=\s|$)")


def section(name: str, title: str, *content: str, problems: Sequence[str] = ()) -> Html:
    """Return a section under a heading; nothing if there is nothing to show and nothing wrong."""
    wrong = [tag("p", sentence, class_="problem") for sentence in problems]
    if not any(content) and not wrong:
        return Html("")
    return tag("section", tag("h2", title), *wrong, *content, id=name)


def wrong_with(run: Run, *names: str) -> list[str]:
    """Return the sentences on damaged files of these names."""
    return [run.problems[name] for name in names if name in run.problems]


def badge(run: Run) -> Html:
    """Return a run's status as a small label."""
    said, _ = words.status(run)
    known = said if said in {"done", "failed", "interrupted", "running"} else "unknown"
    return tag("span", said, class_=f"badge {known}")


def heading(run: Run) -> Html:
    """Return the top of a run's page: what it is, how it ended, and what was run."""
    _, sentence = words.status(run)
    known = [join(tag("dt", name), tag("dd", text)) for name, text in words.facts(run).items()]
    return tag(
        "header",
        tag("p", "cswf run ", badge(run), class_="over"),
        tag("h1", run.name),
        tag("p", run.description, class_="lead") if run.description else Html(""),
        tag("p", sentence, class_=f"ending {words.status(run)[0]}") if sentence else Html(""),
        *(tag("p", text, class_="problem") for text in wrong_with(run, "run.json")),
        tag("dl", *(tag("div", pair) for pair in known), class_="facts") if known else Html(""),
    )


def player(*films: str) -> Html:
    """Return films with one slider for all; without scripts each is a strip to scroll."""
    controls = tag(
        "div",
        tag("button", "Play", type="button", class_="play", aria_label="Play the flow"),
        tag("input", type="range", min=0, max=0, value=0, step=1, aria_label="Moment of the flow"),
        tag("output", "", aria_live="off"),
        class_="controls",
    )
    return tag("div", *films, controls, class_="player")


def samples(run: Run) -> Html:
    """Return what the run has generated, or some of it."""
    shown, found = images.samples(run), run.samples
    some = shown and found is not None and found.images is not None
    told = f"Some of {found.count:,} samples." if some and found is not None else ""
    content = (shown, tag("p", told, class_="small under") if told else Html(""))
    return section("samples", "Samples", *content, problems=wrong_with(run, "samples.npz", "samples.png"))


def offline(run: Run) -> Html:
    """Return what `cswf sample` has drawn from the run's saved model."""
    name = "samples-offline.png"
    shown = images.drawing(run, name, f"Samples that the model of {run.label} has made later")
    told = tag("p", "From new noise through the saved maps, without the data.", class_="small under")
    content = (shown, told) if shown else ()
    return section("offline", "New samples from its model", *content, problems=wrong_with(run, name))


def flow(run: Run) -> Html:
    """Return the flow over time: frames with a slider, or what else the run has drawn of it."""
    shown = images.frames(run)
    content = [player(shown)] if shown else [images.drawing(run, "flow.png", f"The flow of {run.label}")]
    saved = images.animation(run)
    if saved:
        content.append(tag("p", saved, class_="actions"))
    problems = wrong_with(run, "frames.npz", "flow.png", "flow.gif")
    return section("flow", "Flow", *content, problems=problems)


def curves(runs: Sequence[Run]) -> Html:
    """Return the place for the curves of one run or several; a script draws them from `curve_data`."""
    problems = [f"{run.label}: {text}" for run in runs for text in wrong_with(run, "metrics.jsonl")]
    if not any(len(run.rows) > 1 for run in runs):
        return section("curves", "Curves", problems=problems)
    hint = "Drag to zoom, double-click to go back. After a click, the wheel and the keys + − ← → 0 zoom too."
    if any(row[1] != run.rows[0][1] for run in runs for row in run.rows):
        hint += " Dotted lines are the ends of stages."
    content = (
        tag("div", "", class_="charts"),
        tag("p", hint, class_="small hint"),
        tag("noscript", tag("p", "The curves are drawn by a script; their numbers are in metrics.jsonl.")),
    )
    return section("curves", "Curves", *content, problems=problems)


def curve_data(runs: Sequence[Run]) -> dict[str, Any]:
    """Return what the script draws: for each run its label, colour and columns, milliseconds per step too."""
    listed = []
    for i, run in enumerate(runs):
        columns: dict[str, list[float | None]] = {
            name: [row[c] for row in run.rows] for c, name in enumerate(COLUMNS)
        }
        columns["milliseconds"] = [None, *(_pace(a, b) for a, b in zip(run.rows, run.rows[1:], strict=False))]
        del columns["seconds"]
        listed.append({"label": run.label, "colour": i % COLOURS, **columns})
    return {"runs": listed}


def _pace(before: list[float | None], after: list[float | None]) -> float | None:
    """Return the milliseconds that a step took between two logged ones."""
    steps, seconds = ((after[c] or 0) - (before[c] or 0) for c in (0, 4))
    return float(f"{1000 * seconds / steps:.5g}") if steps > 0 and after[4] is not None else None


def metrics(run: Run) -> Html:
    """Return a run's scores, against training and held-out samples side by side, and published ones."""
    found, problems = run.evaluation, wrong_with(run, "metrics.json")
    if found is None:
        return section("metrics", "Metrics", problems=problems)
    rows = dict.fromkeys(score.row for score in found.scores)
    has_test = any(score.is_test for score in found.scores)
    head = ["score", "training data", "held out"] if has_test else ["score", "value"]
    lines = []
    for name in rows:
        pair = [found.find(name), *([found.find(f"{name}_test")] if has_test else [])]
        better = next((score.better for score in pair if score is not None and score.better), "")
        cells = [tag("td", "" if score is None else words.number(score.value), class_="n") for score in pair]
        lines.append([join(words.score(name), direction(better)), *cells])
    content = [notes(found), table(head, lines, class_="scores")]
    if computed(found):
        content.append(details("How these were computed", computed(found)))
    content += rivals([run])
    return section("metrics", "Metrics", *content, problems=problems)


def direction(better: str) -> Html:
    """Return an arrow that says which way a score is better."""
    if better not in DIRECTIONS:
        return Html("")
    arrow = "↓" if better == "lower" else "↑"
    return join(" ", tag("span", arrow, class_="way", title=DIRECTIONS[better], aria_label=DIRECTIONS[better]))


def notes(found: Evaluation) -> Html:
    """Return what an evaluator must see."""
    return tag("aside", *(tag("p", note) for note in found.notes), class_="notes") if found.notes else Html("")


def computed(found: Evaluation) -> Html:
    """Return how scores were computed: a paragraph for each, then what they have in common."""
    rows = [row for score in found.scores if (row := _protocol(score))]
    parts = [tag("dl", *rows, class_="protocols")] if rows else []
    if found.facts:
        parts.append(table((), list(found.facts.items()), class_="plain"))
    return join(*parts)


def _protocol(score: Score) -> Html | None:
    told = [f"{key} = {value}" for key, value in score.parameters.items()]
    told += [f"against {score.against}"] if score.against else []
    told += [f"{score.samples:,} samples"] if score.samples is not None else []
    told += [words.seconds(score.seconds)] if score.seconds is not None else []
    if not told and not score.protocol:
        return None
    first = tag("p", score.protocol) if score.protocol else Html("")
    return join(tag("dt", words.score(score.name)), tag("dd", first, tag("p", ", ".join(told), class_="small")))


def rivals(runs: Sequence[Run]) -> list[Html]:
    """Return bars of our FID beside published ones, for every data set that has some."""
    found = []
    for data in dict.fromkeys(run.data_name for run in runs):
        known = published(data, "fid")
        ours = [(run, score) for run in runs if run.data_name == data and (score := _fid(run)) is not None]
        if known is None or not ours:
            continue
        widest = max(*(entry.value for entry in known.entries), *(score.value for _, score in ours))
        bars = [(entry.value, _published(entry, widest)) for entry in known.entries]
        for index, (run, score) in enumerate(ours):
            colour = f" run-{index % COLOURS}" if len(ours) > 1 else ""
            bars.append((score.value, _ours(run, score, widest, colour)))
        bars.sort(key=lambda bar: bar[0])
        key = tag(
            "p",
            tag("b", "This run" if len(runs) == 1 else "These runs", class_="ours"),
            " beside ",
            tag("b", "nonparametric peers"),
            " and other methods, in grey. ",
            known.source,
            class_="small",
        )
        found += [
            tag("h3", f"FID on {data}, published and ours"),
            tag("ul", *(bar for _, bar in bars), class_="bars"),
            key,
        ]
    return found


def _fid(run: Run) -> Score | None:
    score = run.evaluation.find("fid") if run.evaluation is not None else None
    fits = score is not None and score.value == score.value and score.data in ("", run.data_name)
    return score if fits else None


def _published(entry: Published, widest: float) -> Html:
    remark = ", ".join(filter(None, (entry.group, entry.remark)))
    return _bar(entry.value, widest, entry.method, remark, entry.text, "peer" if entry.is_peer else "other")


def _ours(run: Run, score: Score, widest: float, colour: str) -> Html:
    """Return the bar of a run; where its number is of fewer images than is customary, it says so."""
    few = min(score.samples or 0, score.count or 0) < CUSTOMARY
    counts = f", of {words.count(score.samples)} samples against {words.count(score.count)}" if few else ""
    return _bar(score.value, widest, run.label, f"ours{counts}", words.number(score.value), f"ours{colour}")


def _bar(value: float, widest: float, name: str, remark: str, text: str, kind: str) -> Html:
    width = f"width:{max(0.4, 100 * value / max(widest, 1e-12)):.1f}%"
    label = tag("span", name, " ", tag("small", remark), class_="who")
    fill = tag("span", tag("span", "", class_="fill", style=width), class_="bar", aria_hidden="true")
    return tag("li", label, fill, tag("span", text, class_="n"), class_=kind)


def neighbours(run: Run) -> Html:
    """Return samples beside the training images nearest to them, and other figures of the evaluation."""
    names = dict.fromkeys((NEIGHBOURS, *(run.evaluation.figures if run.evaluation is not None else ())))
    shown = [images.drawing(run, name, f"{name.removesuffix('.png')} of {run.label}") for name in names]
    lead = "Generated samples beside the training images nearest to them: what was copied would look the same."
    first = tag("p", lead, class_="small") if shown[0] else Html("")
    return section("neighbours", "Nearest neighbours", first, *shown, problems=wrong_with(run, *names))


def completions(run: Run) -> Html:
    """Return completed images: what was seen, what the flow made of it, the original."""
    shown = images.drawing(run, "completions.png", "What was seen, completions, and the original, row by row")
    return section("completions", "Completions", shown, problems=wrong_with(run, "completions.png"))


def recipe(run: Run) -> Html:
    """Return the recipe as YAML, to read and to copy."""
    lines = [_highlighted(line) for line in run.recipe_text.rstrip("\n").split("\n")]
    copy = tag("button", "Copy", type="button", class_="copy", data_copies="recipe-text")
    text = tag("pre", tag("code", Html("\n".join(lines)), id="recipe-text"), tabindex=0)
    content = [tag("div", copy, text, class_="code")] if run.recipe_text else []
    return section("recipe", "Recipe", *content, problems=wrong_with(run, "recipe.yaml"))


def _highlighted(line: str) -> Html:
    found = _KEY.match(line)
    if found is None:
        return join(line)
    return join(found[1], tag("span", found[2], class_="key"), found[3], line[found.end() :])


def versions(run: Run) -> Html:
    """Return the versions of what a result depends on, and the digests of data and samples, folded away."""
    known, data = run.facts.get("versions"), run.facts.get("data")
    rows = [(str(name), str(version)) for name, version in known.items()] if isinstance(known, dict) else []
    for title, digest in (
        ("SHA-256 of the data", data.get("sha256") if isinstance(data, dict) else None),
        ("SHA-256 of the samples", run.facts.get("samples_sha256")),
    ):
        if digest:
            rows.append((title, str(digest)))
    content = [details("Versions and digests", table((), rows, class_="plain"))] if rows else []
    return section("versions", "Versions", *content)
