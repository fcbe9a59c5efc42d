"""Base of the metrics that compare Inception features, and checks of samples that metrics share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Metric, NeededFiles, Spread, Workbench, parameter
from cswf_plugins.inception import weights
from cswf_plugins.inception.features import are_published, features
from cswf_plugins.inception.network import Mode
from cswf_plugins.references import bibtex


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
        if are_published(comparison, comparison.real, self.mode):
            protocol += "; mean and covariance of the real images' features as clean-fid publishes them"
        return protocol

    def named(self, score: str) -> str:
        """Return a score's name: plain for the classic mode, with the mode behind for the other."""
        return score if self.mode == "legacy_tensorflow" else f"{score}_{self.mode}"

    def features(self, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """Return the features of the generated and of the real images: n×2,048 and m×2,048."""
        p, q = (features(comparison, samples, self.mode) for samples in (comparison.generated, comparison.real))
        return p, q

    def spreads(self, spreads: Mapping[str, Spread | None]) -> dict[str, Spread]:
        """Return how sure scores are by the names that they have in this mode, without those that have none."""
        return {self.named(score): spread for score, spread in spreads.items() if spread is not None}

    def meanings(self, meanings: Mapping[str, Meaning]) -> dict[str, Meaning]:
        """Return what scores say by the names that they have in this mode."""
        return {self.named(score): meaning for score, meaning in meanings.items()}

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
