"""`cswf table`: print the scores of runs as a table to paste into a paper, a page or a spreadsheet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.errors import CswfError, RunError
from cswf_core.plugins import Registry
from cswf_core.recipe import Recipe, choose, load_recipe
from cswf_core.recipe.citations import Citation, citations
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say
from cswf_core.scores.replicas import read_scored
from cswf_core.scores.tables import FORMATS, Format, ScoreTable, score_table


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--format", type=click.Choice(FORMATS), default="table", show_default=True, help="What to write.")
@click.option(
    "--score",
    "scores",
    multiple=True,
    metavar="NAME",
    help="A score, such as fid or fid_test; may be given several times.  [default: all but details]",
)
@click.option(
    "--against",
    type=click.Choice(["train", "test"]),
    help="Only scores against this split.  [default: both]",
)
@click.option("--bibtex", is_flag=True, help="Write BibTeX of the works behind these runs, and no table.")
@options.out("The file to write.  [default: print it]")
@options.replace
@options.plugins_dir
def table(
    runs: tuple[Path, ...],
    format: Format,
    scores: tuple[str, ...],
    against: str | None,
    bibtex: bool,
    out: Path | None,
    force: bool,
    plugins_dir: tuple[Path, ...],
) -> None:
    """Print the scores of RUNs as a table, with a caption that says how they were computed.

    RUN is the folder of a run, of a sweep for all of its runs, or one with just a metrics.json. Runs that
    differ in their seed only are one row: mean ± standard deviation. What cannot be compared is told.
    """
    _refuse_replacing(out, force=force)
    scored, told = read_scored(runs)
    made = score_table(scored, scores, against or "", told)
    for sentence in dict.fromkeys(made.warnings()):
        complain(sentence)
    works = _works(made, plugins_dir) if bibtex or format in ("latex", "json") else []
    text = "\n\n".join(map(str, works)) if bibtex else made.written(format, works)
    if out is None:
        say(*text.split("\n"))
    else:
        RunFolder(out.parent).write(out.name, f"{text}\n")
        say(f"see {out}")


def _refuse_replacing(out: Path | None, *, force: bool) -> None:
    """Raise `RunError` if a file would be replaced and nobody wants that, or cannot be made."""
    if out is None:
        return
    if out.exists() and not out.is_file():
        raise RunError(f"{out} is {'a folder' if out.is_dir() else 'no plain file'}; --out names a file")
    if out.exists() and not force:
        raise RunError(f"{out} is there already; give another --out, or --force to replace it")
    if not out.parent.is_dir():
        raise RunError(f"{out.parent} is no folder; --out names a file in one")


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
            first = str(error).split("\n")[0]
            complain(
                f"{group.first.path}: the works behind it are not cited, as its recipe cannot be read: {first}"
            )
    scores = [made.firsts[name].first for name in made.names]
    metrics = []
    for written in dict.fromkeys(json.dumps(score.parameters or {"use": score.metric}) for score in scores):
        with suppress(CswfError):  # of a plugin that is not here, or has other parameters now
            metrics.append(choose(registry, "metric", written))
    return citations(*recipes, metrics=metrics)
