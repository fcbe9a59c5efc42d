"""Updates of a run that has ended with new data: its last state, and the recipe of the run that follows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from cswf_core.documents import MisfitError, structured
from cswf_core.errors import RunError
from cswf_core.online import Counts
from cswf_core.plugins import PluginFolders, Registry, as_options
from cswf_core.recipe import Choice, Recipe, choose
from cswf_core.recipe.sections import OnlineSection
from cswf_core.runs.checkpoints import CheckpointFacts, CheckpointFolder
from cswf_core.runs.durable import read_tensors
from cswf_core.runs.folder import RunFolder

COUNTS = "counts.safetensors"
"""The file in a run's folder with the counts of its data."""


@attrs.frozen(eq=False)
class Predecessor:
    """The end of a run, from which another run goes on."""

    checkpoint: tuple[Path, ...]
    """The files of its last checkpoint, one for each of its ranks."""
    counts: Counts | None
    """The counts of its data; None if they have to be counted."""
    facts: dict[str, Any]
    """The entry about it in the other run's run.json."""
    shape: tuple[int, ...]
    """Of its samples."""
    lost: tuple[str, ...]
    """A sentence for each of its files that cannot be used."""
    plugins: Sequence[Mapping[str, str]]
    """Facts of the plugins that it was made with."""


def read_predecessor(directory: RunFolder, plugins_dir: PluginFolders = None) -> Predecessor:
    """Return the end of the run in a folder; raise `RunError` if it is not done, or has no checkpoint.

    `plugins_dir` are the folders of its plugins, for the command that would bring it to its end.
    """
    record = directory.facts()
    if not directory.begun or record is None:
        raise RunError(f"{directory.path} has no run: it lacks recipe.yaml or run.json")
    if not directory.done:
        resume = f"`cswf resume {directory.path}{as_options(plugins_dir)}`"
        raise RunError(f"{directory.path} is not done; {resume} brings it to its end")
    lost: list[str] = []
    end = next(CheckpointFolder(directory.file("checkpoints")).newest_first(lost), None)
    if end is None or end.step != record.steps_done:
        reasons = "; ".join(lost) or "outputs.checkpoint_every may have been 'never'"
        raise RunError(
            f"{directory.path} has no checkpoint of its end, where its particles could go on: {reasons}"
        )
    if record.data is None:
        raise RunError(f"{directory.file('run.json')} is damaged: it does not say which data the run had")
    facts: dict[str, Any] = {"run": directory.path.resolve().name, "steps_done": end.step}
    facts |= {"samples_sha256": record.samples_sha256, "particles": record.particles}
    try:
        known: CheckpointFacts = structured(end.facts, CheckpointFacts)
    except MisfitError as error:
        raise RunError(f"{end.files[0]} is damaged: {error}") from None
    counts = _counts(directory, lost)
    return Predecessor(tuple(end.files), counts, facts, record.data.shape, tuple(lost), known.plugins)


def _counts(directory: RunFolder, lost: list[str]) -> Counts | None:
    path = directory.file(COUNTS)
    if not path.exists():
        return None
    try:
        return Counts.of_tensors(*read_tensors(path))
    except RunError as error:
        lost.append(str(error))
        return None


def with_arrival(recipe: Recipe, new: Choice, steps: int | Sequence[int] | None) -> Recipe:
    """Return a run's recipe with one more arrival; `steps` is K of the stages then, as before if None.

    A run that has no sets of directions gets no more than the steps can use. The maps of the steps before are
    not those of this run, so it can save no model.
    """
    online = recipe.online
    if online is None:
        online = OnlineSection()
        most = max(steps) if isinstance(steps, Sequence) else steps
        online = attrs.evolve(online, sets=min(online.sets, max(most or online.sets, 1)))
    if steps is not None:
        last = steps if isinstance(steps, int) else tuple(steps)
        before = tuple(online.steps_after(number) for number in range(len(recipe.arrivals)))
        online = attrs.evolve(online, steps=(*before, last) if before or isinstance(last, tuple) else last)
    return attrs.evolve(
        recipe,
        online=online,
        arrivals=(*recipe.arrivals, new),
        model=attrs.evolve(recipe.model, save=False),
    )


def with_room(recipe: Recipe, needed: int) -> Recipe | None:
    """Return a recipe whose condition has room for so many classes; None if it has no such parameter."""
    part = recipe.condition.part
    if not any(field.name == "room" for field in attrs.fields(type(part))):
        return None
    condition = attrs.evolve(recipe.condition, part=attrs.evolve(part, room=needed))
    return attrs.evolve(recipe, condition=condition)


def choose_data(text: str, registry: Registry, shape: Sequence[int]) -> Choice:
    """Return the data that `--data` names: as a recipe does, or a folder of pictures, or an .npz file.

    `shape` is that of the samples before: pictures are brought to it.
    """
    path = Path(text).expanduser()
    if text in registry.names("dataset") or text.lstrip().startswith("{") or not path.exists():
        return choose(registry, "dataset", text, "--data", or_path=True)
    section: dict[str, Any] = {"use": "npz", "path": str(path.resolve())}
    if path.is_dir():
        if len(shape) != 3:
            raise RunError(f"{path} is a folder of pictures, and the run's data are points")
        section |= {"use": "image-folder", "size": shape[1], "channels": shape[0], "held_out": 0}
    return choose(registry, "dataset", json.dumps(section, ensure_ascii=False), "--data")
