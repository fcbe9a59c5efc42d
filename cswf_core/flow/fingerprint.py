"""Fingerprints of directions: whether those that are drawn again are the same ones.

A resumed run, and a model that is sampled, draw directions again by the code of a plugin. If that code has
changed, particles would move along other directions than the maps belong to, and nothing else would show it.
So a few directions of each stage's first step are kept as a short text.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.errors import PluginError, RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions, DirectionSampler
from cswf_core.interfaces import Conditions, DenseProjection, Key, NonlinearProjection
from cswf_core.interfaces.dataset import digest_of
from cswf_core.ranks import Ranks

DIRECTIONS_PRINTED = 32  # of a batch, evenly spread
LEVELS_PER_UNIT = 2**11  # in a fingerprint; projected values are about as large as 1
MOST_LEVELS_APART = 4  # between fingerprints of the same directions, as devices round in other places
MOST_STRAYS = 2  # directions that differ by more: a number on a border falls on either side of it


def first_directions(sampler: DirectionSampler, seed: int, stage: int) -> Directions:
    """Return the first batch of a stage's directions, drawn twice; raise `PluginError` if they differ."""
    first, again = (next(sampler.batches(seed, stage, 0, check=True)) for _ in range(2))
    require_repeatable(sampler, first, again)
    return first


def require_repeatable(sampler: DirectionSampler, first: Directions, again: Directions) -> None:
    """Raise `PluginError` if two draws from one key did not give the same directions, to the bit."""
    pairs = zip(_numbers(sampler, first), _numbers(sampler, again), strict=True)
    if not all(torch.equal(one, other) for one, other in pairs):
        raise PluginError(
            f"{sampler.sampler.owner}: directions drawn twice from one key differ, so that no run could be "
            "repeated and no model sampled: draw all randomness from `draw`, and keep no state between calls"
        )


def fingerprint(sampler: DirectionSampler, directions: Directions) -> str:
    """Return the products of some directions with a fixed vector, in hexadecimal: `θ_x`, or `θ_x/l/θ_y`."""
    theta_y = directions.theta_y
    a = directions.length
    values = attrs.evolve(directions, theta_y=None).project(Cloud(_probe(sampler), Conditions()))[:, 0]
    values = directions.weighted(values)
    if isinstance(directions.projection, NonlinearProjection):  # of any size, unlike those of unit directions
        values = (values - values.mean()) / values.std(correction=0).clamp_min(torch.finfo(values.dtype).tiny)
    if theta_y is None or a is None:
        return _printed(values)
    factors = torch.arange(1, sampler.length + 1).cos().to(theta_y)
    beside = (theta_y * factors).sum(dim=1) / (sampler.condition.amplifier or 1.0)  # ξ = 0 leaves nothing
    alone = values / a[:, 0].clamp_min(torch.finfo(a.dtype).tiny)
    return f"{_printed(alone)}/{sampler.length}/{_printed(beside)}"


def _printed(values: Tensor) -> str:
    """Return some of the values as hexadecimal digits."""
    chosen = torch.arange(DIRECTIONS_PRINTED, device=values.device) * len(values) // DIRECTIONS_PRINTED
    levels = (values[chosen].double() * LEVELS_PER_UNIT).round().clamp(1 - 2**15, 2**15 - 1).long().tolist()
    return "".join(f"{level % 2**16:04x}" for level in levels)


def recognise(sampler: DirectionSampler, seed: int, stage: int, known: str | None, ranks: Ranks) -> str | None:
    """Return the fingerprint of a stage's directions; None for directions that follow the particles.

    Raise an error if they cannot be repeated, if other ranks draw others, or if `known` belongs to others.
    """
    if sampler.sampler.adapts:
        return None
    first = first_directions(sampler, seed, stage)
    if not ranks.alone:
        ranks.agree("directions", "".join(map(digest_of, _numbers(sampler, first))))
    now = fingerprint(sampler, first)
    if known and not same_fingerprint(now, known):
        raise RunError(
            f"stage {sampler.stage.name or 'of the schedule'}: {sampler.sampler.owner} draws other directions "
            "than it did before, so that particles would go astray: its code or its parameters have changed, "
            "or the data that it looks at. Bring back the version that was used then (run.json has its "
            "SHA-256), or begin anew"
        )
    return now


def same_fingerprint(first: str, second: str) -> bool:
    """Return whether two fingerprints are of the same directions, perhaps drawn on different devices."""
    x, *y = first.split("/")
    other_x, *other_y = second.split("/")
    comparable = bool(y and other_y) and y[0] == other_y[0]  # Y becomes longer when classes are added
    return _near(x, other_x) and (not comparable or _near(y[1], other_y[1]))


def _near(first: str, second: str) -> bool:
    """Return whether all but a few values are the same, up to rounding."""
    levels = [[int(text[at : at + 4], 16) for at in range(0, len(text), 4)] for text in (first, second)]
    apart = [abs((a - b + 2**15) % 2**16 - 2**15) for a, b in zip(*levels, strict=False)]
    return len(first) == len(second) and sum(gap > MOST_LEVELS_APART for gap in apart) <= MOST_STRAYS


def _numbers(sampler: DirectionSampler, directions: Directions) -> list[Tensor]:
    """Return the numbers that directions are made of; of operators, their products with a fixed vector."""
    projection = directions.projection
    dense = isinstance(projection, DenseProjection)
    theta = projection.dense() if dense else projection.project(_probe(sampler))
    parts = (theta, directions.weight, directions.length, directions.theta_y)
    return [part for part in parts if part is not None]


def _probe(sampler: DirectionSampler) -> Tensor:
    """Return a fixed vector: d_k×1."""
    d = sampler.coordinates.space.dimension
    return Key(0, "fingerprint").open(dtype=sampler.like.dtype).normal(d, 1).to(sampler.like)
