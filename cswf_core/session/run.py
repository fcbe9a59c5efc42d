"""One run: its flow, everything that watches it, and what it leaves in its folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import attrs
import torch
import yaml

from cswf_core.errors import CswfError, RunError
from cswf_core.evaluation.evaluate import Evaluation, evaluate, merge_documents
from cswf_core.evaluation.task import Task
from cswf_core.flow import boundary
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import Dataset, Owner
from cswf_core.interfaces.metric import Tell
from cswf_core.model.writer import ModelWriter
from cswf_core.online.counts import Sketch
from cswf_core.pictures import completions
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.flow_figure import FlowFigure
from cswf_core.pictures.frames import Frames
from cswf_core.recipe import Recipe, build_flow
from cswf_core.recipe.render import to_yaml
from cswf_core.report import write_report
from cswf_core.report.words import flattened
from cswf_core.runs import samples
from cswf_core.runs.checkpoints import Checkpoint, CheckpointFolder, Checkpoints
from cswf_core.runs.durable import write_tensors
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.log import MetricsLog
from cswf_core.runs.record import Record, describe_device, versions
from cswf_core.session.update import COUNTS

log = logging.getLogger("cswf")

UNIMPORTANT = ("name", "description")
"""Keys of a recipe that change nothing about a run."""


class Run:
    """One run: its flow, and everything that watches it."""

    def __init__(
        self,
        recipe: Recipe,
        directory: RunFolder,
        device: str,
        observers: Sequence[object],
        closing: ExitStack,
        sketch: Sketch | None = None,
    ) -> None:
        self.recipe = recipe
        self.directory = directory
        self.closing = closing
        self.figure, self.frames = FlowFigure(recipe.outputs.snapshots), Frames(recipe.outputs.frames)
        self.steps = MetricsLog(directory, recipe.outputs.log_every)
        watchers: list[object] = [self.steps, self.figure, self.frames, *_watchers(recipe, directory, closing)]
        writer = ModelWriter(directory.file("model"), recipe) if recipe.model.save else None
        watchers += [] if writer is None else [writer]
        self.folder = CheckpointFolder(directory.file("checkpoints"))
        self.checkpoints = Checkpoints(
            self.folder, recipe.outputs.checkpoint_every, watchers, self._checkpoint_facts
        )
        self.record: Record | None = None
        watching = [*observers, *watchers, self.checkpoints]
        self.flow = build_flow(recipe, device=device, observers=watching, sketch=sketch)
        data = self.flow.everything()
        self.data_facts = {
            "samples": len(data),
            "shape": list(data.space.shape),
            "sha256": data.digest(),
        }
        if writer is not None:
            writer.data_digest = str(self.data_facts["sha256"])
        self.task = Task.of_recipe(recipe, data)
        like = attrs.evolve(self.flow.samples(torch.zeros(1, dtype=torch.long)), classes=data.classes)
        self.task.check(like)  # better now than after the flow

    def go_back(self, lost: list[str]) -> tuple[int, float] | None:
        """Restore the newest good checkpoint; return its step and the seconds until then; None: there is none.

        `lost` is told of those that cannot be used, a sentence each.
        """
        self.folder.tidy()
        for found in self.folder.newest_first(lost):
            if not self._checkpoint_facts().keys() <= found.facts.keys():
                lost.append(f"the checkpoint of step {found.step:,} is not that of a run")
                continue
            self._refuse_other(found)
            try:
                self.checkpoints.recall(found)
            except RunError as error:  # what else belongs to this moment is damaged
                lost.append(str(error))
                continue
            self.flow.restore(Snapshot.of(found.part("flow"), found.facts))
            return found.step, float(found.facts.get("seconds", 0.0))
        return None

    def refuse_other_data(self, before: object) -> None:
        """Raise `RunError` if the SHA-256 of the data is not what it was before."""
        now = str(self.data_facts["sha256"])
        if isinstance(before, str) and before != now:
            raise RunError(
                f"the data are not those that {self.directory.path} was begun with: their SHA-256 is "
                f"{now[:12]}…, was {before[:12]}…"
            )

    def _refuse_other(self, found: Checkpoint) -> None:
        """Refuse to go on with other data or another recipe; warn if bits may differ."""
        facts, now = found.facts, self._checkpoint_facts()
        refuse_other_recipe(self.directory, yaml.safe_load(facts["recipe"]), self.recipe)
        self.refuse_other_data(facts["data_sha256"])
        differing = [
            f"{what} {now['versions'].get(what)}, was {version}"
            for what, version in facts["versions"].items()
            if now["versions"].get(what) != version
        ]
        if facts["device"] != now["device"]:
            differing.append(f"device {now['device']}, was {facts['device']}")
        if differing:
            log.warning("the result may differ in its last digits: %s", "; ".join(differing))

    def work(self, record: Record, tell: Tell | None) -> dict[str, Any]:
        """Do all that is left to do and return what run.json says."""
        directory, flow = self.directory, self.flow
        self.record = record
        self.closing.callback(refresh_report, directory)
        try:
            directory.write("recipe.yaml", to_yaml(self.recipe.resolved()))
            record.save("running")
            with self.checkpoints.stopping.patient():
                generated = flow.run()
            self._write_results(generated)
            record.save("running", **self._progress(), samples_sha256=generated.digest())
            found = evaluate(
                generated,
                self.task,
                source="samples.npz",
                device=flow.device,
                dtype=flow.settings.dtype,
                tell=tell,
                keep=partial(write_scores, directory),
            )
            flow.notify("after_evaluation", scores=found.scores)
            record.save("done", metrics=found.scores)
        except KeyboardInterrupt:
            record.save("interrupted", **self._progress())
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, CswfError) else f"{type(error).__name__}: {error}"
            record.save("failed", **self._progress(), error=reason)
            raise
        with suppress(RunError):  # two checkpoints instead of one are no reason for a run to fail
            self.folder.keep_newest()
        return record.facts

    def facts(self) -> dict[str, Any]:
        """Return what run.json says of the run from its beginning."""
        recipe, flow = self.recipe, self.flow
        owners = {path: choice.plugin.owner for path, choice in recipe.choices().items()}
        return {
            "name": recipe.name,
            "seed": recipe.seed,
            "device": describe_device(flow.device),
            "particles": len(flow.particles),
            "data": self.data_facts,
            "plugins": {
                path: {"name": o.name, "distribution": o.distribution, "version": o.version}
                for path, o in owners.items()
            },
            "distributions": recipe.registry.distributions,
        }

    def _checkpoint_facts(self) -> dict[str, Any]:
        """Return what a checkpoint says besides the flow."""
        return {
            "recipe": to_yaml(self.recipe.resolved()),
            "data_sha256": self.data_facts["sha256"],
            "device": self.flow.device.type,
            "versions": {**self.recipe.registry.distributions, "torch": versions()["torch"]},
            "seconds": 0.0 if self.record is None else self.record.seconds,
        }

    def _write_results(self, generated: Dataset) -> None:
        directory, flow, columns = self.directory, self.flow, self.recipe.outputs.columns
        observation = None if flow.observation is None else flow.observation.to(torch.device("cpu"))
        directory.write("samples.npz", samples.archive(generated, observation))
        if observation is not None and generated.space.is_image:
            shown = completions.figure(generated, flow.data, observation, columns)
            directory.write("completions.png", pictures.png(shown))
        directory.write("samples.png", pictures.png(samples.picture(generated, flow.data, columns)))
        drawn = self.figure.draw(flow.data)
        if drawn is not None:
            directory.write("flow.png", pictures.png(drawn))
        moments = self.frames.moments
        if moments is not None:
            directory.write("frames.npz", moments.archive())
            directory.write("flow.gif", moments.gif())
        if flow.online is not None:
            sketch = flow.counts()
            write_tensors(directory.file(COUNTS), sketch.tensors(), sketch.facts())

    def _progress(self) -> dict[str, Any]:
        planned = sum(stage.steps for stage in self.flow.stages)
        return {
            "particles": len(self.flow.particles),
            "steps_done": self.steps.steps_done,
            "steps_planned": planned,
        }


def refuse_other_recipe(directory: RunFolder, began: dict[str, Any], recipe: Recipe) -> None:
    """Raise `RunError` with what differs if a run was begun with another recipe: `seed: 1, was 0`."""
    before, now = flattened(began), flattened(yaml.safe_load(to_yaml(recipe.resolved())))
    differing = [
        f"{path}: {now.get(path, 'not there')}, was {before.get(path, 'not there')}"
        for path in {**before, **now}
        if path not in UNIMPORTANT and before.get(path) != now.get(path)
    ]
    if differing:
        raise RunError(
            f"{directory.path} was begun with another recipe, so it cannot go on with this one:\n  "
            + "\n  ".join(differing)
        )


def write_scores(directory: RunFolder, found: Evaluation) -> dict[str, Any]:
    """Write metrics.json, with what it has from earlier evaluations, and the pictures; return what it says."""
    while found.figures:
        name, figure = found.figures.popitem()
        rows = [[pictures.tile(image) for image in row] for row in figure.rows]
        directory.write(f"{name}.png", pictures.png(pictures.table(rows, top=list(figure.top))))
    document = merge_documents(directory.read_json("metrics.json"), found.document)
    directory.write_json("metrics.json", document)
    return document


def refresh_report(directory: RunFolder) -> None:
    """Write report.html; a report that cannot be made is a pity, and no reason for a run to fail."""
    try:
        write_report(directory)
    except CswfError as error:
        log.warning("the report could not be written: %s", error)


def _watchers(recipe: Recipe, directory: RunFolder, closing: ExitStack) -> list[object]:
    """Return what the recipe's observers watch this run with; they are closed in the end."""
    found = []
    for choice in recipe.observers:
        with boundary.calling(choice.plugin.owner, "watch"):
            watcher = choice.part.watch(directory.path)
        found.append(watcher)
        if hasattr(watcher, "close"):
            closing.callback(_close, watcher, choice.plugin.owner)
    return found


def _close(watcher: Any, owner: Owner) -> None:
    """Close what has watched; if that fails, the run has been done all the same."""
    try:
        with boundary.calling(owner, "close"):
            watcher.close()
    except CswfError as error:
        log.warning("%s", error)
