"""What `cswf table` and `cswf report` do: tables of scores, and pages of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cswf_core.errors import CswfError, RunError
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, choose, load_recipe
from cswf_core.recipe.citations import Citation, citations
from cswf_core.report import compare, is_report, single
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say
from cswf_core.scores.replicas import read_scored
from cswf_core.scores.tables import Format, ScoreTable, score_table


def table(
    runs: tuple[Path, ...],
    format: Format,
    bibtex: bool,
    out: Path | None,
    force: bool,
    plugins_dir: tuple[Path, ...],
    **columns: Any,
) -> None:
    """Do the work of `cswf table`; its columns are the `scores`, `against` a split."""
    if out is not None:
        _require_file(out)
        if out.exists() and not force:
            raise RunError(f"{out} is there already; give another --out, or --force to replace it")
        if not out.parent.is_dir():
            raise RunError(f"{out.parent} is no folder; --out names a file in one")
    scored, told = read_scored(runs)
    made = score_table(scored, columns["scores"], columns["against"] or "", told)
    for sentence in dict.fromkeys(made.warnings()):
        complain(sentence)
    works = _works(made, plugins_dir) if bibtex or format in ("latex", "json") else []
    text = "\n\n".join(map(str, works)) if bibtex else made.written(format, works)
    if out is None:
        say(*text.split("\n"))
    else:
        RunFolder(out.parent).write(out.name, f"{text}\n")
        say(f"see {out}")


def _require_file(out: Path) -> None:
    """Raise `RunError` if something else than a file is where one is to be written."""
    if out.exists() and not out.is_file():
        raise RunError(f"{out} is {'a folder' if out.is_dir() else 'no plain file'}; --out names a file")


def _works(made: ScoreTable, plugins_dir: Sequence[Path]) -> list[Citation]:
    """Return the works that the runs of a table rest on; of a run whose plugins are not here, say so."""
    registry = Registry.discover(plugins_dir)
    recipes: list[Recipe] = []
    for group in made.groups:
        path = group.first.path / "recipe.yaml"
        try:
            if not path.is_file():
                raise RunError("it has no recipe.yaml")
            recipes.append(load_recipe(path, registry=registry))
        except CswfError as error:
            uncited = "the works behind it are not cited, as its recipe cannot be read"
            first = str(error).split("\n")[0]
            complain(f"{group.first.path}: {uncited}: {first}")
    scores = [made.firsts[name].first for name in made.names]
    metrics = []
    for written in dict.fromkeys(json.dumps(score.parameters or {"use": score.metric}) for score in scores):
        with suppress(CswfError):  # of a plugin that is not here, or has other parameters now
            metrics.append(choose(registry, "metric", written))
    return citations(*recipes, metrics=metrics)


def report(runs: tuple[Path, ...], out: Path | None, force: bool) -> None:
    """Do the work of `cswf report`."""
    folders: list[Path] = []
    for run in runs:  # of a sweep, all its runs
        swept = run.glob("*/run.json") if (run / "sweep.json").is_file() else ()
        folders += sorted(path.parent for path in swept) or [run]
    alone = len(folders) == 1
    usual = folders[0] / "report.html" if alone else Path("report.html")
    page = usual if out is None else out
    beside = page.parent.resolve() == folders[0].resolve()
    content = single(folders[0], beside=beside) if alone else compare(folders)
    _require_file(page)
    if page.exists() and not force and not is_report(page):
        raise RunError(f"{page} is not a page of cswf report; give another --out, or --force to replace it")
    RunFolder(page.parent).write(page.name, content)
    say(f"see {page}")
