"""A recipe, run into a folder: the flow, its observers, its evaluation, its record and its report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from cswf_core.errors import CswfError
from cswf_core.evaluation.evaluate import Evaluated, evaluate, merged
from cswf_core.evaluation.task import Task
from cswf_core.flow import boundary
from cswf_core.flow.flow import Flow
from cswf_core.interfaces import Dataset, Owner
from cswf_core.interfaces.metric import Tell
from cswf_core.recipe import Recipe, build_flow
from cswf_core.recipe.render import to_yaml
from cswf_core.report import write_report
from cswf_core.runs import completions, pictures, samples
from cswf_core.runs.directory import RunDirectory
from cswf_core.runs.flow_figure import FlowFigure
from cswf_core.runs.frames import Frames
from cswf_core.runs.metrics_log import MetricsLog
from cswf_core.runs.record import Record, describe_device

log = logging.getLogger("cswf")


def launch(
    recipe: Recipe,
    directory: RunDirectory,
    *,
    device: str = "auto",
    force: bool = False,
    observers: Sequence[object] = (),
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Run a recipe to its end and return what run.json says; `tell` hears of the evaluation's progress.

    Nothing is written before recipe, data and folder are known to be good. An interruption (Ctrl-C) or an
    error is written into run.json and raised again.
    """
    directory.refuse_if_taken(force=force, reading=recipe.path)
    figure, frames = FlowFigure(recipe.outputs.snapshots), Frames(recipe.outputs.frames)
    steps = MetricsLog(directory, recipe.outputs.log_every)
    with ExitStack() as closing:
        watchers = _watchers(recipe, directory, closing)
        flow = build_flow(recipe, device=device, observers=[*observers, steps, figure, frames, *watchers])
        task = Task.of_recipe(recipe, flow.data)
        task.check(flow.samples(torch.zeros(1, dtype=torch.long)))  # better now than after the flow
        directory.create(force=force)
        closing.callback(refresh_report, directory)
        record = Record(directory, _facts(recipe, flow))
        try:
            record.save("running")
            directory.write("recipe.yaml", to_yaml(recipe.resolved()))
            generated = flow.run()
            _write_results(directory, recipe, flow, generated, figure)
            _write_frames(directory, frames)
            record.save("running", **_progress(steps, flow), samples_sha256=generated.digest())
            found = evaluate(
                generated,
                task,
                source="samples.npz",
                device=flow.device,
                dtype=flow.settings.dtype,
                tell=tell,
                keep=partial(write_scores, directory),
            )
            flow.notify("after_evaluation", scores=found.scores)
            record.save("done", metrics=found.scores)
        except KeyboardInterrupt:
            record.save("interrupted", **_progress(steps, flow))
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, CswfError) else f"{type(error).__name__}: {error}"
            record.save("failed", **_progress(steps, flow), error=reason)
            raise
    return record.facts


def write_scores(directory: RunDirectory, found: Evaluated) -> dict[str, Any]:
    """Write metrics.json, with what it has from earlier evaluations, and the pictures; return what it says."""
    while found.figures:
        name, figure = found.figures.popitem()
        rows = [[pictures.tile(image) for image in row] for row in figure.rows]
        directory.write(f"{name}.png", pictures.png(pictures.table(rows, top=list(figure.top))))
    document = merged(directory.read_json("metrics.json"), found.document)
    directory.write_json("metrics.json", document)
    return document


def refresh_report(directory: RunDirectory) -> None:
    """Write report.html; a report that cannot be made is a pity, and no reason for a run to fail."""
    try:
        write_report(directory)
    except CswfError as error:
        log.warning("the report could not be written: %s", error)


def _watchers(recipe: Recipe, directory: RunDirectory, closing: ExitStack) -> list[object]:
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


def _write_results(
    directory: RunDirectory, recipe: Recipe, flow: Flow, generated: Dataset, figure: FlowFigure
) -> None:
    observation = None if flow.observation is None else flow.observation.to(torch.device("cpu"))
    directory.write("samples.npz", samples.archive(generated, observation))
    if observation is not None and generated.space.is_image:
        shown = completions.figure(generated, flow.data, observation, recipe.outputs.columns)
        directory.write("completions.png", pictures.png(shown))
    columns = recipe.outputs.columns
    directory.write("samples.png", pictures.png(samples.picture(generated, flow.data, columns)))
    drawn = figure.draw(flow.data)
    if drawn is not None:
        directory.write("flow.png", pictures.png(drawn))


def _write_frames(directory: RunDirectory, frames: Frames) -> None:
    archived, animated = frames.archive(), frames.gif()
    if archived is not None and animated is not None:
        directory.write("frames.npz", archived)
        directory.write("flow.gif", animated)


def _facts(recipe: Recipe, flow: Flow) -> dict[str, Any]:
    owners = {path: choice.plugin.owner for path, choice in recipe.choices().items()}
    return {
        "name": recipe.name,
        "seed": recipe.seed,
        "device": describe_device(flow.device),
        "particles": len(flow.particles),
        "data": {
            "samples": len(flow.data),
            "shape": list(flow.data.space.shape),
            "sha256": flow.data.digest(),
        },
        "plugins": {
            path: {"name": o.name, "distribution": o.distribution, "version": o.version}
            for path, o in owners.items()
        },
        "distributions": recipe.registry.distributions,
    }


def _progress(steps: MetricsLog, flow: Flow) -> dict[str, Any]:
    return {"steps_done": steps.steps_done, "steps_planned": sum(stage.steps for stage in flow.stages)}
