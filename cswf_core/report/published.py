"""Scores that others have published, to show beside ours: what the paper's tables say, and no more."""

from __future__ import annotations

from typing import Literal

import attrs

PAPER = "Table 1 of the paper on Conditional Sliced-Wasserstein Flows"

Bound = Literal["", ">"]


@attrs.frozen
class Published:
    """A number that somebody has published for a data set."""

    method: str
    group: str
    value: float
    bound: Bound = ""
    """`>` where only a bound was given."""
    remark: str = ""

    @property
    def text(self) -> str:
        """The number as it was published."""
        return f"{self.bound}{self.value:g}"

    @property
    def is_peer(self) -> bool:
        """Whether the method is nonparametric, as ours is."""
        return self.group == NONPARAMETRIC


@attrs.frozen
class Collection:
    """All that is known for one score on one data set, and a sentence that says whose numbers these are."""

    entries: tuple[Published, ...]
    source: str


AUTO_ENCODER = "auto-encoder"
LIKELIHOOD = "autoregressive or energy"
ADVERSARIAL = "adversarial"
SCORE = "score"
NONPARAMETRIC = "nonparametric"

CROP_160 = "160×160 centre crop"
CROP_140 = "140×140 centre crop"
CROP_128 = "128×128 centre crop"

CIFAR10 = Collection(
    entries=(
        Published("VAE", AUTO_ENCODER, 155.7),
        Published("SWAE", AUTO_ENCODER, 107.9),
        Published("CWAE", AUTO_ENCODER, 120.0),
        Published("PixelCNN", LIKELIHOOD, 65.9),
        Published("EBM", LIKELIHOOD, 37.9),
        Published("WGAN", ADVERSARIAL, 55.2),
        Published("WGAN-GP", ADVERSARIAL, 55.8),
        Published("CSW", ADVERSARIAL, 36.8),
        Published("SWGAN", ADVERSARIAL, 17.0),
        Published("NCSN", SCORE, 25.3),
        Published("SWF", NONPARAMETRIC, 200.0, ">"),
        Published("SINF", NONPARAMETRIC, 66.5),
        Published("ℓ-SWF (the paper)", NONPARAMETRIC, 59.7),
        Published("ℓ-SWF (the paper), offline samples", NONPARAMETRIC, 61.1),
    ),
    source=f"As published in {PAPER}, by the protocol of each; the offline samples are from its appendix.",
)

CELEBA = Collection(
    entries=(
        Published("VAE", AUTO_ENCODER, 85.7, remark=CROP_160),
        Published("SWAE", AUTO_ENCODER, 48.9, remark=CROP_128),
        Published("WAE", AUTO_ENCODER, 42.0, remark=CROP_140),
        Published("CWAE", AUTO_ENCODER, 49.7, remark=CROP_140),
        Published("WGAN", ADVERSARIAL, 41.3, remark=CROP_160),
        Published("WGAN-GP", ADVERSARIAL, 30.0, remark=CROP_160),
        Published("SWGAN", ADVERSARIAL, 13.2, remark=CROP_128),
        Published("SWF", NONPARAMETRIC, 150.0, ">", CROP_140),
        Published("SINF", NONPARAMETRIC, 37.3, remark=CROP_128),
        Published("ℓ-SWF (the paper)", NONPARAMETRIC, 38.3, remark=CROP_140),
    ),
    source=f"As published in {PAPER}; the methods crop the photographs differently, which moves the number.",
)

MNIST = Collection(
    entries=(Published("SINF", NONPARAMETRIC, 4.5),),
    source="As published: the best nonparametric value known to us, by its own protocol.",
)

PUBLISHED = {("cifar10", "fid"): CIFAR10, ("celeba", "fid"): CELEBA, ("mnist", "fid"): MNIST}
"""By the name of the data set's plugin and that of the score: FID against the training images."""


def published(data: str, score: str) -> Collection | None:
    """Return what is published for a score on a data set; None if that is nothing."""
    return PUBLISHED.get((data, score))
