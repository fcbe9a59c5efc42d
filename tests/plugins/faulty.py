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
    Projection,
    ProjectionSampler,
    ProjectionWrapper,
    Result,
    Schedule,
    Space,
    Stage,
)


@attrs.frozen
class Sphere(ProjectionSampler):
    """Uniform directions, from which faulty ones derive, with names that are words of their own."""

    reference = "Muller 1959"
    adapt = condition = None

    def sample(self, space, count, draw):
        return draw.sphere(count, space.dimension)


@attrs.frozen
class StrayNumbers(Sphere):
    def sample(self, space, count, draw):
        theta = torch.randn(count, space.dimension, dtype=draw.dtype, device=draw.device)
        return theta / theta.norm(dim=1, keepdim=True)


@attrs.frozen
class Seeding(Sphere):
    def sample(self, space, count, draw):
        np.random.seed(0)
        return super().sample(space, count, draw)


@attrs.frozen
class Misspelt(Sphere):
    tempred = True


@attrs.frozen(kw_only=True)
class MisspeltAroundAnother(ProjectionWrapper):
    of: ProjectionSampler = Sphere()

    def sample(self, space, count, draw):
        return self.inner(space, count, draw)

    def fited(self, space, z):
        return self


@attrs.frozen
class CitesInWords(Sphere):
    references = ("Du et al., ICML 2023",)


@attrs.frozen
class TooLong(Sphere):
    def sample(self, space, count, draw):
        return super().sample(space, count, draw) * 1.0001


@attrs.frozen
class NowAndThenNothing(Sphere):
    def sample(self, space, count, draw):
        theta = super().sample(space, count, draw)
        return torch.where(draw.uniform(count, 1) < 0.003, torch.nan, theta)


@attrs.frozen
class BlindToBrightness(Sphere):
    def sample(self, space, count, draw):
        if space.dimension == 1:
            return draw.sphere(count, 1)
        theta = super().sample(space, count, draw)
        theta = theta - theta.mean(dim=1, keepdim=True)
        return theta / theta.norm(dim=1, keepdim=True)


@attrs.frozen
class OnlyRows(Sphere):
    """Mixes up rows and columns, which shows where a grid is not square."""

    def sample(self, space, count, draw):
        channels, height, width = space.grid("projection 'only-rows'")
        theta = super().sample(space, count, draw).reshape(count, channels, height, width)
        return (theta + 0 * theta.transpose(2, 3)).reshape(count, -1)


@attrs.frozen
class WithGradients(Sphere):
    def sample(self, space, count, draw):
        return super().sample(space, count, draw).requires_grad_()


@attrs.frozen
class Float32Always(Sphere):
    def sample(self, space, count, draw):
        return super().sample(space, count, draw).float()


@attrs.frozen
class CpuAlways(Sphere):
    def sample(self, space, count, draw):
        theta = torch.zeros(count, space.dimension, dtype=draw.dtype)
        theta[:, 0] = 1
        return theta


@attrs.frozen
class NeedsImagesSilently(Sphere):
    def sample(self, space, count, draw):
        _channels, _height, _width = space.shape
        return super().sample(space, count, draw)


@attrs.frozen
class TheSameInEveryBatch(Sphere):
    def sample(self, space, count, draw):
        fixed = attrs.evolve(draw.key, index=0, step=0).open(draw.device, draw.dtype)
        return super().sample(space, count, fixed)


@attrs.frozen(eq=False)
class Remembering(Sphere):
    calls: int = attrs.field(default=0, init=False)

    def sample(self, space, count, draw):
        object.__setattr__(self, "calls", self.calls + 1)
        theta = super().sample(space, count, draw)
        return theta.roll(self.calls, dims=1)


@attrs.frozen
class FalselyIsotropic(Sphere):
    isotropic = True

    def sample(self, space, count, draw):
        theta = super().sample(space, count, draw)
        theta[:, 0] *= 4
        return theta / theta.norm(dim=1, keepdim=True)


class Transposed(Projection):
    def __init__(self, theta):
        self.theta = theta

    @property
    def shape(self):
        return tuple(self.theta.shape)

    def project(self, x):
        return self.theta @ x

    def adjoint(self, a):
        return self.theta.T @ a * 1.0005  # below what the engine notices

    def dense(self):
        return self.theta


@attrs.frozen
class WrongAdjoint(Sphere):
    def sample(self, space, count, draw):
        return Transposed(super().sample(space, count, draw))


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


class Falling(Ranks):
    def cdf(self, z):
        level = super().cdf(z)
        return torch.where(level > 0.9, level - 0.05, level)


class BeyondOne(Ranks):
    def cdf(self, z):
        return super().cdf(z) * 1.01


class Upside(Ranks):
    def icdf(self, a):
        return super().icdf(1 - a)


class Unscaled(Ranks):
    def __init__(self, values):
        super().__init__((values - values.mean(dim=1, keepdim=True)) / values.std(dim=1, keepdim=True))


def with_fit(fitted):
    @attrs.frozen
    class Faulty(Steps):
        def fit(self, values):
            return fitted(values)

    return Faulty


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


@attrs.frozen
class Squared(Labels):
    def project(self, theta_y, conditions):
        return super().project(theta_y, conditions).square()


@attrs.frozen
class OfTheWhole(Labels):
    def project(self, theta_y, conditions):
        products = super().project(theta_y, conditions)
        return products - products.mean(dim=1, keepdim=True)


@attrs.frozen
class WrongGroups(Labels):
    def groups(self, conditions):
        present, index = torch.unique(conditions.labels, return_inverse=True)
        return index.flip(0), Conditions(labels=present)


class Creeping(Observation):
    """Half of the coordinates are seen, with a thousandth of the others."""

    def seen(self, x):
        half = len(x) // 2
        return torch.cat([x[:half] + 1e-4 * x[half : 2 * half], torch.zeros_like(x[half:])])


class Slipping(Masked):
    """A mask whose free part is not the rest of what is seen, by less than the engine notices."""

    def free(self, x):
        return super().free(x) + 1e-4 * self.seen(x)


def seeing(observation):
    @attrs.frozen
    class Seeing(ConditionEncoder):
        amplifier: float = 1.0

        def length(self, data):
            return 0

        def project(self, theta_y, conditions):
            return torch.zeros(len(theta_y), len(conditions), dtype=theta_y.dtype)

        def draw(self, data, count, draw):
            return Conditions(origin=draw.integers(len(data), count))

        def observation(self, data, conditions, draw):
            return observation(data.space.dimension)

    return Seeing


@attrs.frozen
class Once(Schedule):
    """Four steps, from which faulty schedules derive."""

    def stages(self, space, projection):
        return [Stage(steps=4, directions=256, step_size=float(min(space.dimension, 64)))]


@attrs.frozen
class NeverStops(Once):
    adaptive = True

    def stop(self, stage, distances):
        return False


@attrs.frozen
class Endless(Once):
    def stages(self, space, projection):
        return [attrs.evolve(stage, steps=10**12) for stage in super().stages(space, projection)]


@attrs.frozen(eq=False)
class Backwards(Stage):
    def eta(self, step):
        return self.step_size * (1 if step < 3 else -1)


@attrs.frozen
class TurnsAround(Once):
    def stages(self, space, projection):
        return [Backwards(steps=4, directions=256, step_size=6.0)]


@attrs.frozen
class AnotherPlanEachTime(Once):
    def stages(self, space, projection):
        (stage,) = super().stages(space, projection)
        return [attrs.evolve(stage, step_size=stage.step_size * float(0.5 + np.random.rand() / 2))]


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


@attrs.frozen
class WrongTranspose(Coordinates):
    def fit(self, space, x):
        return Halved(0.5)


@attrs.frozen
class Noise(DatasetSource):
    """Random images, from which faulty data derive."""

    def load(self, draw):
        return Dataset(draw.uniform(16, 40) * 1.9 - 0.95, Space((1, 4, 4)))


@attrs.frozen
class OutOfRange(Noise):
    def load(self, draw):
        return Dataset(draw.uniform(16, 40) * 255, Space((1, 4, 4)))


@attrs.frozen
class OtherEachTime(Noise):
    def load(self, draw):
        return Dataset(torch.rand(16, 40), Space((1, 4, 4)))


@attrs.frozen
class BetweenLevels(Noise):
    def load(self, draw):
        return attrs.evolve(super().load(draw), bin_width=1 / 128)


@attrs.frozen
class Means(Metric):
    """The distance of the means, from which faulty metrics derive."""

    better = "lower"

    def compute(self, comparison):
        return self._result(comparison.generated.x, comparison.real.x)

    def _result(self, p, q):
        scores = {"means": p.mean(dim=1) - q.mean(dim=1), "means_from_zero": q.mean(dim=1)}
        return Result({name: float(d.norm()) for name, d in scores.items()}, "distance of the means")


@attrs.frozen
class OrderMatters(Means):
    def compute(self, comparison):
        return self._result(comparison.generated.x[:, :10], comparison.real.x)


@attrs.frozen
class TreatsThemUnlike(Means):
    def compute(self, comparison):
        return self._result(comparison.generated.x * 127.5 + 127.5, comparison.real.x)


@attrs.frozen
class LooksAtTheRealOnes(Means):
    def compute(self, comparison):
        return self._result(comparison.real.x, comparison.real.x)


@attrs.frozen
class Spoils(Means):
    def compute(self, comparison):
        comparison.generated.x.clamp_(-0.5, 0.5)
        return super().compute(comparison)


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
    @attrs.frozen
    class Watching(Observer):
        def watch(self, folder):
            return watcher()

    return Watching


def halves(d):
    mask = torch.zeros(d, dtype=torch.bool)
    mask[: d // 2] = True
    return mask


FAULTS = [
    ("projection", StrayNumbers, "global generators are left alone"),
    ("projection", StrayNumbers, "global seeds change nothing"),
    ("projection", StrayNumbers, "directions follow from their key"),
    ("projection", StrayNumbers, "a saved model retraces the flow"),
    ("projection", StrayNumbers, "a resumed flow has the same bits"),
    ("projection", Seeding, "global generators are left alone"),
    ("projection", Misspelt, "no name is a misspelling"),
    ("projection", MisspeltAroundAnother, "no name is a misspelling"),
    ("projection", CitesInWords, "references are bibtex entries"),
    ("projection", TooLong, "directions have unit length"),
    ("projection", NowAndThenNothing, "directions are finite"),
    ("projection", BlindToBrightness, "directions span the space"),
    ("projection", OnlyRows, "oblong images are taken"),
    ("projection", WithGradients, "directions do not require grad"),
    ("projection", Float32Always, "numbers are those of the draw"),
    ("projection", CpuAlways, "the device is that of the draw"),
    ("projection", CpuAlways, "a short flow comes nearer to the data"),
    ("projection", NeedsImagesSilently, "points are taken"),
    ("projection", TheSameInEveryBatch, "batches of a step differ"),
    ("projection", Remembering, "earlier draws change nothing"),
    ("projection", FalselyIsotropic, "directions span the space"),
    ("projection", WrongAdjoint, "an operator agrees with its matrix"),
    ("cdf", with_fit(Falling), "a cdf never falls"),
    ("cdf", with_fit(BeyondOne), "a cdf stays within 0 and 1"),
    ("cdf", with_fit(Upside), "an inverse never falls"),
    ("cdf", with_fit(Unscaled), "a short flow comes nearer to the data"),
    ("cdf", with_fit(Unscaled), "an inverse stays near the values"),
    ("cdf", with_fit(Unscaled), "transport agrees with sorting"),
    ("cdf", SortsInPlace, "values are left as they are"),
    ("condition", Squared, "products are linear in directions"),
    ("condition", OfTheWhole, "the product of a sample is its own"),
    ("condition", WrongGroups, "groups agree with products"),
    ("condition", seeing(lambda d: Creeping()), "an observation is an orthogonal projection"),
    ("condition", seeing(lambda d: Slipping(halves(d))), "the observed part never moves"),
    ("schedule", NeverStops, "an adaptive schedule stops"),
    ("schedule", Endless, "the plan ends"),
    ("schedule", TurnsAround, "step sizes are finite and not negative"),
    ("schedule", AnotherPlanEachTime, "the same stages come again"),
    ("schedule", AnotherPlanEachTime, "a resumed flow has the same bits"),
    ("coordinates", WrongTranspose, "the adjoint is the transpose"),
    ("dataset", OutOfRange, "pixels lie in their range"),
    ("dataset", OtherEachTime, "data follow from their key"),
    ("dataset", BetweenLevels, "pixels are grey levels"),
    ("metric", OrderMatters, "the order of generated samples does not matter"),
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
