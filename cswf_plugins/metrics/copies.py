"""Copies: the training images nearest to samples, which samples stand out as copies, and whether by chance.

A *relative distance* is the distance to the nearest image over the mean distance to the nearest k. A copy lies
much nearer to one image, or to the few duplicates of it, than to others; a blurred image is near to many, and
its relative distance near 1. Samples are compared with a *control*, real images that cannot be copies: held-out
images, or, where nothing is held out, the training images, each compared with all others. A sample that
completes an image is compared with all others too: it was given a part of that one.

If samples and control are drawn alike, every order of them is as likely, whatever they look like: so the
chances that samples come first by luck alone are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import BIN, Comparison, Dataset
from cswf_core.kernels.neighbours import nearest

Rule = Literal["identical", "copies", "near", "mirrored"]

NEAR = 0.01
"""Share of control images, those with the smallest relative distances; a sample below these may be a copy."""
CHANCE = 1e-3
"""How rarely an evaluation of samples that are drawn as the control is may warn of copying."""
ADVICE = (
    "copying: the figure nearest-of-all shows the closest samples; a flow copies less with fewer steps, more "
    "data or local directions (conv-stack, locally-connected), see docs/evaluation.md"
)
"""Where to look and what to change, after all warnings of copying."""
SHOWN = 5
"""Neighbours of a sample that figures show."""

ToRows = Callable[[Dataset, Tensor | None], Tensor]
"""(images, which of them or None for all) → points of a space, n×D on the evaluation's device."""


def chance_of_at_least(ours: int, drawn: int, n: int, m: int) -> float:
    """Return the chance that `ours` or more of `drawn` images are samples, of n samples and m real images.

    They are drawn without putting back (hypergeometric).
    """
    if ours <= max(0, drawn - m):
        return 1.0
    all_ways = _log_ways(drawn, n + m)
    terms = (_log_ways(k, n) + _log_ways(drawn - k, m) - all_ways for k in range(ours, min(drawn, n) + 1))
    return min(1.0, math.fsum(map(math.exp, terms)))


def chance_before(ours: int, rank: int, n: int, m: int) -> float:
    """Return the chance that `ours` or more of n samples are below the `rank`-th smallest of m real ones.

    So it is if at least `ours` of the ours + rank − 1 smallest of all are samples (negative hypergeometric).
    """
    return chance_of_at_least(ours, ours + rank - 1, n, m)


def _log_ways(chosen: int, count: int) -> float:
    """Return the logarithm of the number of ways to choose some of `count` things."""
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def relative_distances(distances: Tensor) -> Tensor:
    """Return relative distances, of distances to the k nearest images (n×k, rising): n, within 0 and 1.

    0 where the nearest image is the same; 1 where there is nothing to compare with.
    """
    first = distances[:, 0]
    mean = distances.mean(dim=1)
    return torch.where(first == 0, 0.0, (first / mean).nan_to_num(nan=1.0).clamp(max=1.0))


def smallest_apart(distances: Tensor) -> float:
    """Return the smallest of distances but for those of images that are in the data themselves, which are 0."""
    apart = distances[distances > 0]
    return float(apart.min()) if len(apart) else 0.0


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
        return smallest_apart(self.control)

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
        """Return for each rule how likely this number, or more, is of samples drawn as the control is."""
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
        """Return the chance of this number of mirrored copies: of images beyond the limit, drawn alike."""
        ours, theirs = self.mirrored_copies
        rest = self.samples > self.limit
        rest_real = self.control > self.limit
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
        """Return the rules that samples break: those whose chance is below `allowed`."""
        rules = {rule for rule, chance in self.chances().items() if chance < allowed}
        many = int(self.near.sum()) > 0.05 * len(self.samples)  # fewer are no sign, whatever their chance
        return rules if many else rules - {"near"}


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
    n = len(copies.samples)
    m = len(copies.control)
    broken = copies.broken(allowed)
    same = int(copies.identical.sum())
    same_real = int((copies.control == 0).sum())
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


@attrs.frozen(eq=False)
class ImageChoice:
    """Which images are looked at, and which training image each of them is not compared with."""

    samples: Tensor
    """n indices of generated images."""
    different: int
    """How many generated images differ, and could have been looked at."""
    control: Tensor
    """m indices: of held-out images, or of training images where nothing is held out."""
    k: int
    """How many of the nearest a relative distance is about."""
    own: tuple[Tensor, Tensor]
    """For samples (n) and control images (m) the training image left out of their search; −1: none."""
    own_mirrored: tuple[Tensor, Tensor]
    """The same among mirror images."""


@attrs.frozen(eq=False)
class Neighbours:
    """Distances of samples (n) and of control images (m) to training images, in one space."""

    where: str
    copies: Copies
    """By relative distances."""
    plain: tuple[Tensor, Tensor]
    """Distances of samples (n) and of control images (m) to the nearest other training image, as it is."""
    mirrored: tuple[Tensor, Tensor]
    """The same to mirror images that were added to the data; infinite where none were."""
    index: Tensor
    """n×SHOWN or fewer: the training images nearest to each sample, mirror images behind all others."""
    distances: Tensor
    """Their distances, of the same shape."""

    @property
    def samples(self) -> Tensor:
        """Distances of samples to training images, mirrored or not: n."""
        return torch.minimum(self.plain[0], self.mirrored[0])

    @property
    def real(self) -> Tensor:
        """The same of control images: m."""
        return torch.minimum(self.plain[1], self.mirrored[1])

    @property
    def nearer(self) -> Tensor:
        """Which samples are in the training data, or nearer to it than any control image that is not: n."""
        ours, theirs = self.plain
        return (ours < smallest_apart(theirs)) | (ours == 0)

    @property
    def closer(self) -> float:
        """Chance that a sample is nearer than a control image; one half for samples as far as those."""
        ordered = self.real.sort().values
        below, up_to = (torch.searchsorted(ordered, self.samples, right=right) for right in (False, True))
        return float((len(ordered) - (below + up_to) / 2).double().mean() / len(ordered))


def in_grey_levels(comparison: Comparison) -> Dataset:
    """Return the generated images in the grey levels of the training images, where these are fewer than 256.

    A flow fills grey levels with noise, and its samples have it; training and control images do not. A byte
    that two levels share belongs to the upper one, whose lowest byte it is.
    """
    generated = comparison.generated
    training = comparison.training
    assert training is not None
    width = training.bin_width
    if width <= BIN:
        return generated

    def rounded() -> Dataset:
        above = (comparison.bench.images(generated).flatten(1).T.double() + 1) * BIN
        levels = (above / width).floor().clamp_(max=round(2 / width) - 1)
        return attrs.evolve(generated, x=(levels * width - 1).to(training.x.dtype), bin_width=width)

    return comparison.bench.keep(("in grey levels", generated, width), rounded)


def choose_images(comparison: Comparison, neighbours: int, most_samples: int, most_control: int) -> ImageChoice:
    """Return which images to look at, at random where there are more, and k.

    Of several samples that are the same, or that complete one image, the first is taken.
    """
    training = comparison.training
    originals = comparison.originals
    assert training is not None
    real = training if comparison.held_out is None else comparison.held_out

    def some(candidates: Tensor, most: int) -> Tensor:
        chosen = torch.from_numpy(comparison.draw.host.permutation(len(candidates))[:most])
        return candidates if len(candidates) <= most else candidates[chosen]

    candidates = _different(comparison)
    samples = some(candidates, most_samples)
    control = some(torch.arange(len(real)), most_control)
    images = comparison.bench.images
    mirrored = comparison.mirrored
    nowhere = torch.full_like(samples, -1), torch.full_like(control, -1)
    own = list(nowhere)
    own_mirrored = list(nowhere)
    if originals is not None:
        completed = attrs.evolve(comparison.generated, x=originals).take(samples).images()
        own[0] = _places(completed, images(training), either_way=mirrored is not None)
        own_mirrored[0] = own[0] if mirrored is None else _places(completed, images(mirrored), either_way=True)
    if comparison.held_out is None:
        own[1] = control
        if mirrored is not None:
            own_mirrored[1] = _places(images(training)[control].flip(-1), images(mirrored))
    k = max(2, min(neighbours, len(training) // 2))
    return ImageChoice(
        samples, len(candidates), control, k, (own[0], own[1]), (own_mirrored[0], own_mirrored[1])
    )


def _different(comparison: Comparison) -> Tensor:
    """Return the first sample that completes each image, or the first of those that are the same, by index.

    Samples that are drawn on their own are as likely to be copies as the control is, but not their repetitions.
    """
    generated = in_grey_levels(comparison)
    origin = generated.conditions.origin
    keys = _hashes(comparison.bench.images(generated)) if origin is None else origin.tolist()
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    return torch.tensor(sorted(first.values()))


def _places(wanted: Tensor, images: Tensor, *, either_way: bool = False) -> Tensor:
    """Return where images stand among others, both as bytes: n indices, −1 for one that is not there.

    `either_way`: or its mirror image, if that is there.
    """
    place_of = {key: place for place, key in reversed(list(enumerate(_hashes(images))))}
    places = torch.tensor([place_of.get(key, -1) for key in _hashes(wanted)])
    if not either_way:
        return places
    return torch.where(places < 0, _places(wanted.flip(-1), images), places)


def _hashes(images: Tensor) -> list[int]:
    return [hash(image.tobytes()) for image in images.contiguous().numpy()]


def search(comparison: Comparison, choice: ImageChoice, where: str, to_rows: ToRows) -> Neighbours:
    """Return the neighbours of samples and of control images in one space."""
    training = comparison.training
    mirrored = comparison.mirrored
    assert training is not None
    points = to_rows(training, None)
    real = training if comparison.held_out is None else comparison.held_out
    queries = to_rows(comparison.generated, choice.samples), to_rows(real, choice.control)
    ours, theirs = (_others(*each, points, choice.k) for each in zip(queries, choice.own, strict=True))
    index, distances, ratios = ours
    _, real_distances, real_ratios = theirs
    plain = _first(distances), _first(real_distances)
    turned_ratios = None
    turned_first = torch.full_like(plain[0], math.inf), torch.full_like(plain[1], math.inf)
    index = index[:, :SHOWN]
    distances = distances[:, :SHOWN]
    if mirrored is not None:
        turned_points = to_rows(mirrored, None)
        turned, turned_real = (
            _others(*each, turned_points, choice.k) for each in zip(queries, choice.own_mirrored, strict=True)
        )
        turned_ratios = turned[2], turned_real[2]
        turned_first = _first(turned[1]), _first(turned_real[1])
        distances, order = torch.cat([distances, turned[1][:, :SHOWN]], dim=1).sort(dim=1, stable=True)
        index = torch.cat([index, turned[0][:, :SHOWN] + len(points)], dim=1).gather(1, order)
    copies = Copies(ratios, real_ratios, turned_ratios, left_out=comparison.held_out is None)
    return Neighbours(where, copies, plain, turned_first, index[:, :SHOWN], distances[:, :SHOWN])


def _first(distances: Tensor) -> Tensor:
    """Return the distances to the nearest (n), of those to several (n×k)."""
    return distances[:, 0].contiguous()


def _others(queries: Tensor, own: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the points (N×D) nearest to queries (n×D), but for one point of its own for each query.

    They come with their distances, and the relative distance of each query: n×k or more, the same, and n.
    """
    count = min(max(k, SHOWN), len(points) - 1) + 1
    distances, index = nearest(queries, points, count)
    left_out = index == own.to(index.device)[:, None]
    left_out[:, -1] |= ~left_out.any(dim=1)  # its own is farther away than all of these, or there is none
    shape = len(queries), count - 1
    others = distances[~left_out].reshape(shape)
    return index[~left_out].reshape(shape), others, relative_distances(others[:, :k])
