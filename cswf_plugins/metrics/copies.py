"""Copies by relative distances: which samples stand out as copies of an image, and whether by chance.

A *relative distance* is the distance to the nearest image over the mean distance to the nearest k. A copy lies
much nearer to one image, or to the few duplicates of it, than to others; a blurred image is near to many, and
its relative distance near 1. Samples are compared with a *control*, real images that cannot be copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""How rarely an evaluation of samples that are drawn as the control is may warn of copying."""
ADVICE = (
    "copying: the figure nearest-of-all shows the closest samples; a flow copies less with fewer steps, more "
    "data or local directions (conv-stack, locally-connected), see docs/evaluation.md"
)
"""Where to look and what to change, after all warnings of copying."""


def relative_distances(distances: Tensor) -> Tensor:
    """Return relative distances, of distances to the k nearest images (n×k, rising): n, within 0 and 1.

    0 where the nearest image is the same; 1 where there is nothing to compare with.
    """
    first, mean = distances[:, 0], distances.mean(dim=1)
    return torch.where(first == 0, 0.0, (first / mean).nan_to_num(nan=1.0).clamp(max=1.0))


@attrs.frozen(eq=False)
class Copies:
    """Relative distances of samples (n) and of control images (m) to the same images.

    Given these images, samples that are drawn as the control is have the same distribution as the control, so
    that the chances here are exact. Ties count against an accusation.
    """

    samples: Tensor
    control: Tensor
    mirrored: tuple[Tensor, Tensor] | None = None
    """The same of samples (n) and control (m) to the mirror images of the images; None: there are none."""
    left_out: bool = False
    """Whether control images are images too, each left out of its own search. Two that are alike then are near
    to each other, so that small distances come in pairs: the chances count half as many control images."""

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
        return max(1, int(NEAR * len(self.control)))

    @property
    def ratios(self) -> Tensor:
        """The smallest relative distance of each sample, to mirror images or not: n."""
        return self.samples if self.mirrored is None else torch.minimum(self.samples, self.mirrored[0])

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
        n = len(self.samples)
        m = self._independent(len(self.control))
        same = int(self.identical.sum())
        same_real = self._independent(int((self.control == 0).sum()))
        copies = int(self.copies.sum()) - same
        chances: dict[Rule, float] = {
            "identical": chance_of_at_least(same, same + same_real, n, m),
            # Given how many of either are in the data themselves, the others are drawn alike.
            "copies": chance_before(copies, 1, n - same, m - same_real),
            "near": chance_before(int(self.near.sum()), self._independent(self.near_rank), n, m),
        }
        if self.mirrored is not None:
            chances["mirrored"] = self._chance_of_mirrored()
        return chances

    def _chance_of_mirrored(self) -> float:
        """Return the chance of so many mirrored copies: of images beyond the limit, which are drawn alike."""
        ours, theirs = self.mirrored_copies
        rest, rest_real = self.samples > self.limit, self.control > self.limit
        mirrored = int((ours & rest).sum())
        mirrored_real = self._independent(int((theirs & rest_real).sum()))
        m = self._independent(int(rest_real.sum()))
        return chance_of_at_least(mirrored, mirrored + mirrored_real, int(rest.sum()), m)

    def _independent(self, count: int) -> int:
        """Return the number of independent control images that `count` of them amount to."""
        return math.ceil(count / 2) if self.left_out else count

    def expected(self, control: Tensor) -> float:
        """Return the share of samples, drawn as the control is, below the smallest of its numbers but for 0."""
        return (self._independent(int((control == 0).sum())) + 1) / (self._independent(len(control)) + 1)

    def broken(self, allowed: float) -> set[Rule]:
        """Return the rules that samples break: `allowed` is more than the chance of so many."""
        rules = {rule for rule, chance in self.chances().items() if chance < allowed}
        return rules if int(self.near.sum()) > FLAGGED * len(self.samples) else rules - {"near"}


def allowed_chance(spaces: Sequence[Copies]) -> float:
    """Return the chance that a rule may have, so that all together have CHANCE.

    Whether samples are in the data themselves is asked in the first space only: it is no other in the next.
    """
    tests = sum(len(copies.chances()) for copies in spaces)
    return CHANCE / (tests - len(spaces[1:]))


def warnings(
    copies: Copies, allowed: float, where: str, nearest: int, called: str, control: str, first: bool = True
) -> list[str]:
    """Return a warning for each sign of copying that chance cannot explain, and one for identical images.

    `nearest` is k; the images are `called` so, and the others `control`. `first`: identical ones are reported
    in this space.
    """
    n, m, broken = len(copies.samples), len(copies.control), copies.broken(allowed)
    same, same_real = int(copies.identical.sum()), int((copies.control == 0).sum())
    each = []
    if first and same:
        likewise = {"pixels": "byte for byte", "features": "by their features"}.get(where, f"in all {where}")
        kind = "copying" if "identical" in broken else "identical"
        each.append(
            f"{kind}: {same:,} of {n:,} samples {_are(same)} among the {called}, {likewise}; of {m:,} "
            f"{control}, {f'{same_real:,} {_are(same_real)}' if same_real else 'none is'}"
        )
    measure = f"by their distance in {where} relative to the nearest {nearest}"
    if "copies" in broken:
        others = int(copies.copies.sum()) - same
        by_chance = n * copies.expected(copies.control[copies.control > 0])
        each.append(
            f"copying: {others:,} of {n:,} samples are nearer to one of the {called} than any of {m:,} "
            f"{control} is, {measure}; of as many real images, {by_chance:.2g} would be"
        )
    if "mirrored" in broken:
        ours, theirs = (int(each.sum()) for each in copies.mirrored_copies)
        each.append(
            f"copying: {ours:,} of {n:,} samples, and {theirs:,} of {m:,} {control}, are nearer to a mirror "
            f"image of the {called} than any of the latter is to one of the {called}, {measure}"
        )
    if "near" in broken:
        share = copies.near_rank / m
        each.append(
            f"copying: {int(copies.near.sum()) / n:.1%} of {n:,} samples are as near to one of the {called} as "
            f"the nearest {share:.0%} of {m:,} {control} are, {measure}; of real images, {share:.0%} would be"
        )
    return each


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
