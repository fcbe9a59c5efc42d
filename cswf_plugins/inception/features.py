"""Features of sets of images, computed once: in an evaluation for all metrics, and on disk for real images.

Mean and covariance of CIFAR-10's features, which would take hours on a CPU, are also published by clean-fid.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import io
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.frechet import Moments, moments
from cswf_plugins.cache import FEATURES, MOMENTS, kept_features, kept_moments, statistics_file
from cswf_plugins.datasets.images import impatient
from cswf_plugins.inception import weights
from cswf_plugins.inception.architecture import WIDTH
from cswf_plugins.inception.network import BATCH, Mode, Network, part_features

SPLITS = {
    "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111": "train",
    "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56": "test",
}
"""The splits of CIFAR-10 by the SHA-256 of all their images, n×3×32×32 bytes in the order of the files."""

log = logging.getLogger("cswf")


def features(comparison: Comparison, samples: Dataset, mode: Mode) -> Tensor:
    """Return the features of a set of images on the evaluation's device: n×2,048.

    Those of a named set of real images are read from the cache if they are there, and left there if not.
    """
    bench = comparison.bench

    def compute() -> Tensor:
        if not samples.space.is_image:
            raise DataError(f"features are of images; these are samples in {samples.space} dimensions")
        _note_weights(comparison)
        path = cache_file(comparison, samples, mode, FEATURES)
        through_the_network = partial(_completed, comparison, samples, mode)
        return kept_features(path, through_the_network, len(samples), WIDTH, comparison.draw.device)

    rows = bench.keep(("features", samples, mode), compute)
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
    return comparison.bench.keep(("some features", samples, mode), list)


def _completed(comparison: Comparison, samples: Dataset, mode: Mode) -> Tensor:
    """Return the features of a set, n×2,048, of which those of some parts may be known already."""
    images = comparison.bench.images(samples)
    title = f"features of {comparison.bench.names.get(samples, 'generated')}"
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
    bench = comparison.bench
    device = comparison.draw.device
    file = _note_weights(comparison)
    left = left if device.type == "cpu" else 0
    if bench.share_out is not None and len(images) > BATCH[device.type]:
        work = partial(part_features, file, mode, title)
        tell = _with_estimate(bench, len(images), left)
        return bench.share_out(work, images, BATCH[device.type], tell).to(device)
    network = bench.keep(("inception", file.path), lambda: Network(file, device))
    return network.features(images, mode, title, _with_estimate(bench, len(images), left))


def _with_estimate(bench: Workbench, count: int, left: int) -> Tell:
    """Return what passes on the progress with `count` images, and prints an estimate after their first batch.

    It is how long `left` images will take, those of all sets whose features are missing; 0: none is wanted.
    Several processes may share the images, and one of them tells of its part.
    """
    began = time.monotonic()

    def tell(task: str, done: int, total: int) -> None:
        nonlocal left
        if left:
            seen = count * done / total
            _print_estimate(bench, round(left - seen), (time.monotonic() - began) / seen)
            left = 0
        bench.tell(task, done, total)

    return tell


def _print_estimate(bench: Workbench, left: int, pace: float) -> None:
    """Print how long so many images will take at a pace (seconds for one), and if that is long, what helps."""
    seconds = pace * left
    if seconds < 10:
        return
    duration = datetime.timedelta(seconds=round(seconds))
    text = "computing the features of %s images takes about %s (h:mm:ss) on this CPU, %.2g images a second"
    log.warning(text, f"{left:,}", duration, 1 / pace)
    if seconds > 300:
        names = [bench.names.get(each, "") for each in bench.references]
        tests = [f"--against {name}, " for name in names if name.endswith(":test") and len(names) > 1]
        options = f"{''.join(tests)}--real-count 1000, --count 1000, --metric sliced-wasserstein"
        log.warning("faster: a GPU, or these options of `cswf eval`: %s", options)


def _note_weights(comparison: Comparison) -> weights.Weights:
    """Return the network's file, and write down that scores depend on it."""
    file = weights.find(comparison.bench)
    comparison.bench.used["weights"] = {"file": file.name, "sha256": file.sha256}
    return file


def known_features(comparison: Comparison, samples: Dataset, mode: Mode) -> Tensor | None:
    """Return a set's features, n×2,048, if they were computed before, and None if not."""
    return features(comparison, samples, mode) if _are_known(comparison, samples, mode) else None


def _are_known(comparison: Comparison, samples: Dataset, mode: Mode) -> bool:
    computed = comparison.bench.has(("features", samples, mode))
    return computed or _has_file(comparison, samples, mode, FEATURES)


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

    return comparison.bench.keep(("moments", samples, mode), compute)


def _key(comparison: Comparison, samples: Dataset, mode: Mode) -> dict[str, Any]:
    """Return all that decides a set's features."""
    return {
        "version": 1,  # to be raised when the same images and weights give other features
        "data": comparison.bench.names[samples],
        "count": len(samples),
        "shape": list(samples.space.shape),
        "mode": mode,
        "weights": weights.find(comparison.bench).sha256,
        "images": comparison.bench.sha256(samples),
    }


def cache_file(comparison: Comparison, samples: Dataset, mode: Mode, ending: str) -> Path | None:
    """Return the cache file of a named set; None for others."""
    if samples not in comparison.bench.names:
        return None
    return statistics_file(_key(comparison, samples, mode), mode, ending)


def published_moments(comparison: Comparison, samples: Dataset, mode: Mode) -> Moments | None:
    """Return what clean-fid publishes for exactly these images, on the CPU.

    None on a GPU, where computing is quick, where a metric needs the features themselves, for other images, and
    where a download is not allowed or fails; after one failure there is no other try in this evaluation.
    """
    bench = comparison.bench
    wanted = samples in bench.names and not bench.real_features and comparison.draw.device.type == "cpu"
    if not wanted or not bench.download:
        return None
    split = SPLITS.get(bench.sha256(samples))
    failed = ("published moments", "failed")
    if split is None or bench.has(failed):
        return None
    moments = bench.keep(("published moments", samples, mode), lambda: _fetched(split, len(samples), mode))
    if moments is None:
        bench.keep(failed, lambda: True)
    return moments


def are_published(comparison: Comparison, samples: Dataset, mode: Mode) -> bool:
    """Say whether published statistics of a set are used in this evaluation."""
    key = ("published moments", samples, mode)
    return comparison.bench.has(key) and comparison.bench.keep(key, lambda: None) is not None


def _fetched(split: str, count: int, mode: Mode) -> Moments | None:
    """Return the statistics of a split from clean-fid's own cache or its site, and print that they are used."""
    # By name: clean-fid brings torchvision along, and has no types to check against.
    cleanfid = importlib.import_module("cleanfid.features")
    file = Path(cleanfid.__file__ or "").parent / "stats" / f"cifar10_{mode}_{split}_32.npz"
    if not file.is_file():
        log.warning("downloading clean-fid's statistics of cifar10:%s", split)
    try:
        with impatient(10.0), contextlib.redirect_stdout(io.StringIO()):
            mu, sigma = cleanfid.get_reference_statistics("cifar10", 32, mode=mode, split=split)
        if mu.shape != (WIDTH,) or sigma.shape != (WIDTH, WIDTH) or not np.isfinite([mu, *sigma]).all():
            raise DataError("they have another shape, or numbers that are not finite")
    except Exception as error:  # urllib, ssl, zipfile and NumPy each raise their own
        with contextlib.suppress(OSError):
            file.unlink()  # half a download would be taken for the file the next time
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        log.warning("clean-fid's statistics of cifar10:%s could not be fetched (%s)", split, reason)
        return None
    log.warning("using the statistics of cifar10:%s that clean-fid publishes (mode %s)", split, mode)
    return Moments(torch.from_numpy(mu).double(), torch.from_numpy(sigma).double(), count)
