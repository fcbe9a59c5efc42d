"""`cswf resume`: go on with a run that was stopped or killed, bit for bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.cli.ranks import on_ranks
from cswf_core.cli.terminal import introduce, point_to_results, prepare, resume_run
from cswf_core.errors import RunError
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, choose_device, load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.devices import follow


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@options.device
@options.devices
@options.memory_limit
@options.quiet
@options.accept_changed_plugins
@options.accept_unverified
@options.plugins_dir
def resume(
    run: Path, device: str, devices: str | None, quiet: bool, plugins_dir: tuple[Path, ...]
) -> int | None:
    """Go on with RUN, the folder of a run that was stopped or killed, from its newest checkpoint.

    The result is the same, bit for bit, as if it had never stopped. What a run does is in its recipe.yaml; if
    that has been changed, or the data have, this says what and does nothing.
    """
    folder = RunFolder(run)
    if not folder.begun:
        raise RunError(f"{run} has no run that was begun: it lacks recipe.yaml or run.json")
    loaded = load_recipe(folder.file("recipe.yaml"), plugins_dir=plugins_dir)
    choose_device(device)
    return on_ranks(
        devices,
        device,
        folder,
        lead=partial(_lead, loaded, folder, quiet=quiet),
        follow=partial(follow, loaded),
    )


def _lead(loaded: Recipe, folder: RunFolder, ranks: Ranks, device: str, *, quiet: bool) -> None:
    """Go on with the run of a recipe."""
    prepare(quiet=quiet)
    if not quiet:
        introduce(loaded)
    resume_run(loaded, folder, device=device, quiet=quiet, ranks=ranks)
    if not quiet:
        point_to_results(folder)
