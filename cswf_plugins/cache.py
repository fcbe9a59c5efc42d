"""The cache below the data's root: decoded pictures, and features of named real images with their moments."""

from __future__ import annotations

import abc
import contextlib
import json
import logging
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from cswf_core.arrays import read_archive, read_array
from cswf_core.errors import CswfError, RunError
from cswf_core.interfaces import Comparison, Dataset
from cswf_core.kernels.frechet import Moments, moments
from cswf_core.runs.durable import make_folder, replacing
from cswf_plugins.datasets.images import data_root

MOMENTS = ".npz"
"""How the files of mean and covariance end."""
FEATURES = ".features.npy"
"""How the files of features end."""

log = logging.getLogger("cswf")


def write_cached(path: Path, save: Callable[[IO[bytes]], object]) -> None:
    """Let `save` write a file of the cache; one that cannot be written is a warning."""
    try:
        make_folder(path.parent)
        with replacing(path) as temporary, temporary.open("wb") as file:
            save(file)
    except RunError as error:
        log.warning("the cache stays as it is: %s", error)


class NetworkFeatures(abc.ABC):
    """A network's features of sets of images: computed once in an evaluation, on disk for named real images.

    A subclass says what the network gives (`compute`), and what decides it (`facts`).
    """

    def __init__(
        self, comparison: Comparison, which: Hashable, in_files: str, called: str, width: int | None = None
    ) -> None:
        """`which` tells the network and its options from others of the evaluation.

        It is `in_files` in the names of the cache's files, and `called` so in those of `Workbench.features`.
        Files with features of another `width` are computed anew; without one, any is right.
        """
        self.comparison = comparison
        self.which = which
        self.in_files = in_files
        self.called = called
        self.width = width

    @abc.abstractmethod
    def begin(self, samples: Dataset) -> None:
        """Raise `DataError` where a set has no features, and write down what scores depend on."""

    @abc.abstractmethod
    def compute(self, samples: Dataset) -> Tensor:
        """Return the features of a set by the network, on the evaluation's device: n×D."""

    @abc.abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what decides features besides the images, for the files' keys: the SHA-256 of `weights`, …"""

    def of(self, samples: Dataset) -> Tensor:
        """Return the features of a set on the evaluation's device: n×D.

        Those of a named set of real images are read from the cache if they are there, and left there if not.
        """
        bench = self.comparison.bench
        rows = bench.keep(("features", samples, self.which), lambda: self._features(samples))
        if samples is self.comparison.generated or samples is self.comparison.real:  # not some of them
            name = "generated" if samples is self.comparison.generated else bench.names.get(samples, "real")
            bench.features[f"{name}-{self.called}"] = rows
        return rows

    def known(self, samples: Dataset) -> Tensor | None:
        """Return the features of a set, n×D, if they were computed before, and None if not."""
        return self.of(samples) if self.are_known(samples) else None

    def moments(self, samples: Dataset) -> Moments:
        """Return mean and covariance of a set's features; those of named real images are in the cache, too."""
        return self.comparison.bench.keep(("moments", samples, self.which), lambda: self._moments(samples))

    def are_known(self, samples: Dataset) -> bool:
        """Say whether the features of a set were computed before."""
        computed = self.comparison.bench.has(("features", samples, self.which))
        return computed or self.has_file(samples, FEATURES)

    def has_file(self, samples: Dataset, ending: str) -> bool:
        """Say whether the cache has a set's file with this ending."""
        path = self.file(samples, ending)
        return path is not None and path.is_file()

    def file(self, samples: Dataset, ending: str) -> Path | None:
        """Return the cache file of a named set; None for others."""
        if samples not in self.comparison.bench.names:
            return None
        key = self._key(samples)
        name = "".join(c if c.isalnum() or c in "-_." else "-" for c in key["data"])
        shape = "x".join(map(str, key["shape"]))
        sums = f"{key['weights'][:8]}-{key['images'][:12]}-v{key['version']}"
        return data_root() / "statistics" / f"{name}-{key['count']}-{shape}-{self.in_files}-{sums}{ending}"

    def _key(self, samples: Dataset) -> dict[str, Any]:
        """Return all that decides a named set's features."""
        return {
            "version": 1,  # to be raised when the same images and weights give other features
            "data": self.comparison.bench.names[samples],
            "count": len(samples),
            "shape": list(samples.space.shape),
            **self.facts(),
            "images": self.comparison.bench.sha256(samples),
        }

    def _features(self, samples: Dataset) -> Tensor:
        self.begin(samples)
        path = self.file(samples, FEATURES)
        if path is None:
            return self.compute(samples)
        stored = self._stored_features(path, len(samples))
        if stored is not None:
            return stored.to(self.comparison.draw.device)
        computed = self.compute(samples)
        rows = computed.cpu().numpy()
        write_cached(path, lambda file: np.save(file, rows, allow_pickle=False))
        return computed

    def _moments(self, samples: Dataset) -> Moments:
        path = self.file(samples, MOMENTS)
        if path is None:
            return moments(self.of(samples))
        stored = self._stored_moments(path)
        if stored is not None:
            return stored.to(self.comparison.draw.device)
        computed = moments(self.of(samples))
        mu = computed.mean.cpu().numpy()
        sigma = computed.covariance.cpu().numpy()
        text = json.dumps(self._key(samples))
        write_cached(path, lambda file: np.savez(file, mu=mu, sigma=sigma, count=computed.count, key=text))
        return computed

    def _stored_features(self, path: Path, count: int) -> Tensor | None:
        with contextlib.suppress(CswfError):  # what cannot be read is made again
            rows = read_array(path)
            right = rows.ndim == 2 and rows.shape == (count, self.width or rows.shape[1])
            if right and rows.dtype == np.float32:
                return torch.from_numpy(rows)
        return None

    def _stored_moments(self, path: Path) -> Moments | None:
        with contextlib.suppress(CswfError, KeyError):  # what cannot be read is made again
            arrays = read_archive(path, ("mu", "sigma", "count"))
            mean = arrays["mu"]
            covariance = arrays["sigma"]
            count = arrays["count"]
            shapes = (mean.shape, covariance.shape, count.shape)
            numbers = mean.dtype.kind == covariance.dtype.kind == "f" and count.dtype.kind in "iu"
            size = self.width or mean.size
            if shapes == ((size,), (size, size), ()) and numbers:
                mu, sigma = (torch.from_numpy(array.astype(np.float64)) for array in (mean, covariance))
                return Moments(mu, sigma, int(count))
        return None
