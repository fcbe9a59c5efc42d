"""Where particles begin: X₀ from noise, Y₀ from q(y), and what is observed written into X₀."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow import admission, boundary
from cswf_core.flow.coordinates import Coordinates
from cswf_core.flow.noise import dequantised, gaussian
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Key, Observation, Owner, Stage

INSIDE = 1 - 2**-10
"""Observed pixels stay clear of their bin's upper edge, so that rounding never shows the next grey level."""


def begin(
    data: Dataset, parts: Parts, settings: Settings, start: Dataset | None, device: torch.device
) -> tuple[Tensor, Conditions, Observation | None]:
    """Return X₀ (d×M) with its observed part in place, Y₀, and the observation.

    X₀ ~ N(0, scale² I) and Y₀ ~ q(y), or both from `start`.
    """
    owner, data_owner = parts.owner("condition"), parts.owner("dataset")
    like = torch.empty(0, dtype=settings.dtype, device=device)
    count = settings.count if settings.count is not None else len(data)
    start = admission.check_start(start, data, data_owner)
    if start is not None:
        x, conditions = start.x.to(like, copy=True), start.conditions
    else:
        x = gaussian(Key(settings.seed, "start"), (data.space.dimension, count), like) * settings.scale
        with boundary.calling(owner, "draw"):
            conditions = parts.condition.draw(data, count, Key(settings.seed, "labels").open())
    admission.check_conditions(conditions, owner, "draw", x.shape[1], len(data.classes))
    conditions = conditions.to(device, settings.dtype)
    if not bool(torch.isfinite(x).all()):
        raise RunError(
            f"particles do not begin with finite numbers: lower particles.scale ({settings.scale:g})"
        )
    observation = _observation(data, parts, settings, conditions, x, owner)
    if observation is None:
        return x, conditions, None
    seen = observation.seen(given(data, settings, conditions, x))
    return observation.free(x) + parts.condition.amplifier * seen, conditions, observation


def balanced(data: Dataset, condition: ConditionEncoder, seed: int, owner: Owner) -> Dataset:
    """Return the data that particles flow to: all of them, or as the condition wants them."""
    with boundary.calling(owner, "balance"):
        index = condition.balance(data, Key(seed, "balance").open())
    index = admission.check_balance(index, owner, len(data))
    return data if index is None else data.take(index)


def _observation(
    data: Dataset, parts: Parts, settings: Settings, conditions: Conditions, x: Tensor, owner: Owner
) -> Observation | None:
    draw = Key(settings.seed, "observation").open(x.device, x.dtype)
    with boundary.calling(owner, "observation"):
        value = parts.condition.observation(data, conditions, draw)
    observation = admission.check_observation(value, owner, x, parts.condition.amplifier)
    if observation is not None:
        admission.check_origin(conditions, data, owner)
    return observation


def given(data: Dataset, settings: Settings, conditions: Conditions, like: Tensor) -> Tensor:
    """Return the samples of which particles see a part (d×M), noise in their bins; always the same."""
    originals = data.originals(conditions).to(like)
    plain = Coordinates(Stage(steps=0, directions=1, step_size=0.0), data.space)
    key = Key(settings.seed, "given")
    return dequantised(originals, data.bin_width * INSIDE, data.space.dimension, plain, key)
