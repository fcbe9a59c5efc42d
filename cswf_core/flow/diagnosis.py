"""Which part of a step has made numbers that are not finite: directions, projections, maps, or the update.

A step is inspected while it is taken, on a CPU, or is taken once more with other particles for that. Plugins
are held to be at fault only while numbers are far from the largest float32.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from torch import Tensor

from cswf_core.flow.coordinates import Cloud, StageCoordinates
from cswf_core.flow.directions import Directions
from cswf_core.interfaces import Conditions, NonlinearProjection
from cswf_core.kernels.columns import columnwise, is_finite

LARGEST_SAFE = 1e15  # numbers below it can be multiplied, squared and added in float32 and stay finite


@attrs.frozen
class Fault:
    """What has made numbers that are not finite."""

    kind: str
    """The kind of the plugin that is at fault; empty: no plugin is."""
    words: str
    """What the plugin did, to be written behind its name."""


def fault_along(
    theta: Directions, particles: Cloud, data: Iterable[Cloud], coordinates: StageCoordinates, limit: float
) -> Fault | None:
    """Return why displacements along directions are not finite; None: numbers are too large, or unknown."""
    if not is_finite(particles.z):
        return None
    fault = _fault_of_directions(theta) or _fault_of_projection(theta, particles, "particles")
    if fault is not None:
        return fault
    largest = _largest(theta.project(particles))
    for cloud in data:
        if not is_finite(cloud.z):
            return fault_of_coordinates(coordinates, "data") or Fault("", "data are not finite")
        fault = _fault_of_projection(theta, cloud, "data")
        if fault is not None:
            return fault
        largest = max(largest, _largest(theta.project(cloud)))
    return Fault("cdf", "moved particles by amounts that are not finite") if largest < limit else None


def fault_of_update(directions: Iterable[Directions], squares: float, like: Tensor) -> Fault | None:
    """Return why 1/H Σ δ θ is not finite, though SW₂² (`squares`), which the CDF plugin has summed, is."""
    if not squares < LARGEST_SAFE:
        return None
    for theta in directions:
        nowhere = Cloud(like.new_zeros(theta.projection.shape[1], 1), Conditions())
        if not is_finite(theta.adjoint(like.new_ones(theta.count, 1), nowhere)):
            return Fault("projection", "back-projected to numbers that are not finite")
    return Fault("cdf", "moved particles by amounts that are not finite, which its sums of squares hide")


def fault_of_coordinates(coordinates: StageCoordinates, moved: str) -> Fault | None:
    """Return whose map between x and a stage's coordinates has made finite numbers infinite or NaN, or None."""
    owners = {
        "coordinates": coordinates.W,
        "schedule": coordinates.upsampling,
        "condition": coordinates.observation,
    }
    kind = next((kind for kind, part in owners.items() if part is not None), None)
    return None if kind is None else Fault(kind, f"brought {moved} to numbers that are not finite")


def _fault_of_directions(theta: Directions) -> Fault | None:
    """Return whose directions are not finite, if they are not."""
    # The adapters have checked weights, θ_y, and θ where it is a matrix, as they were drawn.
    projection = theta.projection
    if not isinstance(projection, NonlinearProjection) and not is_finite(projection.dense()):
        return Fault("projection", "drew directions that are not finite")
    if theta.scale is not None and not is_finite(theta.scale):
        return Fault("projection", "drew directions of length 0 on the stage's grid")
    return None


def _fault_of_projection(theta: Directions, cloud: Cloud, noun: str) -> Fault | None:
    """Return whose products of finite directions and samples are not finite, if they are not."""
    if is_finite(theta.project(cloud)) or not _largest(cloud.z) < LARGEST_SAFE:
        return None
    alone = columnwise(theta.projection.project, cloud.z)
    kind = "condition" if is_finite(alone) else "projection"
    return Fault(kind, f"projected {noun} to numbers that are not finite")


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
