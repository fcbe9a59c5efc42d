"""Metrics that look at images with a network: Inception score, Fréchet distance of DINOv2 features."""

from __future__ import annotations

from cswf_core import hookimpl
from cswf_core.hookspecs import Register
from cswf_more_metrics.frechet_dinov2 import FrechetDinov2
from cswf_more_metrics.inception_score import InceptionScore


@hookimpl
def register_metrics(register: Register) -> None:
    """Offer both metrics."""
    register("inception-score", InceptionScore)
    register("frechet-dinov2", FrechetDinov2)
