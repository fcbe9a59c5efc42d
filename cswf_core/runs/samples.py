"""`samples.npz`: what a run or a saved model has generated, as arrays."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from cswf_core.interfaces import Masked
from cswf_core.pictures.samples import seen_images

if TYPE_CHECKING:
    from cswf_core.interfaces import Dataset, Observation

log = logging.getLogger("cswf")

ENOUGH = 200
"""Samples from which on their spread is compared: that of fewer is uncertain by more than a few hundredths."""

UNLIKE = 1.1
"""Offline samples that spread more than so many times as wide as the particles, or as narrow, have drifted."""


def archive(samples: Dataset, observation: Observation | None) -> bytes:
    """Return samples as .npz: `images` (n×C×H×W bytes) or `points` (n×d), and `labels` if there are any.

    Condition vectors are behind a point's own coordinates; images have them as `vectors` (n×l).

    Where part of an image was given, also `observed`, the images with everything else black, `origin` (n
    whole numbers, the sample seen: i ≥ 0 of the data, −1−i of the held-out ones), and if whole pixels were
    given `mask` (n×C×H×W, or 1×C×H×W if all have one; true where observed).
    """
    arrays: dict[str, Any] = {}
    if samples.space.is_image:
        arrays["images"] = samples.images().numpy()
        if observation is not None:
            arrays["observed"] = seen_images(samples, observation).numpy()
        if isinstance(observation, Masked):
            arrays["mask"] = observation.mask.T.reshape(-1, *samples.space.shape).cpu().numpy()
    else:
        arrays["points"] = samples.points().numpy()
    if samples.space.is_image and samples.conditions.vectors is not None:
        arrays["vectors"] = samples.conditions.vectors.T.numpy()
    if samples.conditions.origin is not None:
        arrays["origin"] = samples.conditions.origin.numpy()
    if samples.conditions.labels is not None:
        arrays["labels"] = samples.conditions.labels.numpy()
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # photographs hardly compress, and trying takes seconds
    return buffer.getvalue()


def spread(samples: Dataset) -> float:
    """Return how wide samples lie around their mean: the root mean square deviation of a coordinate."""
    return float(samples.x.var(dim=1, correction=0).mean().sqrt())


def tell_drift(offline: Dataset, usual: float) -> float:
    """Return the spread of offline samples; warn if it is not that of the run's particles, which is `usual`.

    Maps fit the particles of which they were made better than others: where steps are many and particles few,
    offline samples go on outwards (docs/paper.md, *Offline samples drift*).
    """
    width = spread(offline)
    if len(offline) >= ENOUGH and not usual / UNLIKE <= width <= usual * UNLIKE:
        log.warning(
            "offline samples spread %.2f times as wide as the run's particles, so they have drifted away from "
            "the data; more particles or fewer steps help, see docs/paper.md",
            width / usual,
        )
    return width
