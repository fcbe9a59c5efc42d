"""Checks of samples that metrics make before they compute anything."""

from __future__ import annotations

from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Workbench
from cswf_plugins.inception import weights


def check_images(data: Dataset, bench: Workbench, metric: str) -> None:
    """Raise where features cannot be had: for points, or without the network's file."""
    if not data.space.is_image:
        raise DataError(f"metric '{metric}' compares images; these are samples in {data.space} dimensions")
    weights.find(bench)


def check_count(samples: Dataset, metric: str, kind: str) -> None:
    """Raise where there are too few samples for a covariance."""
    if len(samples) < 2:
        raise DataError(f"metric '{metric}' needs at least two {kind} images, and there is {len(samples)}")


def labels_of(samples: Dataset, metric: str, name: str) -> Tensor:
    """Return the labels of samples, n on the CPU; raise where they have none."""
    if samples.conditions.labels is None:
        raise DataError(f"metric '{metric}' needs labels, and {name} have none")
    return samples.conditions.labels.cpu()
