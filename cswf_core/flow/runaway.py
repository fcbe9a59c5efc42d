"""A flow that diverges is told from one that flows, and why."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.plan import Plan

RUNAWAY = 30
"""A step is taken for a runaway if it is this many times as long as data and first particles are."""


def refuse_runaway(
    plan: Plan, step: int, eta: float, result: tuple[Tensor, Tensor], done: int, size: float
) -> None:
    """Raise `RunError` if a step was out of all proportion to the data (their `size`), as in a runaway.

    `result` are the mean length of the move and SW₂², and `done` is how many steps the flow has taken. With H
    isotropic directions an error e grows by the factor 1 − 2c + c²(1 + (d−1)/H) in the mean of |e|², where
    c = η/d; it shrinks only if η < 2d / (1 + (d−1)/H).
    """
    moved, squares = (float(number) for number in result)
    if not (math.isfinite(moved) and math.isfinite(squares)):
        plan.examine(step)
        tables = plan.scene.settings.tables
        half = tables is not None and tables.dtype == torch.float16
        raise RunError(
            f"numbers are too large for {plan.scene.settings.dtype} at step {done}: data, particles.scale, "
            f"amplifier, entropy or step size{'; or for the model: take model.dtype=float32' if half else ''}"
        )
    if moved <= RUNAWAY * (size + 1):
        return
    d, H = plan.scene.directions.coordinates.space.dimension, plan.scene.directions.stage.directions
    raise RunError(
        f"the flow ran away: step {done} moved particles by {moved:.3g} on average. With "
        f"{H:,} directions in {d:,} dimensions a step size of {eta:g} is too large; take more "
        f"directions (schedule.directions) or a smaller step (schedule.step_size), well below "
        f"{2 * d / (1 + (d - 1) / H):.3g}"
    )
