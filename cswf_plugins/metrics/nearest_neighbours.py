"""Metric `nearest-neighbours`: how near samples are to the training images, and whether some are copies.

What it is: for each sample the distance to the nearest training image over the mean distance to the nearest 50,
its relative distance, beside the same for held-out images, which cannot be copies: in pixels (L2, in [−1, 1])
and in Inception features. Where few or none are held out, each training image is compared with all others
instead. Samples of fewer grey levels than 256 are rounded to these, as the training images are. Samples that
complete an image are compared by what was generated, and not with the image that they complete. Figures show
samples and neighbours: of all classes, and those with the smallest relative distances. Copies of mirror images
are counted apart: held-out images that are like one of them (12 of CIFAR-10's nearly are) would hide copies.
Cost: a product of n×d×N; for features, those of `fid`.
When not to use it: as a measure of quality.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import BIN, Comparison, Dataset, Figure, Meaning, Result, Spread, Workbench, parameter
from cswf_plugins.inception.architecture import WIDTH
from cswf_plugins.metrics.copies import (
    ADVICE,
    NEAR,
    ImageChoice,
    Neighbours,
    allowed_chance,
    choose_images,
    in_grey_levels,
    search,
    warnings,
)
from cswf_plugins.metrics.inception import InceptionMetric, Numbers, limit_error, share_spread

Where = Literal["pixels", "features"]

ROWS = 10
"""Samples in a figure, at most."""


@attrs.frozen(kw_only=True)
class NearestNeighbours(InceptionMetric):
    """Distances to the nearest training images, and a warning of copies."""

    NAME = "nearest-neighbours"
    once = True

    spaces: tuple[Where, ...] = parameter(
        "where distances are taken: in 'pixels', in 'features', or both", default=("pixels", "features")
    )
    samples: int = parameter(
        "how many samples and held-out images are looked at, at most", default=10_000, at_least=1
    )
    neighbours: int = parameter(
        "k: a sample is a copy if it is much nearer to one training image than to its k nearest on average; "
        "at most half of the images searched",
        default=50,
        at_least=2,
    )

    @property
    def references(self) -> tuple[str, ...]:  # type: ignore[override]  # the base has the same for all parameters
        """The work behind the Inception network, where distances are taken in its features."""
        return super().references if "features" in self.spaces else ()

    @property
    def network(self) -> str:
        """The Inception network, where distances are taken in its features."""
        return "weights" if "features" in self.spaces else ""

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for the network's file if features are wanted."""
        if "features" in self.spaces:
            super().check(data, bench)
        elif not data.space.is_image:
            raise DataError("metric 'nearest-neighbours' compares images, and these are points")

    def compute(self, comparison: Comparison) -> Result:
        """Return `copies` for every space, and as details other shares and distances."""
        training = comparison.training
        mirrored = comparison.mirrored
        called = comparison.training_called
        if training is None or len(training) < 2:
            raise DataError("metric 'nearest-neighbours' needs two training images or more, to compare with")
        held_out = 0 if comparison.held_out is None else len(comparison.held_out)
        if training.partly_held_out or 2 * held_out < min(self.samples, len(training)):
            # They are not of all the data, or too few to tell copies from chance.
            comparison = attrs.evolve(comparison, held_out=None)
        choice = choose_images(comparison, self.neighbours, *self._most(comparison))
        control = f"other {called}" if comparison.held_out is None else "held-out images"
        spaces: list[Neighbours] = []
        wanted = tuple(dict.fromkeys(self.spaces))
        for where in wanted:
            comparison.bench.tell(f"nearest {called}, in {where}", len(spaces), len(wanted))
            spaces.append(search(comparison, choice, where, partial(self._rows, comparison, where)))
        allowed = allowed_chance([space.copies for space in spaces])
        notes = []
        for number, space in enumerate(spaces):
            is_part = comparison.observation is not None and space.where == "pixels"
            measured = "generated pixels" if is_part else space.where
            notes += warnings(space.copies, allowed, measured, choice.k, called, control, number == 0)
        if any(note.startswith("copying") for note in notes):
            notes.append(ADVICE)
        if len(choice.samples) < min(choice.different, self.samples):
            notes.append(
                f"copies are looked for among {len(choice.samples):,} of {len(comparison.generated):,} samples "
                "to save time; `cswf eval --metric '{use: nearest-neighbours, spaces: [pixels]}'` looks at more"
            )
        images = comparison.bench.images
        known = images(training) if mirrored is None else torch.cat([images(training), images(mirrored)])
        pictures = images(in_grey_levels(comparison))[choice.samples]
        numbers = Numbers()
        for space in spaces:
            of_space = _SpaceNumbers(numbers, space, called, control, choice.k)
            of_space.add_shares()
            of_space.add_distances()
            of_space.add_mirrored()
        return numbers.result(
            self._protocol(comparison, choice, len(known), control),
            notes,
            figures=_figures(comparison.generated, pictures, known, spaces, choice, called),
            samples=len(choice.samples),
        )

    def _most(self, comparison: Comparison) -> tuple[int, int]:
        """Return how many samples and how many control images are looked at, at most."""
        assert comparison.training is not None
        if comparison.products is None or comparison.draw.device.type != "cpu":
            return self.samples, self.samples
        mirrored = 0 if comparison.mirrored is None else len(comparison.mirrored)
        widths = {"pixels": comparison.training.space.dimension, "features": WIDTH}
        each = (len(comparison.training) + mirrored) * sum(widths[where] for where in set(self.spaces))
        rows = max(40, comparison.products // each)  # however little may be spent
        real = comparison.training if comparison.held_out is None else comparison.held_out
        samples, control = (min(self.samples, len(images)) for images in (comparison.generated, real))
        ours = min(samples, max(rows // 2, rows - control))
        return ours, min(control, rows - ours)

    def _protocol(self, comparison: Comparison, choice: ImageChoice, known: int, control: str) -> str:
        called = comparison.training_called
        generated = comparison.generated
        some = "" if len(choice.samples) == len(generated) else f" of {len(generated):,}"
        protocol = (
            f"nearest of {known:,} {called} to {len(choice.samples):,}{some} samples and to "
            f"{len(choice.control):,} {control}, relative to the mean of the {choice.k} nearest; copies: "
            f"nearer than any of these; near_copies: nearer than all but their nearest {NEAR:.0%}; nearer: "
            "than any of these by the distance itself; closer: chance to be nearer than one of them by the "
            "distance itself"
        )
        if comparison.held_out is None:
            protocol += f"; each of the {called} is compared with all others"
        if comparison.originals is not None:
            compared = "samples" if comparison.observation is None else "what was generated of samples"
            protocol += f"; {compared}, one for each image that is completed, and not with that image"
        if comparison.mirrored is not None:
            protocol += (
                f"; {len(comparison.mirrored):,} of the {called} are mirror images; copies_mirrored: copies of "
                "these only"
            )
        return protocol

    def _rows(self, comparison: Comparison, where: Where, samples: Dataset, index: Tensor | None) -> Tensor:
        """Return some samples, or all, as points of a space: n×D on the evaluation's device."""
        if samples is comparison.generated:
            samples = in_grey_levels(comparison)
        if where == "features":
            features = self.features(comparison)
            return features.of(samples) if index is None else features.some(samples, index)
        images = comparison.bench.images(samples)
        chosen = images if index is None else images[index]
        rows = chosen.to(comparison.draw.device).reshape(len(chosen), -1).float() * BIN - 1
        return rows if comparison.observation is None else comparison.observation.free(rows.T).T.contiguous()


@attrs.frozen(eq=False)
class _SpaceNumbers:
    """The numbers of one space, which are added to all."""

    numbers: Numbers
    space: Neighbours
    called: str
    """What training images are called."""
    control: str
    """What control images are called."""
    k: int

    def add(self, name: str, value: float, sentence: str, spread: Spread | None = None, **more: Any) -> None:
        """Add a number, as a score if it is one of `copies`; `more` are fields of its meaning."""
        meaning = Meaning(sentence, "copying", **more)
        detail = name != "copies"
        name += "_l2" if self.space.where == "pixels" else "_features"
        if meaning.of_samples:
            self.numbers.add(name, value, meaning, spread, detail=detail)
        else:
            real = len(self.space.real)
            self.numbers.add(f"{name}_of_real", value, meaning, spread, count=real, detail=detail)

    def add_share(self, name: str, which: Tensor, sentence: str, *, error: float = 0.0, **more: Any) -> None:
        """Add the share of images (n) that something is true of; `error` is that of a limit."""
        share = int(which.sum()) / len(which)
        self.add(name, share, sentence, share_spread(share, len(which), error), share=True, **more)

    def add_shares(self) -> None:
        """Add the shares of samples that are copies, or nearer to the images than others are."""
        space = self.space
        copies = space.copies
        m = len(copies.control)
        relative = f"relative to its {self.k} nearest, in {space.where}"
        self.add_share(
            "copies",
            copies.copies,
            f"Share of samples that are one of the {self.called}, or nearer to one, {relative}, than any of "
            f"{m:,} {self.control} is.",
            expected=copies.expected(copies.control),
            error=limit_error(copies.samples, copies.control),
        )
        self.add_share(
            "near_copies",
            copies.near,
            f"Share of samples that are nearer to one of the {self.called}, {relative}, than all but the "
            f"nearest {NEAR:.0%} of {self.control}.",
            expected=copies.near_rank / (m + 1),
            error=limit_error(copies.samples, copies.control, copies.near_rank),
        )
        self.add_share(
            "nearer",
            space.nearer,
            f"Share of samples whose distance to the nearest of the {self.called}, in {space.where}, is below "
            f"that of any of {m:,} {self.control}. Blurred samples are near to many.",
            expected=copies.expected(space.plain[1]),
            error=limit_error(*space.plain),
        )

    def add_distances(self) -> None:
        """Add the distances of samples, and how often they are smaller than those of others."""
        space = self.space
        where = space.where
        nearer = f"Chance that a sample is nearer to the {self.called}, in {where}, than one of the"
        self.add("closer", space.closer, f"{nearer} {self.control} is.", share=True, expected=0.5)
        nearest = f"to the nearest of the {self.called}, in {where}."
        ours = _median(space.samples)
        real = _median(space.real)
        self.add("nearest", ours, f"Median distance of samples {nearest}", expected=real)
        self.add("nearest", real, f"Median distance of {self.control} {nearest}", of_samples=False)
        smallest = f"Smallest distance of a sample to one of the {self.called}"
        self.add("smallest", float(space.samples.min()), f"{smallest}, in {where}; 0 for a copy.")
        over = f"over the mean to its {self.k} nearest, in {where}; near 0 for a copy."
        self.add("smallest_ratio", float(space.copies.ratios.min()), f"{smallest} {over}")

    def add_mirrored(self) -> None:
        """Add the shares that are like mirror images, if there are any among the images."""
        if self.space.copies.mirrored is None:
            return
        ours, theirs = self.space.copies.mirrored_copies
        alike = (
            f"are as near as copies to the mirror image of one of the {self.called} only, relative to its "
            f"{self.k} nearest, in {self.space.where}."
        )
        real = int(theirs.sum()) / len(theirs)
        self.add_share("copies_mirrored", ours, f"Share of samples that {alike}", expected=real)
        self.add_share("copies_mirrored", theirs, f"Share of {self.control} that {alike}", of_samples=False)


def _median(values: Tensor) -> float:
    """Return the median, which is the mean of the middle two of an even number."""
    return float(values.double().quantile(0.5))


def _figures(
    generated: Dataset,
    images: Tensor,
    known: Tensor,
    spaces: Sequence[Neighbours],
    choice: ImageChoice,
    called: str,
) -> dict[str, Figure]:
    """Return the two figures by name: samples of all classes as they come, and those most like copies.

    `images` (n×C×H×W bytes) are the chosen samples, and `known` the images that neighbours are indices of.
    """
    names: list[str] = []
    rows = torch.arange(min(ROWS, len(images)))
    if generated.conditions.labels is not None:
        labels = generated.conditions.labels.cpu()[choice.samples]
        classes = generated.classes
        names = [classes[label] if 0 <= label < len(classes) else str(label) for label in labels.tolist()]
        rows = _rows_of_classes(labels)
    closest = spaces[0].copies.ratios.cpu().argsort(stable=True)[:ROWS]
    below = (
        f"each with the {called} nearest to it. Under each sample is its relative distance (to the nearest "
        f"over the mean to the nearest {choice.k}, in {spaces[0].where}; near 0 for a copy), and under each "
        "neighbour its distance."
    )
    by_chance = f"Samples that nobody has chosen, {below}"
    smallest = f"The samples with the smallest relative distances, {below}"
    return {
        "nearest-neighbours": _figure(images, known, spaces, rows.tolist(), names, by_chance),
        "nearest-of-all": _figure(images, known, spaces, closest.tolist(), names, smallest),
    }


def _rows_of_classes(labels: Tensor) -> Tensor:
    """Return ROWS samples or fewer: as many of each class, classes evenly chosen."""
    classes = torch.unique(labels)
    if len(classes) > ROWS:
        classes = classes[torch.arange(ROWS) * len(classes) // ROWS]
    each = ROWS // len(classes)
    return torch.cat([(labels == label).nonzero()[:each, 0] for label in classes])


def _figure(
    images: Tensor, known: Tensor, spaces: Sequence[Neighbours], rows: list[int], names: list[str], lead: str
) -> Figure:
    """Return rows of a sample and its neighbours in each space."""
    ratios = spaces[0].copies.ratios
    index = torch.cat([space.index for space in spaces], dim=1).cpu()
    distances = torch.cat([space.distances for space in spaces], dim=1).cpu()
    top = ["sample"]
    for space in spaces:
        width = space.index.shape[1]
        top += [f"by {space.where}" if column == width // 2 else "" for column in range(width)]
    pictures = [torch.cat([images[row, None], known[index[row]]]) for row in rows]
    captions = [
        [f"{float(ratios[row]):.2f}", *(f"{distance:.3g}" for distance in distances[row].tolist())]
        for row in rows
    ]
    left = [names[row] for row in rows] if names else []
    return Figure(pictures, top, captions=captions, left=left, lead=lead)
