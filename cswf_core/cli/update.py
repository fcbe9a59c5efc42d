"""`cswf update`: teach a run that is done new data; its particles flow on."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import click

from cswf_core.cli import options
from cswf_core.cli.ranks import on_ranks
from cswf_core.cli.terminal import introduce, point_to_results, prepare, show_run
from cswf_core.errors import RoomError, RunError, excerpt
from cswf_core.numbers import whole_number
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, choose_device, load_recipe
from cswf_core.recipe.provenance import refuse_changed_plugins
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say
from cswf_core.session.devices import follow
from cswf_core.session.run import launch
from cswf_core.session.update import Predecessor, choose_data, read_predecessor, with_arrival, with_room


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data",
    required=True,
    metavar="NEW",
    help="The new samples: as in a recipe, digits or '{use: digits, classes: [7]}'; a folder of pictures; an "
    ".npz file.",
)
@click.option("--steps", type=options.WholeNumber(1), help="Steps of each stage.  [default: as in the run]")
@click.option(
    "--schedule", metavar="K,K,…", help="Steps of each stage one by one; 0 passes it over: 0,0,100,100."
)
@options.out("Folder for the results.  [default: RUN-updated, or RUN-updated-2 and so on if that is taken]")
@options.device
@options.devices
@options.memory_limit
@options.quiet
@click.option("--force", is_flag=True, help="Replace an earlier run in the folder that --out names.")
@options.accept_changed_plugins
@options.accept_unverified
@options.plugins_dir
def update(
    run: Path,
    data: str,
    steps: int | None,
    schedule: str | None,
    out: Path | None,
    device: str,
    devices: str | None,
    quiet: bool,
    force: bool,
    plugins_dir: tuple[Path, ...],
) -> int | None:
    """Teach RUN, the folder of a run that is done, NEW data: its particles flow on, in a new folder.

    New samples are added to the counts of the run's data, and particles come with them in proportion. What was
    learned before is not counted again. RUN stays as it is.
    """
    if steps is not None and schedule is not None:
        raise RunError("--steps and --schedule are two ways to say the same; give one of them")
    before = RunFolder(run)
    earlier = read_predecessor(before, plugins_dir)
    recipe = load_recipe(before.file("recipe.yaml"), plugins_dir=plugins_dir)
    refuse_changed_plugins(recipe, earlier.plugins, str(run))
    planned = _steps(schedule) if schedule is not None else steps
    updated = with_arrival(recipe, choose_data(data, recipe.registry, earlier.shape), planned)
    choose_device(device)
    if out is not None:  # before ranks are started
        RunFolder(out).refuse_if_taken(force=force, reading=recipe.path)
    return on_ranks(
        devices,
        device,
        None,
        lead=partial(_lead, updated, earlier, run, out, saves=recipe.model.save, force=force, quiet=quiet),
        follow=partial(_follow, updated, earlier),
    )


def _lead(
    recipe: Recipe,
    earlier: Predecessor,
    run: Path,
    out: Path | None,
    ranks: Ranks,
    device: str,
    *,
    saves: bool,
    force: bool,
    quiet: bool,
) -> None:
    """Run the recipe of an update; `saves` says whether the earlier run has saved a model."""
    prepare(quiet=quiet)
    for sentence in earlier.lost:
        complain(f"lost: {sentence}")
    folder = _folder(run, out)

    def work(recipe: Recipe, earlier: Predecessor) -> None:
        begin = partial(launch, recipe, folder, device=device, force=force, predecessor=earlier, ranks=ranks)
        show_run(begin, folder, quiet=quiet)

    try:
        if not quiet:
            introduce(recipe)
            _introduce_update(recipe, earlier, run, saves=saves)
        _with_room(work, recipe, earlier, ranks, tell=not quiet)
    finally:
        folder.withdraw()
    if not quiet:
        point_to_results(folder)


def _follow(recipe: Recipe, earlier: Predecessor, ranks: Ranks, device: str) -> None:
    """Take all steps of the update together with rank 0."""

    def work(recipe: Recipe, earlier: Predecessor) -> None:
        follow(recipe, ranks, device, earlier.counts)

    _with_room(work, recipe, earlier, ranks, tell=False)


def _with_room(
    work: Callable[[Recipe, Predecessor], None],
    recipe: Recipe,
    earlier: Predecessor,
    ranks: Ranks,
    *,
    tell: bool,
) -> None:
    """Do the work; if there is no room for new classes, make some, and count all data along new directions."""
    try:
        work(recipe, earlier)
        return
    except RoomError as error:
        needed, roomy = error.needed, with_room(recipe, error.needed)
        if roomy is None:
            raise
    ranks.forget()  # with the error, the last that holds the first flow and its memory
    if tell:
        say(f"no room for the new classes: condition.room becomes {needed}, and all data are counted")
    work(roomy, attrs.evolve(earlier, counts=None))


def _introduce_update(updated: Recipe, earlier: Predecessor, run: Path, *, saves: bool) -> None:
    """Print where the update begins, and what it cannot do."""
    assert updated.online is not None
    if earlier.counts is None:
        say(f"{run} has kept no counts of its data: these are counted once, along {updated.online.sets} sets")
    else:
        step, known = earlier.facts["steps_done"], earlier.counts.samples
        say(f"going on from step {step:,}; {known:,} samples have been counted before")
        last = updated.online.steps_after(len(updated.arrivals) - 1)
        if isinstance(last, int) and len(updated.arrivals) > 1 and updated.online.sets < last:
            counted = f"{run} has counts along {updated.online.sets} sets of directions, used in turn"
            say(f"note: {counted}; for more sets, update the run that it was made from")
    if saves:
        say("no model is saved: the maps of the steps before are in that of the earlier run")


def _folder(run: Path, out: Path | None) -> RunFolder:
    """Return the folder for the results: `out`, or a new one beside the run."""
    if out is not None:
        return RunFolder(out)
    where = run if run.name else run.resolve()
    name = re.sub(r"-updated(-\d+)?$", "", where.name)
    return RunFolder.fresh(where.parent, f"{name}-updated")


def _steps(schedule: str) -> tuple[int, ...]:
    """Return the numbers of `0,100,100`."""
    numbers = [whole_number(part) for part in schedule.split(",")]
    if None in numbers:
        raise RunError(f"--schedule takes numbers of steps, such as 0,100,100, got '{excerpt(schedule)}'")
    return tuple(number for number in numbers if number is not None)
