"""What `cswf run`, `resume`, `update` and `sweep` do: runs begun, continued and compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from cswf_core.cli.options import command
from cswf_core.cli.signals import leave_lost_terminal
from cswf_core.cli.terminal import Execution, prepare, show_scores
from cswf_core.errors import LostRankError, RoomError, RunError, excerpt
from cswf_core.numbers import whole_number
from cswf_core.ranks import Ranks
from cswf_core.recipe import Recipe, choose_device, load_recipe
from cswf_core.recipe.provenance import refuse_changed_plugins
from cswf_core.runs.checkpoints import CheckpointFolder
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.printing import complain, say
from cswf_core.runs.screen import FlowProgress, console, table
from cswf_core.scores.replicas import Group
from cswf_core.session import run as runs
from cswf_core.session.devices import follow, is_rank
from cswf_core.session.run import Predecessor, choose_data, read_predecessor, with_arrival, with_room
from cswf_core.session.sweep import Sweep, Trial, plan, plan_seeds


def run(
    recipe: str,
    overrides: tuple[str, ...],
    out: Path | None,
    force: bool,
    resume: bool,
    seeds: int | None,
    **options: Any,
) -> int | None:
    """Do the work of `cswf run`."""
    execution = Execution(**options)
    if seeds is not None:
        if resume:
            raise RunError("--seeds goes on by itself with what --out lacks: leave out --resume")
        if execution.devices is not None or is_rank():
            raise RunError(
                "--seeds runs on one device, one seed after the other: leave out --devices and torchrun"
            )
        trials = plan_seeds(recipe, overrides, seeds, plugins_dir=execution.plugins_dir)
        _run_trials(trials, "-seeds", out, force, execution)
        return None
    loaded = load_recipe(recipe, overrides, plugins_dir=execution.plugins_dir)
    choose_device(execution.device)
    if resume and (out is None or force):
        raise RunError("--resume goes on with the run in a folder: give its --out, and no --force")
    before = RunFolder(out) if resume and out is not None else None
    if out is not None:  # before ranks are started
        going_on = before is not None and (before.begun or before.only_touched)
        RunFolder(out).refuse_if_taken(force=force or going_on, reading=loaded.path)

    def lead(ranks: Ranks, device: str) -> None:
        execution.say(_introduction(loaded))
        if loaded.variants:
            sweep = command(f"cswf sweep {recipe}")
            execution.say(f"this runs the recipe itself; {sweep} runs its {len(loaded.variants)} variants")
        folder = _results_folder(loaded, "", out, force=force)
        try:
            if resume and folder.begun:
                _resume(loaded, folder, device, ranks, execution)
            else:
                begin = partial(runs.launch, loaded, folder, device=device, force=force or resume, ranks=ranks)
                _show_run(begin, folder, execution)
        finally:
            folder.withdraw()
        execution.say(_results(folder))

    return execution.on_ranks(before, lead=lead, follow=partial(follow, loaded))


def resume(run: Path, **options: Any) -> int | None:
    """Do the work of `cswf resume`."""
    execution = Execution(**options)
    folder = RunFolder(run)
    if not folder.begun:
        raise RunError(f"{run} has no run that was begun: it lacks recipe.yaml or run.json")
    loaded = load_recipe(folder.file("recipe.yaml"), plugins_dir=execution.plugins_dir)
    choose_device(execution.device)

    def lead(ranks: Ranks, device: str) -> None:
        execution.say(_introduction(loaded))
        _resume(loaded, folder, device, ranks, execution)
        execution.say(_results(folder))

    return execution.on_ranks(folder, lead=lead, follow=partial(follow, loaded))


def update(
    run: Path, data: str, steps: int | None, schedule: str | None, out: Path | None, force: bool, **options: Any
) -> int | None:
    """Do the work of `cswf update`."""
    execution = Execution(**options)
    if steps is not None and schedule is not None:
        raise RunError("--steps and --schedule are two ways to say the same; give one of them")
    before = RunFolder(run)
    earlier = read_predecessor(before, execution.plugins_dir)
    recipe = load_recipe(before.file("recipe.yaml"), plugins_dir=execution.plugins_dir)
    refuse_changed_plugins(recipe, earlier.plugins, str(run))
    planned = steps if schedule is None else _steps(schedule)
    updated = with_arrival(recipe, choose_data(data, recipe.registry, earlier.shape), planned)
    choose_device(execution.device)
    if out is not None:  # before ranks are started
        RunFolder(out).refuse_if_taken(force=force, reading=recipe.path)

    def lead(ranks: Ranks, device: str) -> None:
        for sentence in earlier.lost:
            complain(f"lost: {sentence}")
        folder = _folder_of_update(run) if out is None else RunFolder(out)

        def work(recipe: Recipe, earlier: Predecessor) -> None:
            begin = partial(earlier.launch_next, recipe, folder, device=device, force=force, ranks=ranks)
            _show_run(begin, folder, execution)

        try:
            execution.say(_introduction(updated), *_introduction_of_update(updated, earlier, run))
            if recipe.model.save:
                execution.say("no model is saved: the maps of the steps before are in that of the earlier run")
            _with_room(work, updated, earlier, ranks, execution.say)
        finally:
            folder.withdraw()
        execution.say(_results(folder))

    def follow_update(ranks: Ranks, device: str) -> None:
        def work(recipe: Recipe, earlier: Predecessor) -> None:
            follow(recipe, ranks, device, earlier.counts)

        _with_room(work, updated, earlier, ranks, lambda _: None)

    return execution.on_ranks(None, lead=lead, follow=follow_update)


def sweep(recipe: str, overrides: tuple[str, ...], out: Path | None, force: bool, **options: Any) -> None:
    """Do the work of `cswf sweep`."""
    execution = Execution(**options)
    trials = plan(recipe, overrides, plugins_dir=execution.plugins_dir)
    _run_trials(trials, "-sweep", out, force, execution)


def _run_trials(
    trials: Sequence[Trial], ending: str, out: Path | None, force: bool, execution: Execution
) -> None:
    """Run trials that are not done yet, in `out` or in runs/NAME with an ending, and compare their results."""
    device = execution.device
    choose_device(device)
    prepare(quiet=execution.quiet)
    folder = _results_folder(trials[0].recipe, ending, out, force=force)
    swept = Sweep(trials, folder)

    def work(recipe: Recipe, folder: RunFolder) -> None:
        if folder.begun:
            _resume(recipe, folder, device, None, execution)
        else:
            _show_run(partial(runs.launch, recipe, folder, device=device, force=True), folder, execution)

    try:
        with swept.claimed(force=force):
            execution.say(_introduction(trials[0].recipe))
            swept.run(work, execution.say)
            swept.draw()
            groups = swept.summarise()
    except KeyboardInterrupt:
        if swept.is_begun():
            complain(f"{folder.path} has the runs done until then; --out {folder.path} goes on")
        raise
    finally:
        folder.withdraw()
    if not execution.quiet:
        _show_trials(swept.rows(), groups)
        say(f"see {folder.file('sweep.png')}")


def _introduction(recipe: Recipe) -> str:
    """Return what a recipe is for."""
    return f"{recipe.name}: {recipe.description}".rstrip(": ")


def _results(folder: RunFolder) -> str:
    """Return where the page and the pictures of a run are."""
    made = [folder.file(name) for name in ("report.html", "samples.png", "completions.png")]
    return f"see {', '.join(str(path) for path in made if path.exists())}"


def _resume(recipe: Recipe, folder: RunFolder, device: str, ranks: Ranks | None, execution: Execution) -> None:
    """Resume a recipe's run with its progress and its scores on the terminal; leave one that is done."""
    if folder.done:
        runs.require_recipe(folder, recipe)
        runs.settle(folder)
        execution.say(f"{folder.path} is done: there is nothing left to do")
        return

    def tell_start(step: int, lost: Sequence[str]) -> None:
        for sentence in lost:
            complain(f"lost: {sentence}")
        anew = "beginning anew: there is no checkpoint to go on from"
        execution.say(f"going on from step {step:,}" if step else anew)

    work = partial(runs.resume, recipe, folder, device=device, announce=tell_start, ranks=ranks)
    _show_run(work, folder, execution)


def _show_run(work: Callable[..., dict[str, Any]], folder: RunFolder, execution: Execution) -> None:
    """Call `work(observers=…, tell=…)`, a run, with its progress and its scores on the terminal."""
    with ExitStack() as stack:
        flowing = [] if execution.quiet else [stack.enter_context(closing(FlowProgress()))]
        evaluating = stack.enter_context(execution.progress())
        try:
            facts = work(observers=flowing, tell=evaluating.tell)
        except (KeyboardInterrupt, LostRankError):
            leave_lost_terminal()
            if folder.begun:
                steps = [entry.step for entry in CheckpointFolder(folder.file("checkpoints")).listed()]
                start = f"step {max(steps):,}" if steps else "its beginning, as it had no checkpoint yet"
                complain(f"{command(f'cswf resume {folder.path}')} goes on from {start}")
            raise
    if not execution.quiet:
        say(f"done in {facts['seconds']:.1f} s  sha256 {facts['samples_sha256'][:12]}")
        scores = folder.read_json("metrics.json")
        if not isinstance(scores, dict):
            raise RunError(f"{folder.file('metrics.json')} is gone: somebody has changed the folder meanwhile")
        show_scores(scores, console())


def _show_trials(rows: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> None:
    """Print label, seconds and metrics of all runs, then means over seeds; lines break on terminals only."""
    scores = [row["metrics"] or {} for row in rows]
    metrics = list(dict.fromkeys(name for each in scores for name in each))
    lines = []
    for row, own in zip(rows, scores, strict=True):
        numbers = ["" if own.get(name) is None else f"{own[name]:.4g}" for name in metrics]
        lines.append([row["label"], f"{row['seconds'] or 0:.1f}", *numbers])
    for group in groups:
        if len(group.runs) > 1:
            summaries = map(group.summaries.get, metrics)
            means = ["" if each is None else str(each.printed(each.deviation)) for each in summaries]
            lines.append([f"{group.label}: mean ± deviation of {len(group.runs)} seeds", "", *means])
    screen = console()
    if not screen.is_terminal:
        screen.width = 1000
    screen.print(table(["run", "seconds", *metrics], lines, others="right"))


def _results_folder(recipe: Recipe, ending: str, out: Path | None, *, force: bool) -> RunFolder:
    """Return the folder for the results: `out`, or below runs/ a new one, or with `force` the first one."""
    if out is not None:
        return RunFolder(out)
    name = (re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.name).strip("-.") or "run") + ending
    return RunFolder(Path("runs") / name) if force else RunFolder.fresh(Path("runs"), name)


def _with_room(
    work: Callable[[Recipe, Predecessor], None],
    recipe: Recipe,
    earlier: Predecessor,
    ranks: Ranks,
    tell: Callable[[str], object],
) -> None:
    """Do the work; if there is no room for new classes, make some, and count all data along new directions."""
    try:
        work(recipe, earlier)
        return
    except RoomError as error:
        needed = error.needed
        roomy = with_room(recipe, needed)
        if roomy is None:
            raise
    ranks.forget()  # with the error, the last that holds the first flow and its memory
    tell(f"no room for the new classes: condition.room becomes {needed}, and all data are counted")
    work(roomy, attrs.evolve(earlier, counts=None))


def _introduction_of_update(updated: Recipe, earlier: Predecessor, run: Path) -> list[str]:
    """Return where the update begins, and what it cannot do."""
    assert updated.online is not None
    sets = updated.online.sets
    if earlier.counts is None:
        return [f"{run} has kept no counts of its data: these are counted once, along {sets} sets"]
    step = earlier.facts["steps_done"]
    known = earlier.counts.samples
    lines = [f"going on from step {step:,}; {known:,} samples have been counted before"]
    last = updated.online.steps_after(len(updated.arrivals) - 1)
    if isinstance(last, int) and len(updated.arrivals) > 1 and sets < last:
        counted = f"{run} has counts along {sets} sets of directions, used in turn"
        lines.append(f"note: {counted}; for more sets, update the run that it was made from")
    return lines


def _folder_of_update(run: Path) -> RunFolder:
    """Return a new folder beside a run."""
    where = run if run.name else run.resolve()
    name = re.sub(r"-updated(-\d+)?$", "", where.name)
    return RunFolder.fresh(where.parent, f"{name}-updated")


def _steps(schedule: str) -> tuple[int, ...]:
    """Return the numbers of `0,100,100`."""
    numbers = [whole_number(part) for part in schedule.split(",")]
    if None in numbers:
        raise RunError(f"--schedule takes numbers of steps, such as 0,100,100, got '{excerpt(schedule)}'")
    return tuple(number for number in numbers if number is not None)
