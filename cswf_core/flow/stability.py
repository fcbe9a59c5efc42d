"""Step sizes that are safe, and flows that run away all the same.

A step moves an error e of a distribution's mean by −η E[θθᵀ] e. Along the leading eigenvector of E[θθᵀ], with
eigenvalue λ, the error is multiplied by 1 − ηλ: it is gone in one step at η = 1/λ, and grows beyond 2/λ.
Isotropic directions in d dimensions have λ = 1/d, hence the paper's η = d; for others λ is estimated here, when
a stage begins. Where directions are uneven on purpose, no step is longer than 1/λ. Elsewhere a step is
shortened only if ηλ is near 2 or beyond, as borders and dilation can make it, and the run says so.

H directions are an average and not the mean. With unit θ, E|e|² is multiplied along an eigenvector by
1 − 2ηλ + η²λ² + (ηλ/H)(η − ηλ), so that η has to stay below 2 / (λ + (1−λ)/H): with few directions that is less
than 2/λ. A flow whose steps grow all the same is stopped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.directions import Directions, DirectionSampler
from cswf_core.flow.memory import batches
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Conditions, Key, NonlinearProjection, Projection, Space, Stage

log = logging.getLogger("cswf")

ROUNDS = 9
"""Rounds of the power iteration; the last third is averaged."""

GATHERED = 8
"""Rounds whose directions are gathered for a closer look."""

ITERATIONS = 100
"""Power iterations on those."""

PER_DIMENSION = 4
"""Directions drawn in a round, for each dimension of the stage."""

FEWEST, MOST = 1024, 8192
"""Bounds on the directions drawn in a round."""

MARGIN = 0.75
"""How close to the limit 2 / (λ (1 + (d−1)/H)) a step may come."""

LOOK_CLOSER = 1.3
"""From this ηλ on, as the first rounds estimate it, others follow: the first may fall short by a third."""

FEW = 16
"""Steps from which on a stage's λ is estimated: in fewer, uneven directions do not let errors grow far."""

LOOKED_AT = 256
"""Steps of a stage whose η is looked at, for the longest."""

SLOW = 0.5
"""Steps of this share of what the most uneven directions allow are safe, and λ is not estimated: for a stage of
thousands of dimensions that takes seconds."""

NEAR = 1.85
"""From this ηλ on steps are shortened: the estimate may fall short by some hundredths of 2."""

MISTAKEN = 4.0
"""Beyond this ηλ a step size is no matter of uneven directions but a mistake: it is left to run away."""

RUNAWAY = 30
"""A step is taken for a runaway if it is this many times as long as data and first particles are."""

GROWN = 8
"""So many times as long as a stage's shortest steps, at the same η, is too long: steps become shorter."""

AVERAGED = 8
"""Steps whose mean length is compared: with few directions single steps vary much."""

GROWS_FROM = 0.5
"""Share of the limit on η below which steps do not grow for being too long, whatever their lengths are."""

FIXED_FROM = 8
"""Steps in a row from which on directions that serve them all count as fixed."""

LARGEST_MATRIX = 4096
"""Dimensions up to which a closer look is taken: it needs a matrix of second moments."""

PROBED = 16
"""Particles at which gradients of nonlinear slices are looked at."""

DIFFERENCE = 1e-3
"""The distance over which slopes are measured, in parts of a particle's length."""

FEW_DIRECTIONS = 4
"""A run warns if d exceeds this multiple of H: a step then removes less than a fifth of the squared error."""

NOTICEABLE = 1 / 50
"""Steps shorter than this share of the data's mean length may grow: that is noise."""


def largest_eigenvalue(
    sampler: DirectionSampler, key: Key, *, closely_above: float = math.inf, closely_below: float = math.inf
) -> float:
    """Estimate the largest eigenvalue λ of E[θθᵀ], θ = U t / ‖U t‖, by power iteration on fresh directions.

    In the stage's coordinates v ← E[s² t (t·Gv)], with s = 1/‖U t‖, and λ = E[(s t·Gv)²] / v·Gv. A round's
    directions are few, and v has noise in it: where other eigenvalues are nearly as large the estimate falls
    short by a tenth, and by a third at worst.

    An estimate between `closely_above` and `closely_below` is looked at again with more directions at once:
    their own largest eigenvalue is too large, and λ as fresh directions estimate it along its eigenvector too
    small; half-way is right within some hundredths.
    """
    d, like = sampler.coordinates.space.dimension, sampler.like
    v = key.open(like.device, like.dtype).normal(d, 1)
    estimates: list[float] = []
    for number in range(ROUNDS):
        v, estimate = _round(sampler, attrs.evolve(key, step=number), v)
        v = v / torch.linalg.vector_norm(v)
        estimates.append(float(estimate))
    first = sum(estimates[-(ROUNDS // 3) :]) / (ROUNDS // 3)
    if not closely_above < first <= closely_below or d > LARGEST_MATRIX:
        return max(first, 1 / d)
    moments = _second_moments(sampler, [attrs.evolve(key, step=ROUNDS + number) for number in range(GATHERED)])
    for _ in range(ITERATIONS):
        v = moments @ _gram(sampler, v)
        v = v / torch.linalg.vector_norm(v)
    Gv = _gram(sampler, v)
    above = float((Gv * (moments @ Gv)).sum() / (v * Gv).sum())
    fresh = [attrs.evolve(key, step=ROUNDS + GATHERED + number) for number in range(ROUNDS // 3)]
    below = sum(float(_round(sampler, each, v)[1]) for each in fresh) / len(fresh)
    return max(first, (above + below) / 2, 1 / d)


def largest_eigenvalue_of(directions: Sequence[Directions], sampler: DirectionSampler, cloud: Cloud) -> float:
    """Estimate the largest eigenvalue of 1/H Σ w θθᵀ over the directions of a step, by power iteration.

    Nonlinear slices have gradients for θ, which depend on the particle: then it is the largest of a few.
    """
    d, like, H = sampler.coordinates.space.dimension, sampler.like, sum(batch.count for batch in directions)
    curved = any(isinstance(batch.projection, NonlinearProjection) for batch in directions)
    # The first particles are on rank 0, whatever the number of ranks.
    few = Cloud(cloud.z[:, : PROBED if curved else 1].contiguous(), Conditions())
    v = Key(0, "eigenvector").open(like.device, like.dtype).normal(d, few.z.shape[1])
    estimate = like.new_zeros(1)
    for _ in range(ROUNDS):
        v = v / torch.linalg.vector_norm(v, dim=0).clamp_min(torch.finfo(v.dtype).tiny)
        Gv, total = _gram(sampler, v), torch.zeros_like(v)
        for batch in directions:
            total += batch.adjoint(_slopes(batch, few.z, Gv), few)
        estimate = (Gv * total).sum(dim=0) / (v * Gv).sum(dim=0) / H
        v = total
    return max(float(estimate.max()), 1 / d)


def _slopes(batch: Directions, z: Tensor, v: Tensor) -> Tensor:
    """Return how projections change along v (d_k×n), which is θ·v; of nonlinear slices, at z: H×n."""
    if isinstance(batch.projection, NonlinearProjection):
        h = DIFFERENCE * (1 + float(torch.linalg.vector_norm(z, dim=0).mean()))
        meets = (batch.projection.project(z + h * v) - batch.projection.project(z - h * v)) / (2 * h)
    else:
        meets = batch.projection.project(v.contiguous())
    return meets if batch.scale is None else meets * batch.scale


def _gram(sampler: DirectionSampler, v: Tensor) -> Tensor:
    """Return G v = UᵀU v: d_k×1."""
    upsampling = sampler.coordinates.upsampling
    return v if upsampling is None else upsampling.gram(v)


def _filters(sampler: DirectionSampler, key: Key) -> Iterator[tuple[Projection, Tensor | None]]:
    """Yield the filters t of a round, and s = 1/‖U t‖ (T×1; None is 1), batch by batch."""
    count = min(max(PER_DIMENSION * sampler.coordinates.space.dimension, FEWEST), MOST)
    for index, size in batches(count, sampler.together):
        yield sampler.filters(attrs.evolve(key, index=index), size, check=False)


def _round(sampler: DirectionSampler, key: Key, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ w s² t (t·Gv) over fresh directions (d_k×1), and the estimate of λ that v gives (a scalar)."""
    Gv, count = _gram(sampler, v), 0
    total, squares = torch.zeros_like(v), torch.zeros((), dtype=v.dtype, device=v.device)
    for filters, scale in _filters(sampler, key):
        meets = filters.project(Gv)
        meets = meets if scale is None else meets * scale
        meets = meets if filters.weights is None else meets * filters.weights[:, None].sqrt()
        back = meets if scale is None else meets * scale
        total += filters.adjoint(back if filters.weights is None else back * filters.weights[:, None].sqrt())
        squares += meets.square().sum()
        count += len(meets)
    return total, squares / count / (v * Gv).sum()


def _second_moments(sampler: DirectionSampler, keys: Sequence[Key]) -> Tensor:
    """Return the mean of w s² t tᵀ over the directions of several rounds: d_k×d_k."""
    d, like, count = sampler.coordinates.space.dimension, sampler.like, 0
    total = torch.zeros(d, d, dtype=like.dtype, device=like.device)
    for key in keys:
        for filters, scale in _filters(sampler, key):
            t = filters.dense() if scale is None else filters.dense() * scale
            t = t if filters.weights is None else t * filters.weights[:, None].sqrt()
            total.addmm_(t.T, t)
            count += len(t)
    return total / count


@attrs.frozen
class SafeStep:
    """What is known of a stage's directions when it begins, and what follows for its steps."""

    eigenvalue: float
    """λ of E[θ_x θ_xᵀ], estimated; of 1/H Σ θ_x θ_xᵀ where directions are fixed."""
    factor: float = 1.0
    """What the stage's step sizes are multiplied with."""
    fixed: bool = False
    """Whether the same directions serve many steps."""

    def limit(self, directions: int) -> float:
        """Return the η below which errors are sure to fade: 2 / (λ + (1−λ)/H), or 2/λ for fixed directions."""
        noise = 0.0 if self.fixed else (1 - self.eigenvalue) / directions
        return 2 / (self.eigenvalue + noise)


def safe_step(sampler: DirectionSampler, key: Key, *, fixed: bool = False) -> SafeStep:
    """Estimate λ of a stage's directions, and by how much its steps have to be shortened.

    Where H directions are `fixed` for many steps, their errors do not average out: for isotropic ones in d
    dimensions the largest eigenvalue of 1/H Σ θθᵀ is about (1 + √(d/H))² times that of E[θθᵀ].
    """
    stage = sampler.stage
    d, H = sampler.coordinates.space.dimension, stage.directions
    some = range(0, stage.steps, 1 + stage.steps // LOOKED_AT)
    eta = max([stage.step_size, *map(stage.eta, some)])
    if stage.steps == 0 or eta <= 0 or sampler.measured_later:
        return SafeStep(1 / d)
    spread = (1 + math.sqrt(d / H)) ** 2 if fixed else 1.0
    if eta <= SLOW * longest_step(spread, d, H, fixed=fixed):  # λ of unit directions is at most 1
        return SafeStep(spread / d, fixed=fixed)
    if sampler.sampler.tempered or stage.tempered:
        eigenvalue = spread * largest_eigenvalue(sampler, key)
        return SafeStep(eigenvalue, min(1.0, longest_step(eigenvalue, d, H, fixed=fixed) / eta), fixed)
    same = attrs.evolve(key, seed=0)  # whether a stage is shortened should not depend on the run's seed
    share = spread * sampler.mean_square_length(attrs.evolve(same, role="weights"))
    eigenvalue = share / d  # of even directions
    even = sampler.sampler.isotropic and stage.upsampling is None
    if stage.steps >= FEW and not even:
        near, mistaken = LOOK_CLOSER / (eta * share), MISTAKEN * spread / (eta * share)
        eigenvalue = share * largest_eigenvalue(sampler, same, closely_above=near, closely_below=mistaken)
    if eta * eigenvalue <= NEAR or eta * eigenvalue / spread > MISTAKEN:
        return SafeStep(eigenvalue, fixed=fixed)
    factor = min(1.0, longest_step(eigenvalue, d, H, fixed=fixed) / eta)
    log.warning(
        "stage %s: steps of %g are too long, or nearly so, along the directions %s (step size times largest "
        "eigenvalue is %.2f, and errors grow from 2 on); they are taken %.2f times as long. A projection that "
        "is uneven on purpose says so: tempered = True in its class",
        stage.name or "of the schedule",
        eta,
        "that serve so many steps" if fixed else "drawn most",
        eta * eigenvalue,
        factor,
    )
    return SafeStep(eigenvalue, factor, fixed)


def longest_step(eigenvalue: float, dimension: int, directions: int, *, fixed: bool = False) -> float:
    """Return the step size that the leading direction allows: 1/λ, or less if H is small against d.

    λ of `fixed` directions has the noise of few of them in it.
    """
    few = 1.0 if fixed else min(1.0, 2 * MARGIN / (1 + (dimension - 1) / directions))
    return few / eigenvalue


def warn_of_few_directions(stages: Sequence[Stage], space: Space, settings: Settings) -> None:
    """Warn, of the worst stage, if H is far below d.

    A step multiplies E|e|² by 1 − 2c + c² (1 + (d−1)/H) with c = η/d, which is 1 − H / (H + d − 1) at best.
    """
    H, d, name = min(
        ((s.directions, s.dimension(space), s.name) for s in stages), key=lambda each: each[0] / each[1]
    )
    if d > FEW_DIRECTIONS * H:
        log.warning(
            f"stage {name}: {H:,} directions are few for {d:,} dimensions: a step of any size removes at most "
            f"{100 * H / (H + d - 1):.2g} % of the squared error, and samples stay noisy; take about {2 * d:,} "
            f"{settings.called('directions')}, or many steps of a smaller {settings.called('step size')}"
        )


class Speeds:
    """Lengths of a stage's steps at η = 1, in means of several: the last, and the least so far."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0
        self._least: Tensor | None = None
        self._last: Tensor | None = None

    def take(self, length: Tensor, eta: float) -> None:
        """Take in a step's mean length, a scalar that stays on its device."""
        speed = length.detach() / eta
        self._sum = speed if self._sum is None else self._sum + speed
        self._count += 1
        if self._count == AVERAGED:
            self._last = self._sum / AVERAGED
            self._least = self._last if self._least is None else torch.minimum(self._least, self._last)
            self._sum, self._count = None, 0

    def grown(self) -> float:
        """Return how many times as long as at their shortest steps are now; reads from the device."""
        if self._last is None or self._least is None:
            return 1.0
        return float(self._last / self._least.clamp_min(torch.finfo(self._least.dtype).tiny))


class Watch:
    """Watches the steps of a flow, stage by stage, and stops it when they grow or overflow."""

    def __init__(self, settings: Settings, size: float) -> None:
        """`size` is the mean length of the data and particles."""
        self._settings, self._size = settings, size
        self._safe = SafeStep(1.0)
        self._speeds = Speeds()

    @property
    def fixed(self) -> bool:
        """Whether the same directions serve many steps in a row."""
        reuse = self._settings.reuse
        return reuse is None or reuse >= FIXED_FROM

    def begin(self, safe: SafeStep) -> None:
        """Begin a stage, with what its directions allow steps to be."""
        self._safe = safe
        self.forget()

    def forget(self) -> None:
        """Forget how long steps were: they may become longer again."""
        self._speeds = Speeds()

    def allowed(self, eta: float) -> float:
        """Return the step size that is taken, for one that is wanted."""
        return eta * self._safe.factor

    def take(self, length: Tensor, step: int, eta: float) -> None:
        """Take in a step's mean length, if it should be no longer than others: along fresh directions."""
        reuse = self._settings.reuse
        if eta > 0 and (reuse is None or step % reuse == 0):
            self._speeds.take(length, eta)

    def check(self, number: int, moved: float, eta: float, H: int) -> None:
        """Raise `RunError` if the flow runs away; `moved` is the mean length of its step with this number."""
        taken = Step(number=number, eta=eta, moved=moved, grown=self._speeds.grown())
        refuse_runaway(taken, self._size, self._safe, H, self._settings)


@attrs.frozen(kw_only=True)
class Step:
    """The numbers of a step by which a runaway is seen."""

    number: int
    """How many steps the flow has taken."""
    eta: float
    moved: float
    """The mean length of the particles' move."""
    grown: float
    """How many times as long as at their shortest the stage's steps are now."""


def refuse_runaway(step: Step, size: float, safe: SafeStep, H: int, settings: Settings) -> None:
    """Raise `RunError` if a step is out of all proportion to the data's mean length, `size`, or steps grow."""
    far = step.moved > RUNAWAY * (size + 1)
    long = step.eta > GROWS_FROM * safe.limit(H) and step.moved > NOTICEABLE * size
    if not far and not (long and step.grown > GROWN):
        return
    growth = "" if far else f", and steps are {step.grown:.3g} times as long as earlier in this stage"
    raise RunError(
        f"the flow ran away: step {step.number} moved particles by {step.moved:.3g} on average{growth}. With "
        f"{H:,} directions, and a largest eigenvalue of about {safe.eigenvalue:.3g} of their second moments, "
        f"a step size of {step.eta:g} is too large. A projection that is uneven on purpose says so in its "
        "class, tempered = True, and then no step is longer than its directions allow; otherwise take more "
        f"{settings.called('directions')} or a smaller {settings.called('step size')}, well below "
        f"{min(safe.limit(H), step.eta):.3g}"
    )
