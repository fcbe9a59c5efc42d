"""Features of sets of images, computed once: in an evaluation for all metrics, and on disk for real images."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cswf_core.arrays import read_archive, read_array
from cswf_core.errors import CswfError, DataError
from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.frechet import Moments, moments
from cswf_plugins.cache import write_cached
from cswf_plugins.datasets.images import data_root
from cswf_plugins.inception import weights
from cswf_plugins.inception.architecture import WIDTH
from cswf_plugins.inception.network import BATCH, Mode, Network, Numbers, numbers, part_features

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
        path = cache_file(comparison, samples, mode, ".features.npy")
        stored = None if path is None else _stored(path, len(samples))
        if stored is not None:
            _note_weights(comparison)
            return stored.to(comparison.draw.device)
        title = f"features of {bench.names.get(samples, 'generated')}"
        computed = _completed(comparison, samples, mode, title)
        if path is not None:
            rows = computed.cpu().numpy()
            write_cached(path, lambda file: np.save(file, rows, allow_pickle=False))
        return computed

    return bench.keep(("features", samples, mode, computed_in(comparison)), compute)


def some_features(comparison: Comparison, samples: Dataset, mode: Mode, index: Tensor) -> Tensor:
    """Return the features of the samples that `index` (m, on the CPU) names: m×2,048.

    If those of the others are not known, they are not computed either.
    """
    bench = comparison.bench
    path = cache_file(comparison, samples, mode, ".features.npy")
    key = ("features", samples, mode, computed_in(comparison))
    known = bench.has(key) or (path is not None and path.is_file())
    if known or len(index) == len(samples):
        rows = features(comparison, samples, mode)
        return rows[index.to(rows.device)]
    parts = _parts(comparison, samples, mode)
    for known_index, rows in parts:
        if torch.equal(known_index, index):
            return rows
    title = f"features of some of {bench.names.get(samples, 'generated')}"
    rows = _computed(comparison, bench.images(samples)[index], mode, title)
    parts.append((index, rows))
    return rows


def _parts(comparison: Comparison, samples: Dataset, mode: Mode) -> list[tuple[Tensor, Tensor]]:
    """Return the features of parts of a set that are known: (indices, m; features, m×2,048) for each."""
    return comparison.bench.keep(("some features", samples, mode, computed_in(comparison)), list)


def _completed(comparison: Comparison, samples: Dataset, mode: Mode, title: str) -> Tensor:
    """Return the features of a set, n×2,048, of which those of some parts may be known already."""
    images = comparison.bench.images(samples)
    parts = _parts(comparison, samples, mode)
    if not parts:
        return _computed(comparison, images, mode, title)
    first = parts[0][1]
    features = first.new_empty(len(samples), first.shape[1])
    missing = torch.ones(len(samples), dtype=torch.bool)
    for index, rows in parts:
        features[index.to(features.device)] = rows
        missing[index] = False
    parts.clear()
    if bool(missing.any()):
        features[missing.to(features.device)] = _computed(comparison, images[missing], mode, title)
    return features


def _computed(comparison: Comparison, images: Tensor, mode: Mode, title: str) -> Tensor:
    """Return the features of images (n×C×H×W bytes) by the network, on all devices there are: n×2,048."""
    bench, device = comparison.bench, comparison.draw.device
    file = _note_weights(comparison)
    if bench.share_out is not None and len(images) > BATCH[device.type]:
        work = partial(part_features, file, bench.precision, mode, title)
        return bench.share_out(work, images, BATCH[device.type], bench.tell).to(device)
    network = bench.keep(
        ("inception", file.path, computed_in(comparison)), lambda: Network(file, device, bench.precision)
    )
    return network.features(images, mode, title, bench.tell)


def _note_weights(comparison: Comparison) -> weights.Weights:
    """Return the network's file, and write down that scores depend on it."""
    file = weights.find(comparison.bench)
    comparison.bench.used["weights"] = {"file": file.kind.name, "sha256": file.kind.sha256}
    return file


def feature_moments(comparison: Comparison, samples: Dataset, mode: Mode) -> Moments:
    """Return mean and covariance of a set's features; for named real images, from the cache if it has them."""

    def compute() -> Moments:
        path = cache_file(comparison, samples, mode, ".npz")
        stored = None if path is None else _stored_moments(path)
        if stored is not None:
            return stored.to(comparison.draw.device)
        computed = moments(features(comparison, samples, mode))
        if path is not None:
            mu, sigma = computed.mean.cpu().numpy(), computed.covariance.cpu().numpy()
            key = json.dumps(_key(comparison, samples, mode))
            write_cached(path, lambda file: np.savez(file, mu=mu, sigma=sigma, count=computed.count, key=key))
        return computed

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
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in key["data"])
    shape = "x".join(map(str, key["shape"]))
    computed = f"{mode}-{key['convolutions'].lower()}" if "convolutions" in key else mode
    sums = f"{key['weights'][:8]}-{key['images'][:12]}-v{VERSION}"
    return data_root() / "statistics" / f"{name}-{key['count']}-{shape}-{computed}-{sums}{ending}"


def _stored(path: Path, count: int) -> Tensor | None:
    with contextlib.suppress(CswfError):  # what cannot be read is made again
        rows = read_array(path)
        if rows.shape == (count, WIDTH) and rows.dtype == np.float32:
            return torch.from_numpy(rows)
    return None


def _stored_moments(path: Path) -> Moments | None:
    with contextlib.suppress(CswfError, KeyError):  # what cannot be read is made again
        arrays = read_archive(path, ("mu", "sigma", "count"))
        mean, covariance, count = arrays["mu"], arrays["sigma"], arrays["count"]
        shapes = (mean.shape, covariance.shape, count.shape)
        numbers = mean.dtype.kind == covariance.dtype.kind == "f" and count.dtype.kind in "iu"
        if shapes == ((WIDTH,), (WIDTH, WIDTH), ()) and numbers:
            mu, sigma = (torch.from_numpy(array.astype(np.float64)) for array in (mean, covariance))
            return Moments(mu, sigma, int(count))
    return None
