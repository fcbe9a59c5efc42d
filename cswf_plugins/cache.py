"""The cache below the data's root: decoded pictures, and features of named real images with their moments."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from cswf_core.arrays import read_archive, read_array
from cswf_core.errors import CswfError, RunError
from cswf_core.kernels.frechet import Moments
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


def statistics_file(key: Mapping[str, Any], network: str, ending: str) -> Path:
    """Return the file of a set of images.

    `key` is all that decides its features: `data`, `count`, `shape`, `version`, and the SHA-256 of `weights`
    and of `images`; `network` says in a word how they were computed.
    """
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in key["data"])
    shape = "x".join(map(str, key["shape"]))
    sums = f"{key['weights'][:8]}-{key['images'][:12]}-v{key['version']}"
    return data_root() / "statistics" / f"{name}-{key['count']}-{shape}-{network}-{sums}{ending}"


def kept_features(
    path: Path | None, compute: Callable[[], Tensor], count: int, width: int | None, device: torch.device
) -> Tensor:
    """Return the features of `count` images on a device, count×width: from a file, else what `compute` returns.

    What is computed is left in the file. Without a path nothing is kept; without a width any is right.
    """
    stored = None if path is None else _stored_features(path, count, width)
    if stored is not None:
        return stored.to(device)
    computed = compute()
    if path is not None:
        rows = computed.cpu().numpy()
        write_cached(path, lambda file: np.save(file, rows, allow_pickle=False))
    return computed


def kept_moments(
    path: Path | None,
    compute: Callable[[], Moments],
    key: Callable[[], Mapping[str, Any]],
    width: int | None,
    device: torch.device,
) -> Moments:
    """Return mean and covariance of features on a device, likewise; `key` is written beside them."""
    stored = None if path is None else _stored_moments(path, width)
    if stored is not None:
        return stored.to(device)
    computed = compute()
    if path is not None:
        mu = computed.mean.cpu().numpy()
        sigma = computed.covariance.cpu().numpy()
        text = json.dumps(key())
        write_cached(path, lambda file: np.savez(file, mu=mu, sigma=sigma, count=computed.count, key=text))
    return computed


def _stored_features(path: Path, count: int, width: int | None) -> Tensor | None:
    with contextlib.suppress(CswfError):  # what cannot be read is made again
        rows = read_array(path)
        right = rows.ndim == 2 and rows.shape == (count, rows.shape[1] if width is None else width)
        if right and rows.dtype == np.float32:
            return torch.from_numpy(rows)
    return None


def _stored_moments(path: Path, width: int | None) -> Moments | None:
    with contextlib.suppress(CswfError, KeyError):  # what cannot be read is made again
        arrays = read_archive(path, ("mu", "sigma", "count"))
        mean = arrays["mu"]
        covariance = arrays["sigma"]
        count = arrays["count"]
        shapes = (mean.shape, covariance.shape, count.shape)
        numbers = mean.dtype.kind == covariance.dtype.kind == "f" and count.dtype.kind in "iu"
        size = mean.size if width is None else width
        if shapes == ((size,), (size, size), ()) and numbers:
            mu, sigma = (torch.from_numpy(array.astype(np.float64)) for array in (mean, covariance))
            return Moments(mu, sigma, int(count))
    return None
