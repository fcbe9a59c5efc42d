"""Copies by relative distances: which samples stand out as copies of an image, and whether by chance.

A *relative distance* is the distance to the nearest image over the mean distance to the nearest k. A copy lies
much nearer to one image, or to the few duplicates of it, than to others; a blurred image is near to many, and
its relative distance near 1. Samples are held against a *control*, real images that cannot be copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_plugins.metrics.chances import chance_before, chance_of_at_least

Rule = Literal["identical", "copies", "near", "mirrored"]

NEAR = 0.01
"""Share of control images, those with the smallest relative distances; a sample below these may be a copy."""
FLAGGED = 0.05
"""Share of such samples that is too many, if chance cannot explain it."""
CHANCE = 1e-3
"""How rarely an evaluation of samples that are drawn as the control is may speak of copying."""


def relative_distances(distances: Tensor) -> Tensor:
    """Return relative distances, of distances to the k nearest images (n×k, rising): n, within 0 and 1.

    0 where the nearest image is the same; 1 where there is nothing to compare with.
    """
    first, mean = distances[:, 0], distances.mean(dim=1)
    return torch.where(first == 0, 0.0, (first / mean).nan_to_num(nan=1.0).clamp(max=1.0))


@attrs.frozen(eq=False)
class Fold:
    """Relative distances of samples (n) and of control images (m) to the same images.

    Given these images, samples that are drawn as the control is have the same distribution as the control, so
    that the chances here are exact. Ties count against an accusation.
    """

    samples: Tensor
    control: Tensor
    mirrored: tuple[Tensor, Tensor] | None = None
    """The same of samples (n) and control (m) to the mirror images of the images; None: there are none."""
    near_share: float = NEAR
    """Share of the control that `near` goes by."""

    @property
    def limit(self) -> float:
        """The smallest relative distance of the control but for images that are in the data themselves."""
        apart = self.control[self.control > 0]
        return float(apart.min()) if len(apart) else 0.0

    @property
    def identical(self) -> Tensor:
        """Which samples are one of the images: n."""
        return self.samples == 0

    @property
    def copies(self) -> Tensor:
        """Which samples are one of the images, or nearer to one, relatively, than any control image is: n."""
        return (self.samples < self.limit) | self.identical

    @property
    def near(self) -> Tensor:
        """Which samples have a relative distance below those of the control but its smallest few: n."""
        return self.samples < self.control.sort().values[self.near_rank - 1]

    @property
    def near_rank(self) -> int:
        """The rank of the control image that `near` goes by, from 1."""
        return max(1, int(self.near_share * len(self.control)))

    @property
    def mirrored_copies(self) -> tuple[Tensor, Tensor]:
        """Which samples (n), and which control images (m), are as near as copies to a mirror image only."""
        assert self.mirrored is not None
        limit = self.limit
        ours, theirs = (
            ((turned < limit) | (turned == 0)) & (plain >= limit) & (plain > 0)
            for plain, turned in zip((self.samples, self.control), self.mirrored, strict=True)
        )
        return ours, theirs

    def chances(self) -> dict[Rule, float]:
        """Return for each rule how likely so many are, or more, of samples drawn as the control is."""
        n, m = len(self.samples), len(self.control)
        same, same_real = int(self.identical.sum()), int((self.control == 0).sum())
        copies = int(self.copies.sum()) - same
        chances: dict[Rule, float] = {
            "identical": chance_of_at_least(same, same + same_real, n, m),
            # Given how many of either are in the data themselves, the others are drawn alike.
            "copies": chance_before(copies, 1, n - same, m - same_real),
            "near": chance_before(int(self.near.sum()), self.near_rank, n, m),
        }
        if self.mirrored is not None:
            chances["mirrored"] = self._chance_of_mirrored()
        return chances

    def _chance_of_mirrored(self) -> float:
        """Return the chance of so many mirrored copies: of images beyond the limit, which are drawn alike."""
        rest = self.samples > self.limit, self.control > self.limit
        masks = zip(self.mirrored_copies, rest, strict=True)
        ours, theirs = (int((mirrored & beyond).sum()) for mirrored, beyond in masks)
        n, m = (int(beyond.sum()) for beyond in rest)
        return chance_of_at_least(ours, ours + theirs, n, m)


@attrs.frozen(eq=False)
class Copies:
    """What one or two folds say together, in one space: a sample that either of them counts is counted."""

    folds: Sequence[Fold]

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.folds[0].samples)

    @property
    def control_count(self) -> int:
        """How many control images there are, in all folds."""
        return sum(len(fold.control) for fold in self.folds)

    @property
    def ratios(self) -> Tensor:
        """The smallest relative distance of each sample, to mirror images or not: n."""
        each = [fold.samples for fold in self.folds]
        each += [fold.mirrored[0] for fold in self.folds if fold.mirrored is not None]
        return torch.stack(each).amin(dim=0)

    @property
    def copies(self) -> int:
        """How many samples are copies, identical ones among them."""
        return _either(fold.copies for fold in self.folds)

    @property
    def near(self) -> int:
        """How many samples are below the smallest hundredth of the control."""
        return _either(fold.near for fold in self.folds)

    @property
    def identical(self) -> tuple[int, int]:
        """How many samples are in the data, and how many control images are."""
        theirs = sum(int((fold.control == 0).sum()) for fold in self.folds)
        return _either(fold.identical for fold in self.folds), theirs

    @property
    def mirrored_copies(self) -> tuple[int, int]:
        """How many samples are copies of mirror images only, and how many control images."""
        plain = torch.stack([fold.copies for fold in self.folds]).any(dim=0)
        ours = _either(fold.mirrored_copies[0] & ~plain for fold in self.folds)
        return ours, sum(int(fold.mirrored_copies[1].sum()) for fold in self.folds)

    @property
    def near_expected(self) -> float:
        """The share of samples, drawn as the control is, that `near` would count; at most, with two folds."""
        return sum(fold.near_rank / (len(fold.control) + 1) for fold in self.folds)

    @property
    def copies_expected(self) -> float:
        """The share of them that `copies` would count, where none is in the data; at most, with two folds."""
        return sum(1 / (len(fold.control) + 1) for fold in self.folds)

    def broken(self, allowed: float) -> set[Rule]:
        """Return the rules that samples break: in some fold, `allowed` is more than the chance of so many."""
        rules = {rule for fold in self.folds for rule, chance in fold.chances().items() if chance < allowed}
        return rules if self.near > FLAGGED * self.count else rules - {"near"}


def allowed_chance(spaces: Sequence[Copies]) -> float:
    """Return the chance that a rule may have in a fold, so that all together have CHANCE.

    Whether samples are in the data themselves is asked in the first space only: it is no other in the next.
    """
    tests = sum(len(fold.chances()) for copies in spaces for fold in copies.folds)
    again = sum(len(copies.folds) for copies in spaces[1:])
    return CHANCE / (tests - again)


def sentences(
    copies: Copies, allowed: float, where: str, nearest: int, called: str, control: str, first: bool = True
) -> list[str]:
    """Return a sentence for each sign of copying that chance cannot explain, and one for identical images.

    `nearest` is k; the images are `called` so, and the others `control`. `first`: identical ones are told of in
    this space.
    """
    n, m, broken = copies.count, copies.control_count, copies.broken(allowed)
    same, same_real = copies.identical
    each = []
    if first and same:
        likewise = "byte for byte" if where == "pixels" else "by their features"
        each.append(
            f"{'copying' if 'identical' in broken else 'identical'}: {same:,} of {n:,} samples "
            f"{_are(same)} among the {called}, {likewise}; of {m:,} {control}, "
            f"{f'{same_real:,} {_are(same_real)}' if same_real else 'none is'}"
        )
    if "copies" in broken:
        others = copies.copies - same
        each.append(
            f"copying: {others:,} of {n:,} samples are nearer to one of the {called}, relative to the nearest "
            f"{nearest}, in {where}, than any of {m:,} {control} is"
        )
    if "mirrored" in broken:
        ours, theirs = copies.mirrored_copies
        each.append(
            f"copying: {ours:,} of {n:,} samples, and {theirs:,} of {m:,} {control}, are nearer to a mirror "
            f"image of the {called}, relative to the nearest {nearest}, in {where}, than any of the latter is "
            f"to one of the {called}"
        )
    if "near" in broken:
        each.append(
            f"copying: {copies.near / n:.1%} of the samples are as near to one of the {called}, relative to "
            f"the nearest {nearest}, in {where}, as {copies.near_expected:.1%} of {control} are"
        )
    return each


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _either(masks: Iterable[Tensor]) -> int:
    """Return how many samples are in one mask or more."""
    return int(torch.stack(list(masks)).any(dim=0).sum())
