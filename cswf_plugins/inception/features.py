"""Inception features of sets of images, computed once: in an evaluation, and on disk for real images.

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
from cswf_core.kernels.frechet import Moments
from cswf_plugins.cache import MOMENTS, NetworkFeatures
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


class InceptionFeatures(NetworkFeatures):
    """The Inception features of an evaluation's images, resized in a mode: 2,048 of each."""

    def __init__(self, comparison: Comparison, mode: Mode) -> None:
        super().__init__(comparison, mode, mode, f"inception-{mode}", WIDTH)
        self.mode: Mode = mode

    def begin(self, samples: Dataset) -> None:
        """Raise where a set is not of images, and write down that scores depend on the network's file."""
        if not samples.space.is_image:
            raise DataError(f"features are of images; these are samples in {samples.space} dimensions")
        self._note_weights()

    def facts(self) -> dict[str, Any]:
        """Return the mode, and the SHA-256 of the network's file."""
        return {"mode": self.mode, "weights": weights.find(self.comparison.bench).sha256}

    def some(self, samples: Dataset, index: Tensor) -> Tensor:
        """Return the features of the samples that `index` (m, on the CPU) names: m×2,048.

        If those of the others are not known, they are not computed either.
        """
        bench = self.comparison.bench
        if len(index) == len(samples) or self.are_known(samples):
            rows = self.of(samples)
            return rows[index.to(rows.device)]
        parts = self._parts(samples)
        for known_index, rows in parts:
            if torch.equal(known_index, index):
                return rows
        title = f"features of some of {bench.names.get(samples, 'generated')}"
        rows = self._through_the_network(bench.images(samples)[index], title, len(index))
        parts.append((index, rows))
        return rows

    def compute(self, samples: Dataset) -> Tensor:
        """Return the features of a set, n×2,048, of which those of some parts may be known already."""
        bench = self.comparison.bench
        images = bench.images(samples)
        title = f"features of {bench.names.get(samples, 'generated')}"
        parts = self._parts(samples)
        left = self._missing(samples)
        if not parts:
            return self._through_the_network(images, title, left)
        first = parts[0][1]
        features = first.new_empty(len(samples), first.shape[1])
        missing = torch.ones(len(samples), dtype=torch.bool)
        for index, rows in parts:
            features[index.to(features.device)] = rows
            missing[index] = False
        parts.clear()
        if bool(missing.any()):
            features[missing.to(features.device)] = self._through_the_network(images[missing], title, left)
        return features

    def are_published(self, samples: Dataset) -> bool:
        """Say whether published mean and covariance of a set's features are used in this evaluation."""
        key = ("published moments", samples, self.mode)
        return self.comparison.bench.has(key) and self.comparison.bench.keep(key, lambda: None) is not None

    def _moments(self, samples: Dataset) -> Moments:
        """Return likewise those that clean-fid publishes, which are not put into the cache, if it has none."""
        published = None
        if not self.are_known(samples) and not self.has_file(samples, MOMENTS):
            published = self._published(samples)
        return super()._moments(samples) if published is None else published

    def _parts(self, samples: Dataset) -> list[tuple[Tensor, Tensor]]:
        """Return the features of parts of a set that are known: (indices, m; features, m×2,048) for each."""
        return self.comparison.bench.keep(("some features", samples, self.mode), list)

    def _missing(self, samples: Dataset) -> int:
        """Return how many images the network is yet to see: of a set, and of the evaluation's other sets.

        0 if a call for another set has counted this one.
        """
        bench = self.comparison.bench
        counted: set[Dataset] = bench.keep(("counted", self.mode), set)
        if samples in counted:
            return 0
        missing = {samples}
        sets = {self.comparison.generated, *bench.references}
        if samples in sets:
            missing |= {each for each in sets - counted if not self._is_there(each)}
        counted |= missing
        return sum(map(len, missing))

    def _is_there(self, samples: Dataset) -> bool:
        """Say whether what is needed of a set's features is known or published, without the network."""
        if self.are_known(samples):
            return True
        if self.comparison.bench.real_features:
            return False
        return self.has_file(samples, MOMENTS) or self._published(samples) is not None

    def _through_the_network(self, images: Tensor, title: str, left: int) -> Tensor:
        """Return the features of images (n×C×H×W bytes) by the network, on all devices there are: n×2,048.

        On a CPU, an estimate of the time that `left` images take is printed; none if these are 0.
        """
        bench = self.comparison.bench
        device = self.comparison.draw.device
        file = self._note_weights()
        left = left if device.type == "cpu" else 0
        if bench.share_out is not None and len(images) > BATCH[device.type]:
            work = partial(part_features, file, self.mode, title)
            tell = _with_estimate(bench, len(images), left)
            return bench.share_out(work, images, BATCH[device.type], tell).to(device)
        network = bench.keep(("inception", file.path), lambda: Network(file, device))
        return network.features(images, self.mode, title, _with_estimate(bench, len(images), left))

    def _note_weights(self) -> weights.Weights:
        """Return the network's file, and write down that scores depend on it."""
        file = weights.find(self.comparison.bench)
        self.comparison.bench.used["weights"] = {"file": file.name, "sha256": file.sha256}
        return file

    def _published(self, samples: Dataset) -> Moments | None:
        """Return what clean-fid publishes for exactly these images, on the CPU.

        None on a GPU, where computing is quick, where a metric needs the features themselves, for other
        images, and where a download is not allowed or fails; after a failure an evaluation tries no more.
        """
        bench = self.comparison.bench
        on_cpu = self.comparison.draw.device.type == "cpu"
        if samples not in bench.names or bench.real_features or not on_cpu or not bench.download:
            return None
        split = SPLITS.get(bench.sha256(samples))
        failed = ("published moments", "failed")
        if split is None or bench.has(failed):
            return None
        key = ("published moments", samples, self.mode)
        published = bench.keep(key, lambda: _fetched(split, len(samples), self.mode))
        if published is None:
            bench.keep(failed, lambda: True)
        return published


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
    """Print how long `left` images will take at a pace (seconds for one), and if that is long, what helps."""
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
