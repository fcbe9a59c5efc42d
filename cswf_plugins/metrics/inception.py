"""Base of the metrics that compare Inception features; and results, choices and standard errors for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import (
    Comparison,
    Dataset,
    Meaning,
    Metric,
    NeededFiles,
    Result,
    Spread,
    Workbench,
    parameter,
)
from cswf_core.kernels.frechet import Frechet
from cswf_plugins.inception import weights
from cswf_plugins.inception.features import InceptionFeatures
from cswf_plugins.inception.network import Mode
from cswf_plugins.references import bibtex


@attrs.frozen
class Numbers:
    """The scores and details of a result in the making, each with all that is told of it."""

    scores: dict[str, float] = attrs.field(factory=dict)
    details: dict[str, float] = attrs.field(factory=dict)
    counts: dict[str, int] = attrs.field(factory=dict)
    spreads: dict[str, Spread] = attrs.field(factory=dict)
    meanings: dict[str, Meaning] = attrs.field(factory=dict)

    def add(
        self,
        name: str,
        value: float,
        meaning: Meaning,
        spread: Spread | None = None,
        *,
        count: int | None = None,
        detail: bool = False,
    ) -> None:
        """Add a score, or a detail: what it says, how sure it is, and of how many samples, if not of all."""
        group = self.details if detail else self.scores
        group[name] = value
        if count is not None:
            self.counts[name] = count
        if spread is not None:
            self.spreads[name] = spread
        self.meanings[name] = meaning

    def result(self, protocol: str, notes: Sequence[str] = (), **more: Any) -> Result:
        """Return the result of a metric; `more` are its other fields."""
        return Result(
            self.scores,
            protocol,
            notes,
            details=self.details,
            counts=self.counts,
            spreads=self.spreads,
            meanings=self.meanings,
            **more,
        )


@attrs.frozen(kw_only=True)
class InceptionMetric(Metric):
    """A metric of features, with the mode in which images are resized for the network."""

    NAME: ClassVar[str]
    """The plugin's name in recipes."""
    references: ClassVar[tuple[str, ...]] = bibtex("parmar2022aliased")

    mode: Mode = parameter(
        "how images are brought to the network's size: 'legacy_tensorflow' as in the classic FID of most "
        "papers, 'clean' by Pillow's bicubic filter",
        default="legacy_tensorflow",
    )

    @property
    def network(self) -> str:
        """The Inception network."""
        return "weights"

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Raise where features cannot be had: for points, or without the network's file."""
        if not data.space.is_image:
            raise DataError(
                f"metric '{self.NAME}' compares images; these are samples in {data.space} dimensions"
            )
        weights.find(bench)

    def needed_files(self) -> NeededFiles | None:
        """Return the network's file, with its checksum compared."""
        return weights.needed_files()

    @property
    def resized(self) -> str:
        """The mode in words, for a protocol."""
        return f"resized to 299 by clean-fid's mode {self.mode}"

    def stated(self, protocol: str, comparison: Comparison) -> str:
        """Return a protocol that also says if the real images' mean and covariance are published ones."""
        if self.features(comparison).are_published(comparison.real):
            protocol += "; mean and covariance of the real images' features as clean-fid publishes them"
        return protocol

    def named(self, score: str) -> str:
        """Return a score's name: plain for the classic mode, with the mode behind for the other."""
        return score if self.mode == "legacy_tensorflow" else f"{score}_{self.mode}"

    def features(self, comparison: Comparison) -> InceptionFeatures:
        """Return the features of an evaluation's images in this mode."""
        return InceptionFeatures(comparison, self.mode)

    def features_of_both(self, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """Return the features of the generated and of the real images: n×2,048 and m×2,048."""
        features = self.features(comparison)
        return features.of(comparison.generated), features.of(comparison.real)

    def check_count(self, samples: Dataset, kind: str) -> None:
        """Raise where there are too few samples for a covariance."""
        if len(samples) < 2:
            raise DataError(
                f"metric '{self.NAME}' needs at least two {kind} images, and there is {len(samples)}"
            )


def labels_of(samples: Dataset, metric: str, name: str) -> Tensor:
    """Return the labels of samples, n on the CPU; raise where they have none."""
    if samples.conditions.labels is None:
        raise DataError(f"metric '{metric}' needs labels, and {name} have none")
    return samples.conditions.labels.cpu()


def choices(comparison: Comparison, kind: str) -> np.random.Generator:
    """Return a stream for choices among images of a kind that no other choices change.

    So two evaluations with one seed choose the same real images, however many were generated.
    """
    key = comparison.draw.key
    return attrs.evolve(key, role=f"{key.role}/{kind}").open().host


def disjoint_parts(comparison: Comparison, n: int, m: int, parts: int) -> list[tuple[Tensor, Tensor]]:
    """Return disjoint parts of n generated and of m real samples, by their numbers.

    Those of real samples are the same for all evaluations with one seed.
    """
    orders = []
    for kind, count in (("generated", n), ("real", m)):
        order = torch.from_numpy(choices(comparison, f"{kind} parts").permutation(count))
        orders.append(order[: count // parts * parts].view(parts, -1).to(comparison.draw.device))
    return list(zip(*orders, strict=True))


def frechet_spread(frechet: Frechet, generated: Tensor, real: Tensor | None) -> Spread | None:
    """Return how sure a Fréchet distance is, from the features of both sets (n×D, m×D).

    Without the real ones' features, the error is the generated images' part alone, and its method says so. None
    where it is infinite or not a number, as the features are.
    """
    own = standard_error(frechet.influences_of_p(generated))
    if real is None:
        method = "infinitesimal jackknife over generated images only, as the real ones' features are not kept"
        return finite(Spread(method, own))
    method = "infinitesimal jackknife over generated and real images"
    replicates = frechet.influences_of_q(real).cpu()
    return finite(Spread(method, own, replicates, 1 / math.sqrt(len(real))))


def mean_of_spreads(parts: list[Spread]) -> Spread:
    """Return how sure the mean of independent Fréchet distances is, such as those of classes.

    Its replicates are those of all parts, each with the weight that it has in the mean.
    """
    own = math.hypot(*(part.own for part in parts)) / len(parts)
    influences = [part.replicates for part in parts if part.replicates is not None]
    if len(influences) < len(parts):
        return Spread(parts[0].method, own)
    total = sum(map(len, influences))
    weighted = [each * total / (len(each) * len(parts)) for each in influences]
    return Spread(parts[0].method, own, torch.cat(weighted), 1 / math.sqrt(total))


def image_spread(
    values: Tensor, method: str = "standard deviation over images, over the root of their number"
) -> Spread | None:
    """Return how sure a mean over real images is, of a value for each (k): None for one image alone.

    The values are replicates, so that two scores of the same images are compared image by image.
    """
    count = len(values)
    if count < 2:
        return None
    return finite(Spread(method, replicates=values.double().cpu(), scale=1 / math.sqrt(count)))


def share_spread(share: float, count: int, more: float = 0.0) -> Spread:
    """Return how sure a share of `count` independent images is.

    One image more of either kind is counted, so that a share of 0 or 1 is not taken for certain. `more` is the
    standard error that comes from elsewhere, such as that of `limit_error`.
    """
    smoothed = (share * count + 1) / (count + 2)
    binomial = math.sqrt(smoothed * (1 - smoothed) / count)
    method = "binomial standard error"
    if more:
        method += ", and bootstrap of the control images"
    return Spread(method, math.hypot(binomial, more))


def limit_error(samples: Tensor, control: Tensor, rank: int = 1) -> float:
    """Return the standard error of a share of samples (n), those below a limit, from the limit alone.

    The limit is the `rank`-th smallest of the control (m), but for zeros. A bootstrap sample of the control has
    it at its j-th smallest with binomial chances.
    """
    from scipy.special import bdtrc  # only now: it takes a while to import

    ordered = control[control > 0].double().sort().values.cpu()
    m = len(ordered)
    if not m:
        return 0.0
    within = torch.from_numpy(bdtrc(min(rank, m) - 1, m, torch.arange(m + 1).double().numpy() / m))
    chances = within.diff()
    shares = torch.searchsorted(samples.double().sort().values.cpu(), ordered) / len(samples)
    mean = (chances * shares).sum()
    return math.sqrt(float((chances * (shares - mean).square()).sum()))


def standard_error(values: Tensor) -> float:
    """Return the standard error of the mean of n values."""
    return float(values.double().std()) / math.sqrt(len(values))


def finite(spread: Spread) -> Spread | None:
    """Return a spread, or None where it is infinite or not a number, as the features are."""
    return spread if math.isfinite(spread.error) else None
