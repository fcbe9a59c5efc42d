"""A recipe, run into a folder: the flow, its observers, its evaluation and its record."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import torch

from cswf_core.errors import CswfError, DataError
from cswf_core.flow import boundary
from cswf_core.flow.flow import Flow
from cswf_core.flow.memory import fitting
from cswf_core.interfaces import Dataset, Key
from cswf_core.recipe import Recipe, build_flow
from cswf_core.recipe.render import to_yaml
from cswf_core.runs import completions, pictures, samples
from cswf_core.runs.directory import RunDirectory
from cswf_core.runs.flow_figure import FlowFigure
from cswf_core.runs.metrics_log import MetricsLog
from cswf_core.runs.record import Record, describe_device


def launch(
    recipe: Recipe,
    directory: RunDirectory,
    *,
    device: str = "auto",
    force: bool = False,
    observers: Sequence[object] = (),
) -> dict[str, Any]:
    """Run a recipe to its end and return what run.json says.

    Nothing is written before recipe, data and folder are known to be good. An interruption (Ctrl-C) or an
    error is written into run.json and raised again.
    """
    directory.refuse_if_taken(force=force, reading=recipe.path)
    figure = FlowFigure(recipe.outputs.snapshots)
    log = MetricsLog(directory, recipe.outputs.log_every)
    flow = build_flow(recipe, device=device, observers=[*observers, log, figure])
    if recipe.metrics and "test" in recipe.against:
        _held_out(recipe, flow.data)  # better now than after the flow
    directory.create(force=force)
    record = Record(directory, _facts(recipe, flow))
    try:
        record.save("running")
        directory.write("recipe.yaml", to_yaml(recipe.resolved()))
        generated = flow.run()
        _write_results(directory, recipe, flow, generated, figure)
        record.save("running", **_progress(log, flow), samples_sha256=generated.digest())
        record.save("done", metrics=evaluate(recipe, flow, generated))
    except KeyboardInterrupt:
        record.save("interrupted", **_progress(log, flow))
        raise
    except BaseException as error:
        reason = str(error) if isinstance(error, CswfError) else f"{type(error).__name__}: {error}"
        record.save("failed", **_progress(log, flow), error=reason)
        raise
    return record.facts


def evaluate(recipe: Recipe, flow: Flow, generated: Dataset) -> dict[str, float]:
    """Compute every metric of the recipe; scores against held-out samples end in `_test`."""
    scores: dict[str, float] = {}
    for split in recipe.against:
        real, ending = (flow.target, "") if split == "train" else (_held_out(recipe, flow.data), "_test")
        for index, choice in enumerate(recipe.metrics):
            draw = Key(recipe.seed, "metric", index=index).open(flow.device, flow.settings.dtype)
            with boundary.calling(choice.plugin.owner, "compute"), fitting(*flow.sizes()):
                found = choice.part.compute(generated, real, draw)
            checked = boundary.check_scores(found, choice.plugin.owner)
            for name, value in checked.items():
                scores[_free(name + ending, scores)] = value
    return scores


def _free(name: str, taken: Collection[str]) -> str:
    """Return a score's name, numbered if another metric has it already."""
    numbered = (name if n == 1 else f"{name}_{n}" for n in itertools.count(1))
    return next(free for free in numbered if free not in taken)


def _held_out(recipe: Recipe, data: Dataset) -> Dataset:
    if data.held_out is None:
        raise DataError(f"evaluate.against asks for 'test', and dataset '{recipe.data.name}' holds nothing out")
    return data.held_out


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


def _progress(log: MetricsLog, flow: Flow) -> dict[str, Any]:
    return {"steps_done": log.steps_done, "steps_planned": sum(stage.steps for stage in flow.stages)}
