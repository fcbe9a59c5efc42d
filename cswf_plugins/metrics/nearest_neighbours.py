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

from typing import Literal

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import (
    BIN,
    Comparison,
    Dataset,
    Meaning,
    Result,
    Spread,
    Workbench,
    parameter,
)
from cswf_plugins.inception.architecture import WIDTH
from cswf_plugins.inception.features import some_features
from cswf_plugins.metrics.copies import ADVICE, NEAR, allowed_chance, warnings
from cswf_plugins.metrics.inception import InceptionMetric
from cswf_plugins.metrics.neighbour_figures import neighbour_figures
from cswf_plugins.metrics.neighbour_search import (
    ImageChoice,
    Neighbours,
    choose_images,
    in_grey_levels,
    search,
)
from cswf_plugins.metrics.spreads import limit_error, share_spread

Where = Literal["pixels", "features"]

FEWEST = 20
"""Samples, and control images, that are looked at however little may be spent."""


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
        training, mirrored, called = comparison.training, comparison.mirrored, comparison.training_called
        if training is None or len(training) < 2:
            raise DataError("metric 'nearest-neighbours' needs two training images or more, to compare with")
        held_out = 0 if comparison.held_out is None else len(comparison.held_out)
        if training.partly_held_out or 2 * held_out < min(self.samples, len(training)):
            # They are not of all the data, or too few to tell copies from chance.
            comparison = attrs.evolve(comparison, held_out=None)
        choice = choose_images(comparison, self.neighbours, *self._most(comparison))
        control = f"other {called}" if comparison.held_out is None else "held-out images"
        spaces = self._search(comparison, choice)
        allowed = allowed_chance([space.copies for space in spaces])
        notes = []
        for number, space in enumerate(spaces):
            is_part = comparison.observation is not None and space.where == "pixels"
            where = "generated pixels" if is_part else space.where
            notes += warnings(space.copies, allowed, where, choice.k, called, control, number == 0)
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
        numbers = [number for space in spaces for number in _numbers(space, called, control, choice)]
        return Result(
            {number.name: number.value for number in numbers if number.is_score},
            self._protocol(comparison, choice, len(known), control),
            notes,
            neighbour_figures(comparison.generated, pictures, known, spaces, choice, called),
            samples=len(choice.samples),
            details={number.name: number.value for number in numbers if not number.is_score},
            counts={number.name: number.count for number in numbers if not number.meaning.of_samples},
            spreads={number.name: number.spread for number in numbers if number.spread is not None},
            meanings={number.name: number.meaning for number in numbers},
        )

    def _search(self, comparison: Comparison, choice: ImageChoice) -> list[Neighbours]:
        """Return the neighbours in each space."""
        spaces: list[Neighbours] = []
        each = tuple(dict.fromkeys(self.spaces))
        for where in each:
            task = f"nearest {comparison.training_called}, in {where}"
            comparison.bench.tell(task, len(spaces), len(each))

            def to_rows(samples: Dataset, index: Tensor | None, where: Where = where) -> Tensor:
                return self._rows(comparison, samples, where, index)

            spaces.append(search(comparison, choice, where, to_rows))
        return spaces

    def _most(self, comparison: Comparison) -> tuple[int, int]:
        """Return how many samples and how many control images are looked at, at most."""
        assert comparison.training is not None
        if comparison.products is None or comparison.draw.device.type != "cpu":
            return self.samples, self.samples
        mirrored = 0 if comparison.mirrored is None else len(comparison.mirrored)
        widths = {"pixels": comparison.training.space.dimension, "features": WIDTH}
        each = (len(comparison.training) + mirrored) * sum(widths[where] for where in set(self.spaces))
        rows = max(2 * FEWEST, comparison.products // each)
        real = comparison.training if comparison.held_out is None else comparison.held_out
        samples, control = (min(self.samples, len(images)) for images in (comparison.generated, real))
        ours = min(samples, max(rows // 2, rows - control))
        return ours, min(control, rows - ours)

    def _protocol(self, comparison: Comparison, choice: ImageChoice, known: int, control: str) -> str:
        called, generated = comparison.training_called, comparison.generated
        searched = f"{known:,} {called}"
        some = "" if len(choice.samples) == len(generated) else f" of {len(generated):,}"
        protocol = (
            f"nearest of {searched} to {len(choice.samples):,}{some} samples and to {len(choice.control):,} "
            f"{control}, relative to the mean of the {choice.k} nearest; copies: nearer than any of these; "
            f"near_copies: nearer than all but their nearest {NEAR:.0%}; nearer: than any of these by the "
            "distance itself; closer: chance to be nearer than one of them by the distance itself"
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
        return self.stated(protocol, comparison) if "features" in self.spaces else protocol

    def _rows(self, comparison: Comparison, samples: Dataset, where: Where, index: Tensor | None) -> Tensor:
        """Return some samples, or all, as points of a space: n×D on the evaluation's device."""
        device = comparison.draw.device
        if samples is comparison.generated:
            samples = in_grey_levels(comparison)
        if where == "features":
            every = torch.arange(len(samples)) if index is None else index
            return some_features(comparison, samples, self.mode, every)
        images = comparison.bench.images(samples)
        chosen = images if index is None else images[index]
        rows = chosen.to(device).reshape(len(chosen), -1).float() * BIN - 1
        return rows if comparison.observation is None else comparison.observation.free(rows.T).T.contiguous()


@attrs.frozen
class _Number:
    """A score or detail with all that is told of it."""

    name: str
    value: float
    meaning: Meaning
    count: int
    """How many samples, or control images, it is of."""
    is_score: bool = False
    spread: Spread | None = None
    """How sure it is, if that is known."""


def _numbers(space: Neighbours, called: str, control: str, choice: ImageChoice) -> list[_Number]:
    """Return all numbers of a space, with their meanings."""
    ending = "l2" if space.where == "pixels" else "features"
    copies, n, m = space.copies, len(choice.samples), len(choice.control)

    def number(
        start: str,
        value: float,
        sentence: str,
        *,
        expected: float | None = None,
        of_real: bool = False,
        share: bool = False,
        spread: Spread | None = None,
    ) -> _Number:
        meaning = Meaning(sentence, "copying", share=share, expected=expected, of_samples=not of_real)
        name = f"{start}_{ending}_of_real" if of_real else f"{start}_{ending}"
        return _Number(name, value, meaning, m if of_real else n, start == "copies", spread)

    def counted(start: str, count: int, sentence: str, expected: float | None, *, more: float = 0.0) -> _Number:
        spread = share_spread(count / n, n, more)
        return number(start, count / n, sentence, expected=expected, share=True, spread=spread)

    relative = f"relative to its {choice.k} nearest, in {space.where},"
    numbers = [
        counted(
            "copies",
            int(copies.copies.sum()),
            f"Share of samples that are one of the {called}, or nearer to one, {relative} than any of {m:,} "
            f"{control} is.",
            copies.expected(copies.control),
            more=limit_error(copies.samples, copies.control),
        ),
        counted(
            "near_copies",
            int(copies.near.sum()),
            f"Share of samples that are nearer to one of the {called}, {relative} than all but the nearest "
            f"{NEAR:.0%} of {control}.",
            copies.near_rank / (m + 1),
            more=limit_error(copies.samples, copies.control, copies.near_rank),
        ),
        counted(
            "nearer",
            space.nearer,
            f"Share of samples whose distance to the nearest of the {called}, in {space.where}, is below "
            f"that of any of {m:,} {control}. Blurred samples are near to many.",
            copies.expected(space.plain[1]),
            more=limit_error(*space.plain),
        ),
        number(
            "closer",
            space.closer,
            f"Chance that a sample is nearer to the {called}, in {space.where}, than one of the {control} is.",
            share=True,
            expected=0.5,
        ),
        number(
            "nearest",
            _median(space.samples),
            f"Median distance of samples to the nearest of the {called}, in {space.where}.",
            expected=_median(space.real),
        ),
        number(
            "nearest",
            _median(space.real),
            f"Median distance of {control} to the nearest of the {called}, in {space.where}.",
            of_real=True,
        ),
        number(
            "smallest",
            float(space.samples.min()),
            f"Smallest distance of a sample to one of the {called}, in {space.where}; 0 for a copy.",
        ),
        number(
            "smallest_ratio",
            float(copies.ratios.min()),
            f"Smallest distance of a sample to one of the {called} over the mean to its {choice.k} nearest, in "
            f"{space.where}; near 0 for a copy.",
        ),
    ]
    if copies.mirrored is None:
        return numbers
    ours, theirs = (int(each.sum()) for each in copies.mirrored_copies)
    sentence = f"are as near as copies to the mirror image of one of the {called} only, {relative[:-1]}."
    return [
        *numbers,
        counted("copies_mirrored", ours, f"Share of samples that {sentence}", theirs / m),
        number(
            "copies_mirrored",
            theirs / m,
            f"Share of {control} that {sentence}",
            of_real=True,
            share=True,
            spread=share_spread(theirs / m, m),
        ),
    ]


def _median(values: Tensor) -> float:
    """Return the median, which is the mean of the middle two of an even number."""
    return float(values.double().quantile(0.5))
