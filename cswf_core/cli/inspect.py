"""`cswf inspect`: say what a saved model is, and what it cost."""

from __future__ import annotations

import json
from pathlib import Path

import click
import torch

from cswf_core.cli import options
from cswf_core.errors import RunError
from cswf_core.model import load_model
from cswf_core.model.format import ModelHeader, find_damage, saved_steps
from cswf_core.model.model import header_file
from cswf_core.recipe import RecipeError
from cswf_core.recipe.render import from_yaml
from cswf_core.runs.printing import say, say_json

MOST_NAMES = 12
"""Classes that are listed."""


@click.command()
@click.argument("path", metavar="RUN|MODEL", type=click.Path(path_type=Path))
@options.json
@click.option("--check", is_flag=True, help="Read all of it; compare checksums, plugins and directions.")
@options.accept_changed_plugins
@options.plugins_dir
def inspect(path: Path, as_json: bool, check: bool, plugins_dir: tuple[Path, ...]) -> None:
    """Say what a saved model is: of which recipe and data, what can be asked of it, and what it cost."""
    file = header_file(path)
    header = ModelHeader.read(file)
    if as_json:
        say_json(json.loads(header.text()))
    else:
        rows = _describe(header, path)
        width = max(len(name) for name in rows)
        for name, text in rows.items():
            say(f"{name:<{width}}  {text}")
    if check:
        if header.complete:
            load_model(path, plugins_dir=plugins_dir).flow(torch.device("cpu")).recognise()
        elif wrong := find_damage(file.parent, header.files):
            raise RunError(*wrong)
        for _ in saved_steps(file.parent, header):
            pass  # what does not fit the header is refused
        if not as_json:
            more = "" if header.fitted is None else f" and {header.fitted.file}"
            say(f"checked: all {len(header.shards)} shards{more} are as they were written")
            if header.complete:
                say("checked: plugins draw the directions of the run")


def _describe(header: ModelHeader, path: Path) -> dict[str, str]:
    """Return the lines to print about a model, by their names."""
    data, tables, cost = header.data, header.tables, header.cost
    shape, stages = "×".join(map(str, data.shape)), header.stages
    saved = sum(shard.steps for shard in header.shards)
    planned = sum(stage.steps for stage in stages)
    directions = sorted({stage.directions for stage in stages})
    span = f"{directions[0]:,}" if len(directions) == 1 else f"{directions[0]:,} to {directions[-1]:,}"
    numbers = f"{tables.knots} knots in {tables.dtype}"
    share = "" if tables.directions == 1 else f", of {tables.directions:g} of the directions"
    every = "" if tables.every == 1 else f", of one step in {tables.every} after the first of each stage"
    more = "" if header.fitted is None else f" and {header.fitted.file}"
    return {
        "model of": f"{header.name} (cswf {header.cswf}, format {header.format})",
        "complete": "yes" if header.complete else "no: its run was stopped, `cswf resume` goes on with it",
        "data": f"{_plugin(header, 'data')}, {data.samples:,} samples of {shape}, SHA-256 {data.sha256[:12]}…",
        "condition": f"{_plugin(header, 'condition')}: {_requests(header)}",
        "flow": f"{header.particles:,} particles, {planned:,} steps in {len(stages)} stages, {span} directions",
        "tables": f"of {saved:,} steps, {numbers}{share}{every}",
        "size": f"{cost.bytes / 1e6:,.1f} MB in {len(header.shards)} shards{more}",
        "cost": f"{cost.seconds:,.1f} s to write, {cost.share:.1%} of the time of all steps",
        "try": _try(header, path),
    }


def _plugin(header: ModelHeader, key: str) -> str:
    """Return the name of a plugin in the header's recipe."""
    try:
        return str(from_yaml(header.recipe)[key]["use"])
    except (RecipeError, KeyError, TypeError):
        return "unknown"


def _requests(header: ModelHeader) -> str:
    """Return what can be asked of a model, in words."""
    asks, classes = header.condition.asks, header.data.classes
    kinds: list[str] = []
    if "labels" in asks:
        more = f", … {len(classes)} in all" if len(classes) > MOST_NAMES else ""
        kinds.append(f"classes {', '.join(classes[:MOST_NAMES])}{more}")
    if "vectors" in asks:
        pairs = zip(header.condition.low, header.condition.high, strict=True)
        ranges = ", ".join(f"{low:.3g} … {high:.3g}" for low, high in pairs)
        kinds.append(
            f"vectors of {header.condition.length} numbers" + (f" (the data's: {ranges})" if ranges else "")
        )
    if "image" in asks:
        kinds.append(
            "an image of which a part is seen" + ("" if header.condition.shared else ", another of each")
        )
    return " and ".join(kinds) or "nothing can be asked for"


def _try(header: ModelHeader, path: Path) -> str:
    """Return a command to try on a model."""
    if "image" in header.condition.asks:
        return f"cswf inpaint {path} IMAGE.png"
    more = ""
    if "labels" in header.condition.asks and header.data.classes:
        more = f" --label {header.data.classes[-1]}"
    elif "vectors" in header.condition.asks:
        pairs = zip(header.condition.low, header.condition.high, strict=True)
        middle = [f"{(low + high) / 2:.3g}" for low, high in pairs] or ["0"] * header.condition.length
        more = f" --vector={','.join(middle)}"
    return f"cswf sample {path} --count 100{more}"
