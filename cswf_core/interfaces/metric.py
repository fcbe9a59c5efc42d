"""Contract of metrics: numbers that compare generated samples with real ones."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces.condition import Observation
from cswf_core.interfaces.contract import Contract, NeededFiles
from cswf_core.interfaces.dataset import Dataset, digest_of
from cswf_core.interfaces.draw import Draw

T = TypeVar("T")
Tell = Callable[[str, int, int], None]
"""Hears of progress: (the task at hand, how much of it is done, how much there is)."""


def _silence(task: str, done: int, total: int) -> None:
    del task, done, total


PartWork = Callable[[Tensor, torch.device, Tell], Tensor]
"""(some items, the device to work on, who hears of progress) → a row of numbers for each item.

It is sent to other processes, so it is a function of a module, or a `functools.partial` of one."""
ShareOut = Callable[[PartWork, Tensor, int, Tell], Tensor]
"""(work, all items, how many stay together, who hears of progress) → a row for each item, on the CPU."""


@attrs.frozen(eq=False)
class Workbench:
    """What the metrics of one evaluation share: results to use again, files they need, a voice."""

    names: Mapping[Dataset, str] = attrs.field(factory=dict, repr=False)
    """What the sets of samples are called, as in `cifar10:train`; one that is not here has no name."""
    references: Sequence[Dataset] = attrs.field(default=(), repr=False)
    """Real samples that a feature network may have to see, by which the time of an evaluation is estimated."""
    real_features: bool = True
    """Whether a metric needs their features; if not, mean and covariance of these are enough."""
    weights: Path | None = None
    """The feature network's file, where the person has named one."""
    download: bool = False
    """Whether a file that is missing may be fetched from the internet."""
    used: dict[str, Any] = attrs.field(factory=dict)
    """Facts about files that scores depend on, for the record: `used["weights"] = {…}`."""
    features: dict[str, Tensor] = attrs.field(factory=dict, repr=False)
    """Features of whole sets by name, n×D, for whoever wants to keep them; metrics add what they compute."""
    tell: Tell = attrs.field(default=_silence, repr=False)
    """Where a metric says how far it is."""
    share_out: ShareOut | None = attrs.field(default=None, repr=False)
    """Has several devices work on some of many items each; None: there is one."""
    _cache: dict[Hashable, Any] = attrs.field(factory=dict, repr=False)

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returns, made only once for each key. A `Dataset` may be part of a key."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def has(self, key: Hashable) -> bool:
        """Say whether something is kept under a key."""
        return key in self._cache

    def sha256(self, samples: Dataset) -> str:
        """Return a set's digest: of its images as bytes, or of its points in float32, as they are scored."""
        is_image = samples.space.is_image
        return self.keep(
            ("sha256", samples),
            lambda: digest_of(self.images(samples) if is_image else samples.points().float()),
        )

    def images(self, samples: Dataset) -> Tensor:
        """Return a set's images as bytes, n×C×H×W, on the CPU."""
        return self.keep(("images", samples), samples.images)


@attrs.frozen(eq=False)
class Comparison:
    """Generated samples beside real ones."""

    generated: Dataset
    """The samples to be scored."""
    real: Dataset
    """What to compare with."""
    draw: Draw
    """Randomness, and the device to work on."""
    training: Dataset | None = None
    """What the flow has seen, or might have copied; None where that is not known."""
    training_called: str = "training images"
    """What these are called in sentences; images that no flow has seen are not called so."""
    mirrored: Dataset | None = None
    """Mirror images that it has seen beside these; None where there were none."""
    held_out: Dataset | None = None
    """Real samples that the flow never saw; None where nothing is held out."""
    originals: Tensor | None = attrs.field(default=None, repr=False)
    """d×n: the image that each generated sample completes; None where nothing is completed."""
    observation: Observation | None = None
    """What each sample was given of that image, if it is the same part for all."""
    products: int | None = None
    """Multiplications that the metric may spend on a CPU, where nobody has asked for it; None: any number."""
    bench: Workbench = attrs.field(factory=Workbench)
    """What this evaluation's metrics share."""

    def alike(self) -> tuple[Tensor, Tensor]:
        """Return generated and real samples as numbers by one rule, on the draw's device: d×n and d×m.

        The grey levels of either are filled with uniform noise, so that bytes and continuous numbers compare. A
        metric that looks at x and not at pictures begins with this; `images()` of both are bytes alike.
        """
        draw = self.draw
        parts = []
        for samples in (self.real, self.generated):
            x = samples.x.to(draw.device, draw.dtype)
            parts.append(x + draw.uniform(*x.shape) * samples.bin_width if samples.bin_width else x)
        return parts[1], parts[0]


@attrs.frozen(eq=False)
class Figure:
    """Rows of images to be drawn."""

    rows: Sequence[Tensor]
    """Each of bytes, columns×C×H×W."""
    top: Sequence[str] = ()
    """A text above each column."""
    captions: Sequence[Sequence[str]] = ()
    """For each row a text under each of its images, such as a distance; empty: there are none."""
    left: Sequence[str] = ()
    """A text before each row, such as its class; empty: there are none."""
    lead: str = ""
    """A sentence that says what the figure shows, for the page."""


Aspect = Literal["quality", "coverage", "copying", "condition", "other"]
"""What a score is about, by which pages group scores."""


@attrs.frozen
class Meaning:
    """What a score says, for tables and pages."""

    sentence: str = ""
    """In a plain sentence, shown where somebody asks what the number means."""
    aspect: Aspect = "other"
    """What it is about, by which pages group scores."""
    share: bool = False
    """Whether it is a share of samples, shown in percent."""
    expected: float | None = None
    """What it would be for real images that the flow never saw; None: there is nothing to expect."""
    of_samples: bool = True
    """Whether it is a property of the generated samples; of others no run is the best."""


@attrs.frozen(eq=False)
class Spread:
    """How sure a score is: its standard error, in two parts.

    `own` is the standard error that comes from the generated samples alone. `replicates` (J) are J values, and
    their standard deviation times `scale` is a standard error. The j-th of two evaluations with one seed is of
    the same real samples, so that the difference of two scores is surer than each: they are `paired`.
    """

    method: str
    """How it was estimated, in words that can stand behind "±" in print."""
    own: float = 0.0
    """The standard error from the generated samples alone."""
    replicates: Tensor | None = attrs.field(default=None, repr=False)
    """J values, the j-th always of the same real samples."""
    scale: float = 1.0
    """By which their standard deviation becomes a standard error."""

    @property
    def error(self) -> float:
        """The standard error of the score."""
        return math.hypot(self.own, self._of(self.replicates))

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the error itself: few where it is from few replicates, else infinite."""
        if self.replicates is None or len(self.replicates) > 100:
            return math.inf
        return len(self.replicates) - 1  # an error is itself so uncertain that intervals have to be wider

    def error_of_difference(self, other: Spread) -> float:
        """Return the standard error of the difference of this score and another's, against one reference."""
        if not self.paired(other):
            return math.hypot(self.error, other.error)
        assert self.replicates is not None
        assert other.replicates is not None
        return math.hypot(self.own, other.own, self._of(self.replicates - other.replicates))

    def paired(self, other: Spread) -> bool:
        """Say whether both have replicates of the same real samples, one for one."""
        ours = self.replicates
        theirs = other.replicates
        return (
            ours is not None
            and theirs is not None
            and (ours.shape, self.scale, self.method) == (theirs.shape, other.scale, other.method)
        )

    def _of(self, values: Tensor | None) -> float:
        return 0.0 if values is None or len(values) < 2 else self.scale * float(values.double().std())


@attrs.frozen(eq=False)
class Result:
    """The scores of a metric, and how they were computed."""

    scores: Mapping[str, float]
    """One or more numbers by name."""
    details: Mapping[str, float] = attrs.field(factory=dict, kw_only=True)
    """More numbers, that are written down but not shown in tables of runs."""
    protocol: str = ""
    """How they were computed, as a sentence for print; a part `; NAME: …` is only about scores named NAME…."""
    notes: Sequence[str] = ()
    """Sentences that nobody should miss who reads the scores."""
    figures: Mapping[str, Figure] = attrs.field(factory=dict)
    """Pictures by name."""
    samples: int | None = None
    """How many generated samples went into them, if not all."""
    counts: Mapping[str, int] = attrs.field(factory=dict, kw_only=True)
    """How many samples went into single scores or details, where these are others than `samples`."""
    spreads: Mapping[str, Spread] = attrs.field(factory=dict, kw_only=True)
    """How sure single scores or details are, by name; those that are not here have no uncertainty."""
    meanings: Mapping[str, Meaning] = attrs.field(factory=dict, kw_only=True)
    """What single scores or details say, by name."""


class Metric(Contract):
    """Scores samples. Subclasses are attrs classes whose fields are the parameters."""

    better: ClassVar[Literal["lower", "higher", ""]] = ""
    """Which way the scores get better, where that can be said."""
    customary: ClassVar[int] = 0
    """How many generated samples published numbers are computed from; with fewer, the output says so."""
    real_features: ClassVar[bool] = True
    """Whether it needs the features of the real samples, if it has a `network`, and not only their mean and
    covariance."""
    once: ClassVar[bool] = False
    """Whether the scores are the same whichever split is compared with, and so are computed once."""

    @property
    def network(self) -> str:
        """The feature network that the scores depend on, by its name in `Workbench.used`; nothing: on none."""
        return ""

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Raise `DataError` where samples like `data` cannot be scored; asked before the flow, not after it."""
        del data, bench

    @abc.abstractmethod
    def compute(self, comparison: Comparison) -> Result:
        """Return the scores of `comparison.generated`; where they cannot be had, raise `DataError`."""

    def needed_files(self) -> NeededFiles | None:
        """Return the published files that it reads, for `cswf doctor`; None, the usual: it needs none.

        Nothing is downloaded here. Asked of a metric with all parameters at their defaults.
        """
        return None
