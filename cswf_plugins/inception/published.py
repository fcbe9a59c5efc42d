"""Mean and covariance of features that clean-fid publishes, which would take hours on a CPU."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
from pathlib import Path

import numpy as np
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.frechet import Moments
from cswf_plugins.datasets.images import impatient
from cswf_plugins.inception.architecture import WIDTH
from cswf_plugins.inception.network import Mode

SPLITS = {
    "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111": "train",
    "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56": "test",
}
"""The splits of CIFAR-10 by the SHA-256 of all their images, n×3×32×32 bytes in the order of the files."""
SILENCE_S = 10.0
"""Seconds without a byte after which the download has failed: computing is always possible."""

log = logging.getLogger("cswf")


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
        with impatient(SILENCE_S), contextlib.redirect_stdout(io.StringIO()):
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
