"""DINOv2's features of sets of images, computed once: in an evaluation, and on disk for real images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.frechet import Moments, moments
from cswf_plugins.dinov2.network import BATCH, DinoNetwork, part_features
from cswf_plugins.dinov2.weights import DinoWeights
from cswf_plugins.statistics import FEATURES, MOMENTS, kept_features, kept_moments, statistics_file

NETWORK = "dinov2"
"""How its features are called in the names of files."""
VERSION = 1
"""To be raised when the same images and weights give other features."""


def features(comparison: Comparison, samples: Dataset, weights: DinoWeights) -> Tensor:
    """Return the features of a set of images on the evaluation's device: n×D.

    Those of a named set of real images are read from the cache if they are there, and left there if not.
    """
    bench, device = comparison.bench, comparison.draw.device
    title = f"DINOv2 features of {bench.names.get(samples, 'generated')}"

    def through_the_network() -> Tensor:
        images = bench.images(samples)
        if bench.share_out is not None and len(images) > BATCH[device.type]:
            work = partial(part_features, weights, title)
            return bench.share_out(work, images, BATCH[device.type], bench.tell).to(device)
        network = bench.keep((NETWORK, weights), lambda: DinoNetwork(weights, device))
        return network.features(images, title, bench.tell)

    def compute() -> Tensor:
        path = _cache_file(comparison, samples, weights, FEATURES)
        return kept_features(path, through_the_network, len(samples), None, device)

    rows = bench.keep((NETWORK, "features", samples, weights), compute)
    if samples is comparison.generated or samples is comparison.real:
        name = "generated" if samples is comparison.generated else bench.names.get(samples, "real")
        bench.features[f"{name}-{NETWORK}"] = rows
    return rows


def known_features(comparison: Comparison, samples: Dataset, weights: DinoWeights) -> Tensor | None:
    """Return a set's features, n×D, if they were computed before, and None if not."""
    path = _cache_file(comparison, samples, weights, FEATURES)
    known = comparison.bench.has((NETWORK, "features", samples, weights))
    return features(comparison, samples, weights) if known or (path is not None and path.is_file()) else None


def feature_moments(comparison: Comparison, samples: Dataset, weights: DinoWeights) -> Moments:
    """Return mean and covariance of a set's features; for named real images, from the cache if it has them."""

    def compute() -> Moments:
        return kept_moments(
            _cache_file(comparison, samples, weights, MOMENTS),
            lambda: moments(features(comparison, samples, weights)),
            lambda: _key(comparison, samples, weights),
            None,
            comparison.draw.device,
        )

    return comparison.bench.keep((NETWORK, "moments", samples, weights), compute)


def _key(comparison: Comparison, samples: Dataset, weights: DinoWeights) -> dict[str, Any]:
    """Return all that decides a set's features."""
    return {
        "version": VERSION,
        "network": NETWORK,
        "data": comparison.bench.names[samples],
        "count": len(samples),
        "shape": list(samples.space.shape),
        "weights": weights.sha256,
        "images": comparison.bench.sha256(samples),
    }


def _cache_file(comparison: Comparison, samples: Dataset, weights: DinoWeights, ending: str) -> Path | None:
    """Return the cache file of a named set; None for others."""
    if samples not in comparison.bench.names:
        return None
    return statistics_file(_key(comparison, samples, weights), NETWORK, ending)
