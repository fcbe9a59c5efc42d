"""What the commands that run recipes share: their options, their progress, their end by signal."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cswf_core.cli.allocator import keep_freed_memory
from cswf_core.cli.scores import show_scores
from cswf_core.errors import Terminated
from cswf_core.recipe import Recipe
from cswf_core.runs.folder import RunDirectory
from cswf_core.runs.progress import BarProgress, LineProgress, WorkProgress, say
from cswf_core.session.launch import launch, refuse_changes, resume

device_option = click.option(
    "--device", default="auto", show_default=True, metavar="auto|cpu|cuda|cuda:N", help="Where to compute."
)
quiet_option = click.option("--quiet", is_flag=True, help="Print nothing but errors.")


def get_ready(*, quiet: bool) -> None:
    """Send warnings to the terminal, let SIGTERM end a run as Ctrl-C does, and hold on to memory."""
    logging.basicConfig(format="%(message)s", level=logging.ERROR if quiet else logging.WARNING)
    signal.signal(signal.SIGTERM, _terminate)
    keep_freed_memory()


def introduce(recipe: Recipe) -> None:
    """Print what a recipe is for."""
    say(f"{recipe.name}: {recipe.description}".rstrip(": "))


def run_in_sight(recipe: Recipe, directory: RunDirectory, *, device: str, force: bool, quiet: bool) -> None:
    """Run a recipe with a bar on a terminal, lines elsewhere or nothing, and say how it ended."""
    in_sight(partial(launch, recipe, directory, device=device, force=force), directory, quiet=quiet)


def go_on_in_sight(recipe: Recipe, directory: RunDirectory, *, device: str, quiet: bool) -> None:
    """Go on with a recipe's run in the same way; of one that is done, say that."""
    if directory.done:
        refuse_changes(recipe, directory)
        if not quiet:
            say(f"{directory.path} is done: there is nothing left to do")
        return

    def found(step: int, lost: Sequence[str]) -> None:
        for sentence in lost:
            click.echo(f"lost: {sentence}", err=True)
        if not quiet:
            say(
                f"going on from step {step:,}"
                if step
                else "beginning anew: there is no checkpoint to go on from"
            )

    in_sight(partial(resume, recipe, directory, device=device, found=found), directory, quiet=quiet)


def in_sight(work: Callable[..., dict[str, Any]], directory: RunDirectory, *, quiet: bool) -> None:
    """Do the work of a run, which takes `observers` and `tell`, in the same way."""
    watching, evaluating = None if quiet else _progress(), WorkProgress(silent=quiet)
    try:
        facts = work(observers=[] if watching is None else [watching], tell=evaluating.tell)
    except KeyboardInterrupt:
        _say_how_to_go_on(directory)
        raise
    finally:
        evaluating.close()
        if watching is not None:
            watching.close()
    if not quiet:
        say(f"done in {facts['seconds']:.1f} s  sha256 {facts['samples_sha256'][:12]}")
        show_scores(directory.read_json("metrics.json"), Console())


def point_to_results(directory: RunDirectory) -> None:
    """Say where the page and the pictures of a run are."""
    made = [directory.file(name) for name in ("report.html", "samples.png", "completions.png")]
    say(f"see {', '.join(str(path) for path in made if path.exists())}")


def _say_how_to_go_on(directory: RunDirectory) -> None:
    """Say what an interrupted run has left."""
    if not directory.begun:
        return
    saved = directory.read_json("checkpoints/manifest.json")
    steps = [entry["step"] for entry in saved["checkpoints"]] if isinstance(saved, dict) else []
    start = f"from step {max(steps):,}" if steps else "from its beginning, as it had no checkpoint yet"
    click.echo(f"`cswf resume {directory.path}` goes on {start}", err=True)


def folder_name(recipe: Recipe) -> str:
    """Return a recipe's name as a folder can have it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.name).strip("-.") or "run"


def results_folder(name: str, out: Path | None, *, force: bool) -> RunDirectory:
    """Return the folder for the results: `out`, or below runs/ a new one, or with `force` the first one."""
    if out is None and not force:
        return RunDirectory.fresh(Path("runs"), name)
    return RunDirectory(out if out is not None else Path("runs") / name)


def _progress() -> BarProgress | LineProgress:
    console = Console()
    return BarProgress(console) if console.is_terminal else LineProgress()


def _terminate(*_: object) -> None:
    """End as Ctrl-C does when a scheduler or `timeout` says so."""
    raise Terminated
