"""Step sizes that are safe, flows that run away all the same, and vectors that directions do not see.

A step moves an error e of a distribution's mean by −η E[θθᵀ] e. Along the leading eigenvector of E[θθᵀ], with
eigenvalue λ, the error is multiplied by 1 − ηλ: it is gone in one step at η = 1/λ, and grows beyond 2/λ.
Isotropic directions in d dimensions have λ = 1/d, hence the paper's η = d; for others λ is estimated here, when
a stage begins. Where directions are uneven on purpose, no step is longer than 1/λ. Elsewhere a step is
shortened only if ηλ is near 2 or beyond, as borders and dilation can make it, with a warning.

H directions are an average and not the mean. With unit θ, E|e|² is multiplied along an eigenvector by
1 − 2ηλ + η²λ² + (ηλ/H)(η − ηλ), so that η has to stay below 2 / (λ + (1−λ)/H): with few directions that is less
than 2/λ. A flow whose steps grow all the same is stopped.

No step moves particles along a vector that is at right angles to all directions. So when a stage begins, a few
vectors from particles to data are reconstructed from what directions see of them: the rest is the blind share.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions, DirectionSampler
from cswf_core.flow.memory import batches
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Conditions, Key, NonlinearProjection

log = logging.getLogger("cswf")

POWER_ROUNDS = 9  # of the power iteration that estimates λ; the last third is averaged
FEWEST_DIRECTIONS = 1024  # of each of them
LARGEST_EXAMINED = 4096  # dimensions up to which a closer look is taken, and the blind share is computed
FEWEST_STEPS = 16  # steps from which on a stage's directions are examined: in fewer, errors do not grow far
MISTAKEN = 4.0  # ηλ beyond which a step size is a mistake, not a matter of uneven directions: it stays as it is
LARGEST_GROWTH = 8  # a step's length at η = 1, relative to the stage's shortest: steps should shrink
STEPS_PER_MEAN = 8  # steps whose mean length is compared: with few directions single steps vary much
VECTORS = 8  # vectors from particles to data that are reconstructed
GRADIENT_ROUNDS = 30  # by which vectors that directions see a thousandth as well are lost too


def largest_eigenvalue(
    sampler: DirectionSampler, key: Key, *, closely_above: float = math.inf, closely_below: float = math.inf
) -> float:
    """Estimate the largest eigenvalue λ of E[θθᵀ], θ = U t / ‖U t‖, by power iteration on fresh directions.

    In the stage's coordinates v ← E[s² t (t·Gv)], with s = 1/‖U t‖, and λ = E[(s t·Gv)²] / v·Gv. A round's
    directions are few, and v has noise in it: where other eigenvalues are nearly as large the estimate falls
    short by a tenth, and by a third at worst.

    An estimate in (`closely_above`, `closely_below`] is refined with more directions at once: their own largest
    eigenvalue is too large, and λ as fresh directions estimate it along its eigenvector too small; half-way is
    right within some hundredths.
    """
    d = sampler.coordinates.space.dimension
    count = min(max(4 * d, FEWEST_DIRECTIONS), 8192)

    def drawn(number: int) -> Iterator[Directions]:
        return _drawn(sampler, attrs.evolve(key, step=number), count)

    def iterated(v: Tensor, number: int) -> tuple[Tensor, float]:
        """Return E[s² t (t·Gv)], but for a factor, and λ as it is along v."""
        Gv = _gram(sampler, v)
        image, squares = _applied(drawn(number), Gv)
        return image, float(squares / (v * Gv).sum())

    v = key.open(sampler.like.device, sampler.like.dtype).normal(d, 1)
    estimates: list[float] = []
    for number in range(POWER_ROUNDS):
        v, estimate = iterated(v, number)
        v = v / torch.linalg.vector_norm(v)
        estimates.append(estimate)
    averaged = POWER_ROUNDS // 3
    first = sum(estimates[-averaged:]) / averaged
    if not closely_above < first <= closely_below or d > LARGEST_EXAMINED:
        return max(first, 1 / d)
    last = POWER_ROUNDS + 8  # rounds whose directions are gathered
    moments = _second_moments(sampler, (part for number in range(POWER_ROUNDS, last) for part in drawn(number)))
    for _ in range(100):
        v = moments @ _gram(sampler, v)
        v = v / torch.linalg.vector_norm(v)
    Gv = _gram(sampler, v)
    above = float((Gv * (moments @ Gv)).sum() / (v * Gv).sum())
    below = sum(iterated(v, last + number)[1] for number in range(averaged)) / averaged
    return max(first, (above + below) / 2, 1 / d)


def largest_eigenvalue_of(directions: Sequence[Directions], sampler: DirectionSampler, cloud: Cloud) -> float:
    """Estimate the largest eigenvalue of 1/H Σ w θθᵀ over the directions of a step, by power iteration."""
    d = sampler.coordinates.space.dimension
    H = sum(batch.count for batch in directions)
    curved = any(isinstance(batch.projection, NonlinearProjection) for batch in directions)
    # Nonlinear slices have gradients for θ, which depend on the particle: then it is the largest of a few. The
    # first particles are on rank 0, whatever the number of ranks.
    few = Cloud(cloud.z[:, : 16 if curved else 1].contiguous(), Conditions())
    v = Key(0, "eigenvector").open(sampler.like.device, sampler.like.dtype).normal(d, few.z.shape[1])
    estimate = sampler.like.new_zeros(1)
    for _ in range(POWER_ROUNDS):
        v = v / torch.linalg.vector_norm(v, dim=0).clamp_min(torch.finfo(v.dtype).tiny)
        Gv = _gram(sampler, v)
        total = torch.zeros_like(v)
        for batch in directions:
            total += batch.adjoint(_slopes(batch, few.z, Gv), few)
        estimate = (Gv * total).sum(dim=0) / (v * Gv).sum(dim=0) / H
        v = total
    return max(float(estimate.max()), 1 / d)


def _slopes(batch: Directions, z: Tensor, v: Tensor) -> Tensor:
    """Return how projections change along v (d_k×n), which is θ·v; of nonlinear slices, at z: H×n."""
    project = batch.projection.project
    if isinstance(batch.projection, NonlinearProjection):
        h = 1e-3 * (1 + float(torch.linalg.vector_norm(z, dim=0).mean()))
        slopes = (project(z + h * v) - project(z - h * v)) / (2 * h)
    else:
        slopes = project(v.contiguous())
    return slopes if batch.scale is None else slopes * batch.scale


def _gram(sampler: DirectionSampler, v: Tensor) -> Tensor:
    """Return G v = UᵀU v: d_k×1."""
    upsampling = sampler.coordinates.upsampling
    return v if upsampling is None else upsampling.gram(v)


def _drawn(sampler: DirectionSampler, key: Key, count: int) -> Iterator[Directions]:
    """Yield `count` directions s t with s = 1/‖U t‖, batch by batch."""
    for index, size in batches(count, sampler.together):
        yield sampler.filters(attrs.evolve(key, index=index), size, check=False)


def _applied(drawn: Iterable[Directions], v: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ w s² t (t·v) over directions (d_k×n), and the mean of their w (s t·v)² (a scalar)."""
    count = 0
    total = torch.zeros_like(v)
    squares = v.new_zeros(())
    cloud = Cloud(v, Conditions())
    for theta in drawn:
        values = theta.project(cloud)
        total += theta.adjoint(values, cloud)
        squares += theta.weighted_root(values).square().sum()
        count += theta.count
    return total, squares / count


def _second_moments(sampler: DirectionSampler, drawn: Iterable[Directions]) -> Tensor:
    """Return the mean of w s² t tᵀ over directions: d_k×d_k."""
    d = sampler.coordinates.space.dimension
    count = 0
    total = sampler.like.new_zeros(d, d)
    for theta in drawn:
        t = theta.projection.dense()
        t = theta.weighted_root(t if theta.scale is None else t * theta.scale)
        total.addmm_(t.T, t)
        count += len(t)
    return total / count


@attrs.frozen
class SafeStep:
    """What is known of a stage's directions when it begins, and what follows for its steps."""

    eigenvalue: float
    """λ of E[θ_x θ_xᵀ], estimated; of 1/H Σ θ_x θ_xᵀ where directions are fixed."""
    factor: float = 1.0
    """The factor by which the stage's step sizes are multiplied."""
    fixed: bool = False
    """Whether the same directions serve many steps."""

    def limit(self, directions: int) -> float:
        """Return the η below which errors are sure to fade: 2 / (λ + (1−λ)/H), or 2/λ for fixed directions."""
        noise = 0.0 if self.fixed else (1 - self.eigenvalue) / directions
        return 2 / (self.eigenvalue + noise)


def safe_step(sampler: DirectionSampler, key: Key, *, reuse: int | None = 1) -> SafeStep:
    """Estimate λ of a stage's directions, and by how much its steps have to be shortened.

    Where H directions serve many steps, their errors do not average out: for isotropic ones in d dimensions the
    largest eigenvalue of 1/H Σ θθᵀ is about (1 + √(d/H))² times that of E[θθᵀ].
    """
    fixed = reuse is None or reuse >= 8  # steps in a row
    stage = sampler.stage
    d = sampler.coordinates.space.dimension
    H = stage.directions
    some = range(0, stage.steps, 1 + stage.steps // 256)
    eta = max([stage.step_size, *map(stage.eta, some)])
    if stage.steps == 0 or eta <= 0 or sampler.measured_later:
        return SafeStep(1 / d)
    excess = (1 + math.sqrt(d / H)) ** 2 if fixed else 1.0
    # Up to half of what the most uneven directions allow, λ is not estimated, which takes seconds
    if eta <= 0.5 * longest_step(excess, d, H, fixed=fixed):  # λ of unit directions is at most 1
        return SafeStep(excess / d, fixed=fixed)
    if sampler.sampler.tempered or stage.tempered:
        eigenvalue = excess * largest_eigenvalue(sampler, key)
        return SafeStep(eigenvalue, min(1.0, longest_step(eigenvalue, d, H, fixed=fixed) / eta), fixed)
    same = attrs.evolve(key, seed=0)  # whether a stage is shortened should not depend on the run's seed
    share = excess * sampler.mean_square_length(attrs.evolve(same, role="weights"))
    eigenvalue = share / d  # of even directions
    if stage.steps >= FEWEST_STEPS and not _is_even(sampler):
        # The first rounds may fall short by a third
        near = 1.3 / (eta * share)
        mistaken = MISTAKEN * excess / (eta * share)
        eigenvalue = share * largest_eigenvalue(sampler, same, closely_above=near, closely_below=mistaken)
    # The closer estimate may fall short by some hundredths of 2
    if eta * eigenvalue <= 1.85 or eta * eigenvalue / excess > MISTAKEN:
        return SafeStep(eigenvalue, fixed=fixed)
    factor = min(1.0, longest_step(eigenvalue, d, H, fixed=fixed) / eta)
    log.warning(
        f"stage {stage.name or 'of the schedule'}: steps of {eta:g} are too long, or nearly so, along the "
        f"directions {'that serve many steps' if fixed else 'drawn most'} (step size times largest "
        f"eigenvalue is {eta * eigenvalue:.2f}, and errors grow from 2 on); they are taken {factor:.2f} times "
        "as long. A projection that is uneven on purpose says so: tempered = True in its class"
    )
    return SafeStep(eigenvalue, factor, fixed)


def longest_step(eigenvalue: float, dimension: int, directions: int, *, fixed: bool = False) -> float:
    """Return the step size that λ allows: 1/λ, or less if H is small against d; see `SafeStep` for λ."""
    # At most three quarters of the limit 2 / (λ (1 + (d−1)/H)).
    few = 1.0 if fixed else min(1.0, 2 * 0.75 / (1 + (dimension - 1) / directions))
    return few / eigenvalue


def _is_even(sampler: DirectionSampler) -> bool:
    """Return whether a stage's directions are known to be isotropic."""
    return sampler.sampler.isotropic and sampler.stage.upsampling is None


class StepControl:
    """Shortens the steps of a stage, and stops a flow that runs away."""

    def __init__(self, settings: Settings, size: float, safe: SafeStep) -> None:
        """`size` is the mean length of the data and particles."""
        self._settings = settings
        self._size = size
        self.safe = safe
        self.reset()

    def reset(self) -> None:
        """Discard the lengths of steps so far: they may become longer again."""
        self._lengths: list[Tensor] = []  # at η = 1, in no mean yet
        self._means: tuple[Tensor, Tensor] | None = None  # of several steps: the last, and the least

    def record(self, length: Tensor, step: int, eta: float) -> None:
        """Record a step's mean length, a scalar that stays on its device.

        Only steps along fresh directions are recorded: these should not grow.
        """
        reuse = self._settings.reuse
        if eta <= 0 or (reuse is not None and step % reuse != 0):
            return
        self._lengths.append(length.detach() / eta)
        if len(self._lengths) == STEPS_PER_MEAN:
            last = sum(self._lengths[1:], self._lengths[0]) / STEPS_PER_MEAN
            self._means = (last, last if self._means is None else torch.minimum(self._means[1], last))
            self._lengths = []

    def growth(self) -> float:
        """Return how many times as long as at their shortest steps are now; reads from the device."""
        if self._means is None:
            return 1.0
        last, least = self._means
        return float(last / least.clamp_min(torch.finfo(least.dtype).tiny))

    def check(self, number: int, moved: float, eta: float, H: int) -> None:
        """Raise `RunError` if step `number` of a flow has a mean length out of proportion, or steps grow."""
        limit = self.safe.limit(H)
        far = moved > 30 * (self._size + 1)  # the size of data and first particles
        # Well below the limit, steps do not grow for being too long; and where they are short, growth is noise
        long = eta > 0.5 * limit and moved > 1 / 50 * self._size
        growth = self.growth()
        if not far and not (long and growth > LARGEST_GROWTH):
            return
        grown = "" if far else f", and steps are {growth:.3g} times as long as earlier in this stage"
        called = self._settings.called
        raise RunError(
            f"the flow ran away: step {number} moved particles by {moved:.3g} on average{grown}. With "
            f"{H:,} directions, and a largest eigenvalue of about {self.safe.eigenvalue:.3g} of their second "
            f"moments, a step size of {eta:g} is too large. A projection that is uneven on purpose says so in "
            "its class, tempered = True, and then no step is longer than its directions allow; otherwise take "
            f"more {called('directions')} or a smaller {called('step size')}, well below {min(limit, eta):.3g}"
        )


def _blind_share(drawn: Sequence[Directions], way: Tensor) -> float:
    """Return the share of vectors (d_k×n) that directions do not see, or next to nothing of: 0 … 1."""
    whole = float(way.square().sum())
    rest = way  # what has not been reconstructed yet
    gradient, _ = _applied(drawn, rest)
    step = gradient
    size = gradient.square().sum(dim=0)
    tiny = torch.finfo(way.dtype).tiny
    lost = size * torch.finfo(way.dtype).eps ** 1.5  # below it are rounding errors, along which steps diverge
    for _ in range(GRADIENT_ROUNDS):
        image, _ = _applied(drawn, step)
        length = size / (step * image).sum(dim=0).clamp_min(tiny)
        length = torch.where(size > lost, length, 0)
        rest = rest - length * step
        if float(rest.square().sum()) <= 1e-4 * whole:  # negligible
            break
        gradient = gradient - length * image
        new = gradient.square().sum(dim=0)
        step = gradient + new / size.clamp_min(tiny) * step
        size = new
    return float(rest.square().sum()) / whole if whole else 0.0


def spread(x: Tensor, count: int) -> Tensor:
    """Return some samples, evenly spread over all: d×n → d×count, or fewer."""
    few = min(count, x.shape[1])
    return x[:, torch.arange(few, device=x.device) * x.shape[1] // max(1, few)]


def report_spectrum(
    sampler: DirectionSampler, key: Key, particles: Tensor, x: Tensor, eigenvalue: float
) -> None:
    """Warn if directions do not see a part of the way from particles (d_k×n) to data (d×n), or unevenly."""
    d = sampler.coordinates.space.dimension
    stage = sampler.stage
    n = min(VECTORS, particles.shape[1], x.shape[1])
    small = stage.steps < FEWEST_STEPS or n == 0
    if small or d > LARGEST_EXAMINED or _is_even(sampler) or sampler.measured_later:
        return
    data = sampler.coordinates.enter_data(spread(x, n))
    particles = spread(particles, n)
    mean = data.mean(dim=1, keepdim=True) - particles.mean(dim=1, keepdim=True)
    drawn = list(_drawn(sampler, key, max(2 * d, 256)))
    share = _blind_share(drawn, torch.cat([data - particles, mean], dim=1))
    uneven = eigenvalue * d
    name = stage.name or "of the schedule"
    owner = sampler.sampler.owner
    log.info(f"stage {name}: blind share {share:.2g}, λ·d = {uneven:.3g}")
    if share > 0.01:
        log.warning(
            f"stage {name}: {owner} does not see {share:.2g} of the way from particles to data (in squared "
            "length), and this part stays as it is whatever the number of steps: its directions do not span "
            "the space, or hardly. Mix them with others that see all of it; cswf plugins check shows what they "
            "see"
        )
    if uneven > 8.0 and not (sampler.sampler.tempered or stage.tempered):
        log.warning(
            f"stage {name}: {owner} sees some vectors much better than others (λ of E[θθᵀ] is "
            f"{eigenvalue:.3g}, {uneven:.3g} times that of even directions): steps that suit the one are too "
            "short for the others. If that is on purpose, say so in its class, tempered = True: then no step "
            "is longer than 1/λ"
        )
