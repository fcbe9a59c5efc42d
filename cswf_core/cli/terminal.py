"""What commands print on a terminal: the progress of a run, its scores, where its results are."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from cswf_core.cli import options
from cswf_core.cli.allocator import keep_freed_memory
from cswf_core.cli.signals import leave_lost_terminal
from cswf_core.errors import LostRankError, RunError
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe
from cswf_core.runs.checkpoints import CheckpointFolder
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say, start_log
from cswf_core.runs.screen import BarProgress, LineProgress, WorkProgress, console, table, words
from cswf_core.scores.layout import measured
from cswf_core.session.run import launch, require_recipe, resume, settle


def prepare(*, quiet: bool) -> None:
    """Prepare the process: warnings on the terminal, memory reused."""
    start_log(logging.ERROR if quiet else logging.WARNING)
    keep_freed_memory()


def introduce(recipe: Recipe) -> None:
    """Print what a recipe is for."""
    say(f"{recipe.name}: {recipe.description}".rstrip(": "))


def run_recipe(
    recipe: Recipe,
    folder: RunFolder,
    *,
    device: str,
    force: bool,
    quiet: bool,
    ranks: Ranks | None = None,
) -> None:
    """Run a recipe with its progress and its scores on the terminal."""
    show_run(partial(launch, recipe, folder, device=device, force=force, ranks=ranks), folder, quiet=quiet)


def resume_run(
    recipe: Recipe, folder: RunFolder, *, device: str, quiet: bool, ranks: Ranks | None = None
) -> None:
    """Resume a recipe's run with its progress and its scores on the terminal; leave one that is done."""
    if folder.done:
        require_recipe(folder, recipe)
        settle(folder)
        if not quiet:
            say(f"{folder.path} is done: there is nothing left to do")
        return

    def tell_start(step: int, lost: Sequence[str]) -> None:
        for sentence in lost:
            complain(f"lost: {sentence}")
        anew = "beginning anew: there is no checkpoint to go on from"
        if not quiet:
            say(f"going on from step {step:,}" if step else anew)

    work = partial(resume, recipe, folder, device=device, announce=tell_start, ranks=ranks)
    show_run(work, folder, quiet=quiet)


def show_run(work: Callable[..., dict[str, Any]], folder: RunFolder, *, quiet: bool) -> None:
    """Call `work(observers=…, tell=…)`, a run, with its progress and its scores on the terminal."""
    flowing, evaluating = [] if quiet else [_progress()], WorkProgress(silent=quiet)
    try:
        facts = work(observers=flowing, tell=evaluating.tell)
    except (KeyboardInterrupt, LostRankError):
        leave_lost_terminal()
        _say_how_to_go_on(folder)
        raise
    finally:
        for progress in (evaluating, *flowing):
            progress.close()
    if not quiet:
        say(f"done in {facts['seconds']:.1f} s  sha256 {facts['samples_sha256'][:12]}")
        scores = folder.read_json("metrics.json")
        if not isinstance(scores, dict):
            raise RunError(f"{folder.file('metrics.json')} is gone: somebody has changed the folder meanwhile")
        show_scores(scores, console())


def show_scores(document: Mapping[str, Any], screen: Console) -> None:
    """Print the scores of metrics.json: those against real samples, a column for each set; then the others.

    ± is a score's standard error.
    """
    compared = [score for score in document["scores"] if score["against"]]
    others = [score for score in document["scores"] if not score["against"]]
    for scores in filter(None, (compared, others)):
        columns = list(dict.fromkeys(map(_against, scores)))
        headings = ["score", *(f"against {column}" if column else "value" for column in columns), "samples"]
        rows: dict[tuple[str, int], dict[str, str]] = {}  # a row is a name without its split, and a number
        for score in scores:
            rows.setdefault((score["row"], score["samples"]), {})[_against(score)] = _value(score)
        lines = [
            [name, *(values.get(column, "") for column in columns), f"{count:,}"]
            for (name, count), values in rows.items()
        ]
        screen.print(table(headings, lines, others="right"))
    for note in document["notes"]:
        screen.print(words(f"note: {note}", "bold"), soft_wrap=True)


def _value(score: Mapping[str, Any]) -> str:
    """Return a score with its standard error, where it has one, and in percent if it is a share."""
    share = bool((score.get("meaning") or {}).get("share"))
    return measured(score["value"], score.get("error"), share=share)


def show_protocols(document: Mapping[str, Any], screen: Console) -> None:
    """Print how scores were computed, a line for each metric."""
    protocols: dict[str, list[str]] = {}
    for score in document["scores"]:
        protocols.setdefault(score["protocol"], []).append(score["name"])
    for protocol, names in protocols.items():
        first = names[0] if len(names) == 1 else f"{names[0]}, …"
        if protocol:
            screen.print(words(f"{first}: {protocol}", "dim"), soft_wrap=True)


def _against(score: dict[str, Any]) -> str:
    """Return the name of a score's reference: `data:split`."""
    against = score["against"] or {}
    return ":".join(str(against[key]) for key in ("data", "split") if against.get(key))


def point_to_results(folder: RunFolder) -> None:
    """Say where the page and the pictures of a run are."""
    made = [folder.file(name) for name in ("report.html", "samples.png", "completions.png")]
    say(f"see {', '.join(str(path) for path in made if path.exists())}")


def _say_how_to_go_on(folder: RunFolder) -> None:
    """Say what an interrupted run has left."""
    if not folder.begun:
        return
    steps = [entry.step for entry in CheckpointFolder(folder.file("checkpoints")).listed()]
    start = f"from step {max(steps):,}" if steps else "from its beginning, as it had no checkpoint yet"
    complain(f"{options.command(f'cswf resume {folder.path}')} goes on {start}")


def folder_name(recipe: Recipe) -> str:
    """Return a recipe's name in letters that are good for a folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.name).strip("-.") or "run"


def results_folder(name: str, out: Path | None, *, force: bool) -> RunFolder:
    """Return the folder for the results: `out`, or below runs/ a new one, or with `force` the first one."""
    if out is None and not force:
        return RunFolder.fresh(Path("runs"), name)
    return RunFolder(out if out is not None else Path("runs") / name)


def _progress() -> BarProgress | LineProgress:
    screen = console()
    return BarProgress(screen) if screen.is_terminal else LineProgress()
