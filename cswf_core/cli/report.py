"""`cswf report`: write a run's page anew, or one page that compares several runs."""

from __future__ import annotations

from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.errors import RunError
from cswf_core.report import compare, is_report, single
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import say

NAME = "report.html"


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@options.out(f"The page to write.  [default: RUN/{NAME} for one run, {NAME} for several]")
@click.option("--force", is_flag=True, help="Replace a file that is not a page of cswf report.")
def report(runs: tuple[Path, ...], out: Path | None, force: bool) -> None:
    """Write the page of a RUN anew, or one page that compares several.

    RUN is the folder of a run, of a sweep for all of its runs, or of an evaluation. The page is one file that
    needs no network, only a browser.
    """
    runs = tuple(folder for run in runs for folder in (_runs_of_sweep(run) or (run,)))
    alone = len(runs) == 1
    page = out if out is not None else runs[0] / NAME if alone else Path(NAME)
    beside = page.parent.resolve() == runs[0].resolve()
    content = single(runs[0], beside=beside) if alone else compare(runs)
    if page.exists() and not page.is_file():
        raise RunError(f"{page} is {'a folder' if page.is_dir() else 'no plain file'}; --out names a file")
    if page.exists() and not force and not is_report(page):
        raise RunError(f"{page} is not a page of cswf report; give another --out, or --force to replace it")
    RunFolder(page.parent).write(page.name, content)
    say(f"see {page}")


def _runs_of_sweep(folder: Path) -> tuple[Path, ...]:
    """Return the folders of a sweep's runs; none if the folder is not a sweep's."""
    if not (folder / "sweep.json").is_file():
        return ()
    return tuple(sorted(path.parent for path in folder.glob("*/run.json")))
