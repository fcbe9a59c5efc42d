"""Features of sets of images, computed once: in an evaluation for all metrics, and on disk for real images."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.frechet import Moments, moments
from cswf_plugins.inception import weights
from cswf_plugins.inception.architecture import WIDTH
from cswf_plugins.inception.estimate import TimeEstimate
from cswf_plugins.inception.network import BATCH, Mode, Network, Numbers, numbers, part_features
from cswf_plugins.inception.published import published_moments
from cswf_plugins.statistics import FEATURES, MOMENTS, kept_features, kept_moments, statistics_file

VERSION = 1
"""To be raised when the same images and weights give other features."""


def features(comparison: Comparison, samples: Dataset, mode: Mode) -> Tensor:
    """Return the features of a set of images on the evaluation's device: n×2,048.

    Those of a named set of real images are read from the cache if they are there, and left there if not.
    """
    bench = comparison.bench

    def compute() -> Tensor:
        if not samples.space.is_image:
            raise DataError(f"features are of images; these are samples in {samples.space} dimensions")
        _note_weights(comparison)
        title = f"features of {bench.names.get(samples, 'generated')}"
        path = cache_file(comparison, samples, mode, FEATURES)
        through_the_network = partial(_completed, comparison, samples, mode, title)
        return kept_features(path, through_the_network, len(samples), WIDTH, comparison.draw.device)

    rows = bench.keep(("features", samples, mode, computed_in(comparison)), compute)
    if samples is comparison.generated or samples is comparison.real:  # not some of them
        name = "generated" if samples is comparison.generated else bench.names.get(samples, "real")
        bench.features[f"{name}-inception-{mode}"] = rows
    return rows


def some_features(comparison: Comparison, samples: Dataset, mode: Mode, index: Tensor) -> Tensor:
    """Return the features of the samples that `index` (m, on the CPU) names: m×2,048.

    If those of the others are not known, they are not computed either.
    """
    bench = comparison.bench
    if len(index) == len(samples) or _are_known(comparison, samples, mode):
        rows = features(comparison, samples, mode)
        return rows[index.to(rows.device)]
    parts = _parts(comparison, samples, mode)
    for known_index, rows in parts:
        if torch.equal(known_index, index):
            return rows
    title = f"features of some of {bench.names.get(samples, 'generated')}"
    rows = _computed(comparison, bench.images(samples)[index], mode, title, len(index))
    parts.append((index, rows))
    return rows


def _parts(comparison: Comparison, samples: Dataset, mode: Mode) -> list[tuple[Tensor, Tensor]]:
    """Return the features of parts of a set that are known: (indices, m; features, m×2,048) for each."""
    return comparison.bench.keep(("some features", samples, mode, computed_in(comparison)), list)


def _completed(comparison: Comparison, samples: Dataset, mode: Mode, title: str) -> Tensor:
    """Return the features of a set, n×2,048, of which those of some parts may be known already."""
    images = comparison.bench.images(samples)
    parts = _parts(comparison, samples, mode)
    left = _missing(comparison, samples, mode)
    if not parts:
        return _computed(comparison, images, mode, title, left)
    first = parts[0][1]
    features = first.new_empty(len(samples), first.shape[1])
    missing = torch.ones(len(samples), dtype=torch.bool)
    for index, rows in parts:
        features[index.to(features.device)] = rows
        missing[index] = False
    parts.clear()
    if bool(missing.any()):
        features[missing.to(features.device)] = _computed(comparison, images[missing], mode, title, left)
    return features


def _missing(comparison: Comparison, samples: Dataset, mode: Mode) -> int:
    """Return how many images the network is yet to see: of a set, and of the evaluation's other sets.

    0 if a call for another set has counted this one.
    """
    counted: set[Dataset] = comparison.bench.keep(("counted", mode), set)
    if samples in counted:
        return 0
    missing = {samples}
    sets = {comparison.generated, *comparison.bench.references}
    if samples in sets:
        missing |= {each for each in sets - counted if not _is_there(comparison, each, mode)}
    counted |= missing
    return sum(map(len, missing))


def _is_there(comparison: Comparison, samples: Dataset, mode: Mode) -> bool:
    """Say whether the network need not see a set, as what is needed of its features is known or published."""
    if _are_known(comparison, samples, mode):
        return True
    if comparison.bench.real_features:
        return False
    stored = _has_file(comparison, samples, mode, MOMENTS)
    return stored or published_moments(comparison, samples, mode) is not None


def _computed(comparison: Comparison, images: Tensor, mode: Mode, title: str, left: int) -> Tensor:
    """Return the features of images (n×C×H×W bytes) by the network, on all devices there are: n×2,048.

    On a CPU, an estimate of the time that `left` images take is printed; none if these are 0.
    """
    bench, device = comparison.bench, comparison.draw.device
    file = _note_weights(comparison)
    left = left if device.type == "cpu" else 0
    if bench.share_out is not None and len(images) > BATCH[device.type]:
        work = partial(part_features, file, bench.precision, mode, title)
        tell = TimeEstimate(bench, len(images), left)
        return bench.share_out(work, images, BATCH[device.type], tell).to(device)
    network = bench.keep(
        ("inception", file.path, computed_in(comparison)), lambda: Network(file, device, bench.precision)
    )
    return network.features(images, mode, title, TimeEstimate(bench, len(images), left))


def _note_weights(comparison: Comparison) -> weights.Weights:
    """Return the network's file, and write down that scores depend on it."""
    file = weights.find(comparison.bench)
    comparison.bench.used["weights"] = {"file": file.kind.name, "sha256": file.kind.sha256}
    return file


def known_features(comparison: Comparison, samples: Dataset, mode: Mode) -> Tensor | None:
    """Return a set's features, n×2,048, if they were computed before, and None if not."""
    return features(comparison, samples, mode) if _are_known(comparison, samples, mode) else None


def _are_known(comparison: Comparison, samples: Dataset, mode: Mode) -> bool:
    if comparison.bench.has(("features", samples, mode, computed_in(comparison))):
        return True
    return _has_file(comparison, samples, mode, FEATURES)


def _has_file(comparison: Comparison, samples: Dataset, mode: Mode, ending: str) -> bool:
    path = cache_file(comparison, samples, mode, ending)
    return path is not None and path.is_file()


def feature_moments(comparison: Comparison, samples: Dataset, mode: Mode) -> Moments:
    """Return mean and covariance of a set's features; for named real images, from the cache if it has them.

    If it has not, those that clean-fid publishes are used, which are not put into the cache.
    """

    def compute() -> Moments:
        if not _are_known(comparison, samples, mode) and not _has_file(comparison, samples, mode, MOMENTS):
            published = published_moments(comparison, samples, mode)
            if published is not None:
                return published
        return kept_moments(
            cache_file(comparison, samples, mode, MOMENTS),
            lambda: moments(features(comparison, samples, mode)),
            lambda: _key(comparison, samples, mode),
            WIDTH,
            comparison.draw.device,
        )

    return comparison.bench.keep(("moments", samples, mode, computed_in(comparison)), compute)


def computed_in(comparison: Comparison) -> Numbers:
    """Return what features of a comparison are computed in."""
    return numbers(comparison.bench.precision, comparison.draw.device)


def _key(comparison: Comparison, samples: Dataset, mode: Mode) -> dict[str, Any]:
    """Return all that decides a set's features; float32 is not said, as it was the only one once."""
    others = {} if computed_in(comparison) == "float32" else {"convolutions": computed_in(comparison)}
    return {
        "version": VERSION,
        "data": comparison.bench.names[samples],
        "count": len(samples),
        "shape": list(samples.space.shape),
        "mode": mode,
        "weights": weights.find(comparison.bench).kind.sha256,
        "images": comparison.bench.sha256(samples),
        **others,
    }


def cache_file(comparison: Comparison, samples: Dataset, mode: Mode, ending: str) -> Path | None:
    """Return the cache file of a named set; None for others."""
    if samples not in comparison.bench.names:
        return None
    key = _key(comparison, samples, mode)
    computed = f"{mode}-{key['convolutions'].lower()}" if "convolutions" in key else mode
    return statistics_file(key, computed, ending)
