"""Plugins with one fault each, and the check that has to catch it."""

from __future__ import annotations

import attrs
import numpy as np
import torch

from cswf_core.hookspecs import hookimpl
from cswf_core.interfaces import (
    CDFEstimator,
    ConditionEncoder,
    Conditions,
    Coordinates,
    Dataset,
    DatasetSource,
    FittedCDF,
    LinearMap,
    Masked,
    Metric,
    Observation,
    Observer,
    ProjectionSampler,
    ProjectionWrapper,
    Result,
    Schedule,
    Space,
    Stage,
)
from tests.checks.parts import Spied


@attrs.frozen
class Sphere(ProjectionSampler):
    """Uniform directions, from which faulty ones derive, with names that are words of their own."""

    reference = "Muller 1959"
    adapt = condition = None

    def sample(self, space, count, draw):
        return draw.sphere(count, space.dimension)


def variant(name, base, **members):
    """A plugin class of that name with some members other than those of its base."""
    return attrs.frozen(type(name, (base,), {"__module__": __name__, **members}))


def directions(name, change, **members):
    """A sampler whose directions are `change(theta, draw)` of uniform ones."""

    def sample(self, space, count, draw):
        return change(draw.sphere(count, space.dimension), draw)

    return variant(name, Sphere, sample=sample, **members)


def unit(theta):
    return theta / theta.norm(dim=1, keepdim=True)


def seeding(theta, draw):
    np.random.seed(0)
    return theta


def blind_to_brightness(theta, draw):
    return theta if theta.shape[1] == 1 else unit(theta - theta.mean(dim=1, keepdim=True))


def on_the_cpu(theta, draw):
    return torch.eye(theta.shape[1], dtype=theta.dtype)[:1].repeat(len(theta), 1)


def uneven(theta, draw):
    theta[:, 0] *= 4
    return unit(theta)


def only_rows(self, space, count, draw):
    """Mix up rows and columns, which shows where a grid is not square."""
    theta = draw.sphere(count, space.dimension).reshape(count, *space.grid("projection 'only-rows'"))
    return (theta + 0 * theta.transpose(2, 3)).reshape(count, -1)


def needs_images_silently(self, space, count, draw):
    _channels, _height, _width = space.shape
    return draw.sphere(count, space.dimension)


def the_same_in_every_batch(self, space, count, draw):
    fixed = attrs.evolve(draw.key, index=0, step=0).open(draw.device, draw.dtype)
    return fixed.sphere(count, space.dimension)


StrayNumbers = directions("StrayNumbers", lambda theta, draw: unit(torch.randn_like(theta)))
Seeding = directions("Seeding", seeding)
Misspelt = variant("Misspelt", Sphere, tempred=True)
CitesInWords = variant("CitesInWords", Sphere, references=("Du et al., ICML 2023",))
TooLong = directions("TooLong", lambda theta, draw: theta * 1.0001)
NowAndThenNothing = directions(
    "NowAndThenNothing", lambda theta, draw: torch.where(draw.uniform(len(theta), 1) < 0.003, torch.nan, theta)
)
BlindToBrightness = directions("BlindToBrightness", blind_to_brightness)
OnlyRows = variant("OnlyRows", Sphere, sample=only_rows)
CpuAlways = directions("CpuAlways", on_the_cpu)
NeedsImagesSilently = variant("NeedsImagesSilently", Sphere, sample=needs_images_silently)
TheSameInEveryBatch = variant("TheSameInEveryBatch", Sphere, sample=the_same_in_every_batch)
FalselyIsotropic = directions("FalselyIsotropic", uneven, isotropic=True)


@attrs.frozen(kw_only=True)
class MisspeltAroundAnother(ProjectionWrapper):
    of: ProjectionSampler = Sphere()

    def sample(self, space, count, draw):
        return self.inner(space, count, draw)

    def fited(self, space, z):
        return self


@attrs.frozen(eq=False)
class Remembering(Sphere):
    calls: int = attrs.field(default=0, init=False)

    def sample(self, space, count, draw):
        object.__setattr__(self, "calls", self.calls + 1)
        return draw.sphere(count, space.dimension).roll(self.calls, dims=1)


class Transposed(Spied):
    def adjoint(self, a):
        return super().adjoint(a) * 1.0005  # below what the engine notices


WrongAdjoint = directions("WrongAdjoint", lambda theta, draw: Transposed(theta))


class Ranks(FittedCDF):
    """Levels by a sort, and values by the nearest rank."""

    def __init__(self, values):
        self.ordered = values.sort(dim=1).values

    def cdf(self, z):
        n = self.ordered.shape[1]
        return torch.searchsorted(self.ordered, z.contiguous(), right=True).to(z.dtype) / n

    def icdf(self, a):
        n = self.ordered.shape[1]
        return self.ordered.gather(1, (a * n).ceil().long().clamp(1, n) - 1)


@attrs.frozen
class Steps(CDFEstimator):
    """The empirical distribution, from which faulty ones derive."""

    def fit(self, values):
        return Ranks(values)


class Unscaled(Ranks):
    def __init__(self, values):
        super().__init__((values - values.mean(dim=1, keepdim=True)) / values.std(dim=1, keepdim=True))


def fitting(name, fitted=Ranks, **members):
    """An estimator whose distributions are of another class, or have other members."""
    return variant(name, Steps, fit=lambda self, values: type(name, (fitted,), members)(values))


def falling(self, z):
    level = Ranks.cdf(self, z)
    return torch.where(level > 0.9, level - 0.05, level)


Falling = fitting("Falling", cdf=falling)
BeyondOne = fitting("BeyondOne", cdf=lambda self, z: Ranks.cdf(self, z) * 1.01)
Upside = fitting("Upside", icdf=lambda self, a: Ranks.icdf(self, 1 - a))
WithUnscaled = fitting("WithUnscaled", Unscaled)


@attrs.frozen
class SortsInPlace(Steps):
    def fit(self, values):
        values.copy_(values.sort(dim=1).values)
        return Ranks(values)

    def transport(self, p, data):
        image = data.icdf(Ranks(p).cdf(p))
        return p.copy_(image)


@attrs.frozen
class Labels(ConditionEncoder):
    """One-hot labels, from which faulty conditions derive."""

    amplifier: float = 3.0

    def length(self, data):
        return len(data.classes) or 1

    def project(self, theta_y, conditions):
        if conditions.labels is None:
            return theta_y[:, :1].expand(-1, len(conditions))
        return theta_y[:, conditions.labels]


def of_the_whole(self, theta_y, conditions):
    products = Labels.project(self, theta_y, conditions)
    return products - products.mean(dim=1, keepdim=True)


def wrong_groups(self, conditions):
    present, index = torch.unique(conditions.labels, return_inverse=True)
    return index.flip(0), Conditions(labels=present)


Squared = variant("Squared", Labels, project=lambda self, *given: Labels.project(self, *given).square())
OfTheWhole = variant("OfTheWhole", Labels, project=of_the_whole)
WrongGroups = variant("WrongGroups", Labels, groups=wrong_groups)


class Creeping(Observation):
    """Half of the coordinates are seen, with a thousandth of the others."""

    def seen(self, x):
        half = len(x) // 2
        return torch.cat([x[:half] + 1e-4 * x[half : 2 * half], torch.zeros_like(x[half:])])


class Slipping(Masked):
    """A mask whose free part is not the rest of what is seen, by less than the engine notices."""

    def free(self, x):
        return super().free(x) + 1e-4 * self.seen(x)


def halves(d):
    mask = torch.zeros(d, dtype=torch.bool)
    mask[: d // 2] = True
    return mask


def seeing(observation):
    """A condition that sees a part of x."""
    return variant(
        "Seeing",
        ConditionEncoder,
        length=lambda self, data: 0,
        draw=lambda self, data, count, draw: Conditions(origin=draw.integers(len(data), count)),
        observation=lambda self, data, conditions, draw: observation(data.space.dimension),
    )


@attrs.frozen
class Once(Schedule):
    """Four steps, from which faulty schedules derive."""

    def stages(self, space, projection):
        return [Stage(steps=4, directions=256, step_size=float(min(space.dimension, 64)))]


@attrs.frozen(eq=False)
class Backwards(Stage):
    def eta(self, step):
        return self.step_size * (1 if step < 3 else -1)


def planning(name, change):
    """A schedule whose stage is another."""
    return variant(name, Once, stages=lambda self, *given: [change(Once.stages(self, *given)[0])])


NeverStops = variant("NeverStops", Once, adaptive=True, stop=lambda self, stage, distances: False)
Endless = planning("Endless", lambda stage: attrs.evolve(stage, steps=10**12))
TurnsAround = planning("TurnsAround", lambda stage: Backwards(steps=4, directions=256, step_size=6.0))
AnotherPlanEachTime = planning(
    "AnotherPlanEachTime",
    lambda stage: attrs.evolve(stage, step_size=stage.step_size * (1 + np.random.rand()) / 2),
)


class Halved(LinearMap):
    def __init__(self, factor):
        self.factor = factor

    def enter(self, x):
        return x / 2

    def leave(self, w):
        return w * 2

    def adjoint(self, theta):
        return theta / 2 * (1 + 5e-4)  # below what the engine notices

    def tensors(self):
        return {"factor": torch.tensor(self.factor)}


WrongTranspose = variant("WrongTranspose", Coordinates, fit=lambda self, space, x: Halved(0.5))


@attrs.frozen
class Noise(DatasetSource):
    """Random images, from which faulty data derive."""

    def load(self, draw):
        return Dataset(draw.uniform(16, 40) * 1.9 - 0.95, Space((1, 4, 4)))


def loading(name, x, **members):
    """A source of other numbers."""
    return variant(name, Noise, load=lambda self, draw: Dataset(x(draw), Space((1, 4, 4)), **members))


OutOfRange = loading("OutOfRange", lambda draw: draw.uniform(16, 40) * 255)
OtherEachTime = loading("OtherEachTime", lambda draw: torch.rand(16, 40))
HeldOutOfRange = loading(
    "HeldOutOfRange",
    lambda draw: draw.uniform(16, 40) - 0.5,
    held_out=Dataset(torch.full((16, 2), 3.0), Space((1, 4, 4))),
)
BetweenLevels = loading("BetweenLevels", lambda draw: draw.uniform(16, 40) * 1.9 - 0.95, bin_width=1 / 128)


@attrs.frozen
class Means(Metric):
    """The distance of the means, from which faulty metrics derive."""

    better = "lower"

    def compute(self, comparison):
        return self._result(comparison.generated.x, comparison.real.x)

    def _result(self, p, q):
        scores = {"means": p.mean(dim=1) - q.mean(dim=1), "means_from_zero": q.mean(dim=1)}
        return Result({name: float(d.norm()) for name, d in scores.items()}, "distance of the means")


def comparing(name, p):
    """A metric that looks at something else than the generated samples."""
    return variant(name, Means, compute=lambda self, given: self._result(p(given), given.real.x))


OrderMatters = comparing("OrderMatters", lambda given: given.generated.x[:, :10])
TreatsThemUnlike = comparing("TreatsThemUnlike", lambda given: given.generated.x * 127.5 + 127.5)
LooksAtTheRealOnes = comparing("LooksAtTheRealOnes", lambda given: given.real.x)
Spoils = comparing("Spoils", lambda given: given.generated.x.clamp_(-0.5, 0.5))


class Counting:
    remembered = "counting"

    def __init__(self):
        self.steps = 0

    @hookimpl
    def after_step(self, state):
        self.steps += 1

    def keep(self):
        return {"steps": torch.tensor([self.steps])}

    def recall(self, state, total_step):
        self.steps = int(state["steps"]) if state else 0


class Forgetful(Counting):
    def recall(self, state, total_step):
        pass


class Pushing(Counting):
    @hookimpl
    def after_step(self, flow):
        for block in flow.particles.blocks():
            block.x.add_(0.01)


class ClosedOnce(Counting):
    open = True

    def close(self):
        if not self.open:
            raise ValueError("closed already")
        self.open = False


def watching(watcher):
    return variant("Watching", Observer, watch=lambda self, folder: watcher())


FAULTS = [
    ("projection", StrayNumbers, "answers follow from their keys"),
    ("projection", StrayNumbers, "a saved model retraces the flow"),
    ("projection", StrayNumbers, "a resumed flow has the same bits"),
    ("projection", Seeding, "answers follow from their keys"),
    ("projection", Misspelt, "no name is a misspelling"),
    ("projection", MisspeltAroundAnother, "no name is a misspelling"),
    ("projection", CitesInWords, "references are bibtex entries"),
    ("projection", TooLong, "directions have unit length"),
    ("projection", NowAndThenNothing, "directions are finite"),
    ("projection", BlindToBrightness, "directions span the space"),
    ("projection", OnlyRows, "spaces are taken or refused in a sentence"),
    ("projection", CpuAlways, "the device is that of the draw"),
    ("projection", CpuAlways, "a short flow comes nearer to the data"),
    ("projection", NeedsImagesSilently, "spaces are taken or refused in a sentence"),
    ("projection", TheSameInEveryBatch, "batches of a step differ"),
    ("projection", Remembering, "answers follow from their keys"),
    ("projection", FalselyIsotropic, "directions span the space"),
    ("projection", WrongAdjoint, "an operator agrees with its matrix"),
    ("cdf", Falling, "levels rise within 0 and 1"),
    ("cdf", BeyondOne, "levels rise within 0 and 1"),
    ("cdf", Upside, "inverses rise near the values"),
    ("cdf", WithUnscaled, "a short flow comes nearer to the data"),
    ("cdf", WithUnscaled, "inverses rise near the values"),
    ("cdf", WithUnscaled, "transport agrees with sorting"),
    ("cdf", SortsInPlace, "answers have the dtype of the values and leave these alone"),
    ("condition", Squared, "products are linear in directions"),
    ("condition", OfTheWhole, "the product of a sample is its own"),
    ("condition", WrongGroups, "groups agree with products"),
    ("condition", seeing(lambda d: Creeping()), "an observation is an orthogonal projection"),
    ("condition", seeing(lambda d: Slipping(halves(d))), "the observed part never moves"),
    ("schedule", NeverStops, "an adaptive schedule stops"),
    ("schedule", Endless, "the plan ends"),
    ("schedule", TurnsAround, "step sizes are finite and not negative"),
    ("schedule", AnotherPlanEachTime, "answers follow from their keys"),
    ("schedule", AnotherPlanEachTime, "a resumed flow has the same bits"),
    ("coordinates", WrongTranspose, "a map is linear and has its inverse and transpose"),
    ("dataset", OutOfRange, "data are finite and labels fit their classes"),
    ("dataset", HeldOutOfRange, "data are finite and labels fit their classes"),
    ("dataset", OtherEachTime, "answers follow from their keys"),
    ("dataset", BetweenLevels, "pixels are grey levels"),
    ("metric", OrderMatters, "the order of samples does not matter"),
    ("metric", TreatsThemUnlike, "identical sets score best"),
    ("metric", LooksAtTheRealOnes, "identical sets score best"),
    ("metric", Spoils, "samples are left as they are"),
    ("observer", watching(Forgetful), "its state comes back from a checkpoint"),
    ("observer", watching(Pushing), "the flow is the same with it"),
    ("observer", watching(ClosedOnce), "it can be closed at any time"),
]
"""Kind, faulty plugin, and the check that has to fail."""

SOUND = [
    ("projection", Sphere),
    ("cdf", Steps),
    ("condition", Labels),
    ("condition", seeing(lambda d: Masked(halves(d)))),
    ("schedule", Once),
    ("dataset", Noise),
    ("metric", Means),
    ("observer", watching(Counting)),
]
"""What the faulty ones derive from."""
