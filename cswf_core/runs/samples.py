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
"""Offline samples that spread so many times as wide as the particles, or so many times less, are told."""


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
    """Return the spread of offline samples; warn if it is not `usual`, that of the run's particles.

    Maps fit the particles that they were made of better than others: with many steps and few particles, offline
    samples go outwards (docs/paper.md, *Offline samples drift*), and with very few they may stay too narrow.
    """
    width = spread(offline)
    if len(offline) >= ENOUGH and usual > 0 and not usual / UNLIKE <= width <= usual * UNLIKE:
        log.warning(
            "offline samples spread %.2f times as wide as the run's particles: its maps do not fit new "
            "particles as they fit their own. More particles help%s; see docs/paper.md, Offline samples drift",
            width / usual,
            ", or fewer steps" if width > usual else "",
        )
    return width
