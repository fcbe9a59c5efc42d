"""A recipe, run into a folder: from its start, from where another run has ended, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import yaml

from cswf_core.errors import RunError
from cswf_core.interfaces.metric import Tell
from cswf_core.recipe import Recipe
from cswf_core.runs.checkpoints import Checkpoint
from cswf_core.runs.durable import remove_parts
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.record import Record
from cswf_core.session.run import Run, refuse_other_recipe
from cswf_core.session.update import Earlier


def launch(
    recipe: Recipe,
    directory: RunFolder,
    *,
    device: str = "auto",
    force: bool = False,
    observers: Sequence[object] = (),
    tell: Tell | None = None,
    earlier: Earlier | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end and return what run.json says; `tell` hears of the evaluation's progress.

    Nothing is written before recipe, data and folder are known to be good. An interruption (Ctrl-C) or an
    error is written into run.json and raised again. With `earlier`, it begins where another run has ended.
    """
    directory.refuse_if_taken(force=force, reading=recipe.path)
    with ExitStack() as closing:
        run = Run(recipe, directory, device, observers, closing, None if earlier is None else earlier.sketch)
        if earlier is not None:
            run.flow.restore(earlier.snapshot)
        directory.make()
        closing.enter_context(directory.held())
        directory.create(force=force)
        record = Record(directory, run.facts())
        if earlier is not None:
            record.facts["updates"] = earlier.facts
            run.checkpoints.recall(Checkpoint(earlier.snapshot.position.total, {}, {}))
            run.checkpoints.save(run.flow)
        return run.work(record, tell)


def resume(
    recipe: Recipe,
    directory: RunFolder,
    *,
    device: str = "auto",
    observers: Sequence[object] = (),
    tell: Tell | None = None,
    found: Callable[[int, Sequence[str]], object] | None = None,
) -> dict[str, Any]:
    """Go on with a run from its newest good checkpoint, or from the start if there is none.

    `found` is told from which step, and what could not be used. The result is that of a run without a stop, to
    the bit, on the same type of device. Raises `RunError` if recipe or data are not those of its beginning.
    """
    refuse_changes(recipe, directory)
    with ExitStack() as closing:
        closing.enter_context(directory.held())
        remove_parts(directory.path)
        run = Run(recipe, directory, device, observers, closing)
        record = Record.again(directory, run.facts())
        run.refuse_other_data(record.began_with)
        lost: list[str] = []
        back = run.go_back(lost)
        if back is None and "updates" in record.facts:
            raise RunError(
                f"{directory.path} has gone on from another run, and none of its checkpoints is good "
                f"({'; '.join(lost) or 'there are none'}): call cswf update again"
            )
        if back is None:
            run.checkpoints.recall(None)
        step, seconds = (0, 0.0) if back is None else back
        if found is not None:
            found(step, lost)
        record.resumed(step, lost, seconds)
        return run.work(record, tell)


def refuse_changes(recipe: Recipe, directory: RunFolder) -> None:
    """Raise `RunError` with what differs if a folder's run has another recipe."""
    try:
        began = yaml.safe_load(directory.file("recipe.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        began = None
    if not isinstance(began, dict):
        raise RunError(f"{directory.file('recipe.yaml')} cannot be read: there is no run here to go on with")
    refuse_other_recipe(directory, began, recipe)
