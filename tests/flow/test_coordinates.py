"""Flows in other coordinates: steps, speeds, safe step sizes, pixels that are seen, and coarse ones."""

from __future__ import annotations

from functools import cache

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.flow.flow import Flow
from cswf_core.flow.stability import SafeStep, largest_eigenvalue, safe_step
from cswf_core.interfaces import (
    Conditions,
    Dataset,
    Draw,
    Key,
    Masked,
    Observation,
    ProjectionSampler,
    Schedule,
    Space,
    Stage,
    Upsampling,
)
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import small_flow
from tests.flow.test_against_the_paper import paper_cdf, paper_icdf
from tests.plugins.test_coordinates import basis, matrix, smooth

COLOUR, GREY = Space((3, 4, 5)), Space((1, 6, 6))
FULL, COARSE = "full resolution", "a pyramid stage"


def images(space: Space = COLOUR, n: int = 40, classes: int = 0) -> Dataset:
    labels = torch.arange(n) % classes if classes else None
    names = tuple(str(c) for c in range(classes))
    return Dataset(x=smooth(space, n), space=space, conditions=Conditions(labels=labels), classes=names)


def schedule(where: str, steps: int = 2, directions: int = 30, **settings):
    if where == FULL:
        return Constant(steps=steps, directions=directions, **settings)
    return Pyramid(entries=(Entry.from_text("(2×3) [3]"),), steps=steps, directions=directions, **settings)


def whitened(data: Dataset, where: str = FULL, exponent: float = 0.8, **parts) -> Flow:
    parts = {"schedule": schedule(where), "projection": LocallyConnected(patch=3), **parts}
    return small_flow(data, coordinates=Whitened(exponent=exponent), **parts)


def full_directions(flow: Flow, step: int) -> tuple[Tensor, Tensor | None]:
    """The directions of a step of the first stage in w, at full resolution (H×d), and ξ√(1−a²)θ_y (H×l)."""
    sampler = flow.setup.sampler(flow.stages[0])
    (theta,) = sampler.batches(flow.settings.seed, 0, step, check=True)
    t = theta.projection.dense() if theta.scale is None else theta.projection.dense() * theta.scale
    upsampling = sampler.coordinates.upsampling
    return t if upsampling is None else upsampling.up(t.T).T, theta.theta_y


def hand_written_step(flow: Flow, x: Tensor, step: int, eta: float) -> Tensor:
    """x is projected on Wᵀθ, transported in one dimension, and moved along W⁻¹θ.

    Where pixels are seen, w moves along what is left of θ when all moves that keep these still are spanned.
    """
    data, moved, xi = flow.data, torch.zeros_like(x), flow.parts.condition.amplifier
    W = matrix(flow.setup.W.enter, data.space.dimension)
    seen = None if flow.observation is None else flow.observation.mask.expand(data.space.dimension, -1)
    target = data.x if seen is None else torch.where(seen[:, :1], xi * data.x, data.x)
    directions, theta_y = full_directions(flow, step)
    for number, theta in enumerate(directions):
        along, back = W.T @ theta, torch.linalg.solve(W, theta)
        if seen is not None:
            free = ~seen[:, 0]
            back = torch.zeros_like(theta)
            back[free] = torch.linalg.lstsq(W[:, free], theta[:, None]).solution[:, 0]
        p, q = along @ x, along @ target
        if theta_y is not None:
            p = p + theta_y[number, flow.particles.conditions.labels]
            q = q + theta_y[number, data.conditions.labels]
        q = q.tolist()
        delta = [paper_icdf(q, paper_cdf(p.tolist(), value)) - value for value in p.tolist()]
        change = back[:, None] * torch.tensor(delta, dtype=torch.float64) / len(directions)
        moved += change
    return x + eta * moved


CONDITIONS = {
    "none": NoCondition(),
    "labels": OneHot(amplifier=3.0),
    "a mask": Mask(hidden="left"),
    "an amplified mask": Mask(hidden="bottom", amplifier=2.0),
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("where", [FULL, COARSE])
def test_a_step_projects_on_the_transpose_and_moves_along_the_inverse(where, condition):
    flow = whitened(images(n=15, classes=3), where, condition=CONDITIONS[condition], count=12)
    x = flow.particles.x.clone()
    for step, state in enumerate(flow):
        x = hand_written_step(flow, x, step, state.eta)
        np.testing.assert_allclose(flow.particles.x.numpy(), x.numpy(), atol=1e-10)


@pytest.mark.parametrize("where", [FULL, COARSE])
def test_directions_have_unit_length_in_w_and_not_in_x(where):
    flow = whitened(images(), where)
    theta = full_directions(flow, 0)[0].T
    torch.testing.assert_close(theta.norm(dim=0), torch.ones(30).double())
    lengths = flow.setup.W.adjoint(theta).norm(dim=0)
    assert float(lengths.max() / lengths.min()) > 1.3


@pytest.mark.parametrize("condition", ["none", "a mask"])
@pytest.mark.parametrize("where", [FULL, COARSE])
def test_the_mean_length_of_a_move_is_that_in_w(where, condition):
    flow = whitened(images(), where, condition=CONDITIONS[condition])
    before = flow.setup.W.enter(flow.particles.x.clone())
    state = next(iter(flow))
    moved = (flow.setup.W.enter(flow.samples().x) - before).norm(dim=0).mean()
    assert float(state.moved) == pytest.approx(float(moved), rel=1e-9)


def gaussian_images(space: Space, n: int, seed: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian images of frequencies (rows of B) without correlation, to rounding; B; and their deviations."""
    d = space.dimension
    g = Key(seed, "gaussian").open(dtype=torch.float64).normal(d, n)
    g = g - g.mean(dim=1, keepdim=True)
    independent = torch.linalg.solve_triangular(torch.linalg.cholesky(g @ g.T / n), g, upper=False)
    B, deviations = basis(Whitened().fit(space, g)), 0.6 ** torch.arange(d).double()
    return B.T @ (independent * deviations[:, None]), B, deviations


def speeds(exponent: float, eta: float, part: float = 0.15) -> tuple[Tensor, Tensor]:
    """Which part of an excess deviation along each frequency a step takes away, and which the formula says."""
    space = Space((1, 2, 2))
    (x, B, deviations), (y, _, _) = (gaussian_images(space, 800, seed) for seed in (2, 3))

    def flow(start: Tensor) -> Flow:
        return small_flow(
            Dataset(x=x, space=space),
            condition=NoCondition(),
            coordinates=Whitened(exponent=exponent, floor=1e-9),
            schedule=Constant(steps=1, directions=500, step_size=eta),
            start=Dataset(x=start, space=space),
        )

    taken = []
    for axis in B:
        along = axis[:, None] * (axis @ y)
        more, less = ((axis @ flow(y + excess * along).run().x).std() for excess in (part, -part))
        taken.append(1 - (more - less) / (2 * part * (axis @ x).std()))
    theta = full_directions(flow(x), 0)[0] @ B.T
    variances = deviations ** (2 * (1 - exponent))
    formula = eta * (variances * theta**4 / (theta.square() @ variances)[:, None]).mean(dim=0)
    return torch.stack(taken), formula


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_a_gaussian_s_deviations_converge_as_the_closed_form_says_and_equally_fast_if_white(exponent):
    """Along θ, N(0, Σ₀) goes to N(0, Σ) by the factor s = √(θᵀΣθ / θᵀΣ₀θ), so w ← w + η E[(s − 1) θθᵀ] w.

    With σ_i (1 + ε) for σ_i on one axis, s − 1 = −ε σ_i²θ_i² / θᵀΣθ: of ε, a step takes η E[σ_i²θ_i⁴ / θᵀΣθ]
    away. Where Σ = I that is 3η / (d(d + 2)) on every axis; else it is less where σ_i is small.
    """
    eta, d = 6.0, 4
    got, formula = speeds(exponent, eta)
    torch.testing.assert_close(got, formula, rtol=0.03, atol=0)
    if exponent == 1:
        torch.testing.assert_close(got, torch.full((d,), 3 * eta / (d * (d + 2))).double(), rtol=0.15, atol=0)
    else:
        assert (got.diff() < 0).all()
        assert float(got[0] / got[-1]) > {0.5: 1.5, 0.0: 3}[exponent]


def test_when_all_axes_are_white_no_frequency_is_left_behind():
    space = Space((1, 2, 3))
    x, B, deviations = gaussian_images(space, 600)
    left = {}
    for exponent in (0.0, 1.0):
        flow = small_flow(
            Dataset(x=x, space=space),
            coordinates=Whitened(exponent=exponent, floor=1e-9),
            schedule=Constant(steps=15, directions=300),
            count=600,
        )
        left[exponent] = ((B @ flow.run().x).std(dim=1) / deviations).log().abs()
    assert float(left[1.0].max()) < 0.1
    assert float(left[0.0].max()) > 0.5
    assert int(left[0.0].argmax()) == 5  # of the smallest variance


def second_moments(flow: Flow, steps: range) -> Tensor:
    """E[θθᵀ] of the first stage's directions in w, over those of some steps: d×d."""
    theta = torch.cat([full_directions(flow, step)[0] for step in steps])
    return theta.T @ theta / len(theta)


@pytest.mark.parametrize("where", [FULL, COARSE])
def test_the_safe_step_is_that_of_the_map_on_x(where):
    """A step is x ← x − η W⁻¹ E[θθᵀ] W x, which has the eigenvalues of E[θθᵀ] whatever W is."""
    flow = whitened(images(GREY), where, 1.0, schedule=schedule(where, steps=20, directions=4000))
    A, W = second_moments(flow, range(10)), matrix(flow.setup.W.enter, GREY.dimension)
    on_x = torch.linalg.eigvals(torch.linalg.solve(W, A @ W))
    exact = float(on_x.real.max())
    assert float(on_x.imag.abs().max()) < 1e-9
    assert exact == pytest.approx(float(torch.linalg.eigvalsh(A)[-1]), rel=1e-9)
    sampler = flow.setup.sampler(flow.stages[0])
    assert largest_eigenvalue(sampler, Key(0, "gain"), closely_above=0.0) == pytest.approx(exact, rel=0.06)
    assert safe_step(sampler, Key(0, "gain")).eigenvalue == pytest.approx(exact, rel=0.25)
    even = 1 / sampler.coordinates.space.dimension
    assert exact > 1.1 * even


@cache
def leading_eigenvector() -> tuple[float, Tensor]:
    """λ of E[θθᵀ] in w, and its vector, which is measured along other directions than it was found by."""
    drawn = whitened(images(GREY), exponent=1.0, schedule=schedule(FULL, 1, 4000))
    _, vectors = torch.linalg.eigh(second_moments(drawn, range(8)))
    v = vectors[:, -1:]
    return float(v.T @ second_moments(drawn, range(8, 16)) @ v), v


def errors(factor: float, steps: int) -> list[float]:
    """How far particles are, in w, from the data they were shifted from: along λ's vector, at η = factor/λ.

    A shift e of all particles becomes e − η E[θθᵀ] e.
    """
    data = images(GREY)
    parts = {"condition": NoCondition(), "exponent": 1.0}
    eigenvalue, v = leading_eigenvector()
    shift = 0.5 * whitened(data, **parts).setup.W.leave(v)
    moved = whitened(
        data,
        schedule=schedule(FULL, steps, 1000, step_size=factor / eigenvalue),
        start=attrs.evolve(data, x=data.x + shift),
        **parts,
    )
    return [
        float(moved.setup.W.enter((moved.samples().x - data.x).mean(dim=1, keepdim=True)).norm()) for _ in moved
    ]


def test_errors_grow_beyond_2_over_the_eigenvalue_and_fade_below_it(monkeypatch):
    kept = errors(2.2, 16)  # from so many steps on λ is looked at, and steps are shortened
    assert kept[-1] < kept[0] / 2
    monkeypatch.setattr("cswf_core.flow.flow.safe_step", lambda *a, **k: SafeStep(1 / GREY.dimension))
    grows, fades = (errors(factor, 12) for factor in (2.2, 1.8))
    assert grows[-1] > 3 * grows[0]
    assert fades[-1] < fades[0] / 3


def test_a_start_that_is_long_in_w_is_no_runaway():
    """Noise in x has much of what the data lack, and W makes that long: moves are compared to lengths in w."""
    space = Space((1, 6, 6))
    x = smooth(space, 200)
    x[6:] = x[:6].repeat(5, 1)  # all rows alike
    flow = whitened(Dataset(x=x, space=space), exponent=1.0, schedule=schedule(FULL, 12, 100))
    states = list(flow)
    assert float(states[0].moved) > 30 * (float(x.norm(dim=0).mean()) + 1)
    assert float(states[-1].moved) < 0.1 * float(states[0].moved)


SEEN = {
    "shared": Mask(hidden="left"),
    "shared, amplified": Mask(hidden="bottom", amplifier=2.5),
    "shared, ignored": Mask(hidden="bottom", amplifier=0.0),
}


@pytest.mark.parametrize(("clip", "bin_width"), [(None, 0.0), (None, 0.1), (0.5, 0.1)])
@pytest.mark.parametrize("condition", SEEN)
@pytest.mark.parametrize("where", [FULL, COARSE])
def test_seen_pixels_do_not_move_by_a_bit(where, condition, clip, bin_width):
    data = attrs.evolve(images(), bin_width=bin_width)
    flow = whitened(data, where, 1.0, condition=SEEN[condition], clip=clip, dtype=torch.float32)
    start = flow.particles.x.clone()
    mask = flow.observation.mask.expand_as(start)
    for _ in flow:
        assert torch.equal(flow.particles.x[mask], start[mask])
        assert torch.equal(flow.samples().x[mask], flow.originals()[mask])
    samples = flow.samples()
    assert torch.equal(samples.x[mask], flow.originals()[mask])
    few = torch.tensor([3, 0])
    assert torch.equal(flow.samples(few).x, samples.x[:, few])
    assert float((flow.particles.x - start)[~mask].abs().mean()) > 0.01


def test_a_mask_for_each_and_spaces_too_large_for_a_matrix_are_refused(monkeypatch):
    with pytest.raises(RunError, match="the same part of every image to be seen"):
        whitened(images(), condition=Mask(hidden="boxes", masks="each"))
    monkeypatch.setattr("cswf_core.flow.coordinates.LARGEST_FREE_PART", 5)
    with pytest.raises(RunError, match="go up to 5 dimensions"):
        whitened(images(), condition=SEEN["shared"])


@pytest.mark.parametrize("exponent", [0.25, 1.0])
def test_half_an_image_is_completed_in_white_coordinates_too(exponent):
    """What is hidden equals what is seen: the flow finds out."""
    x = smooth(Space((1, 4, 2)), 300).reshape(4, 2, -1)
    x[2:] = x[:2]
    data = Dataset(x=x.reshape(8, -1), space=Space((1, 4, 2)))
    flow = whitened(
        data,
        condition=Mask(hidden="bottom"),
        schedule=schedule(FULL, 60, 50),
        projection=Uniform(),
        exponent=exponent,
        count=200,
    )
    done = flow.run().x.reshape(4, 2, -1)
    lost = (done[2:] - done[:2]).square().mean() / x.var()
    assert float(lost) < 0.03


@pytest.mark.parametrize("projection", [Uniform(), ConvStack(patch=3)], ids=["uniform", "conv-stack"])
def test_classes_keep_apart_in_white_coordinates(projection):
    space = Space((1, 4, 4))
    data = images(space, 150, classes=2)
    data.x[:8, 1::2] += 2.0
    flow = whitened(
        data,
        condition=OneHot(amplifier=5.0),
        projection=projection,
        schedule=schedule(FULL, 30, 100),
        exponent=0.5,
        count=100,
    )
    samples = flow.run()
    for label in range(2):
        mine = samples.x[:, samples.conditions.labels == label].mean(dim=1)
        own, other = (data.x[:, data.conditions.labels == c].mean(dim=1) for c in (label, 1 - label))
        assert float((mine - own).norm()) < 0.25 * float((mine - other).norm())


COARSE_D, FINE_D = 4, 9


class Matrix(Upsampling):
    """Any linear map, as a dense matrix U (d×d_k)."""

    def __init__(self, U: Tensor) -> None:
        self.U = U
        self.space = Space((U.shape[1],))

    def up(self, t: Tensor) -> Tensor:
        return self.U @ t

    def down(self, x: Tensor) -> Tensor:
        return self.U.T @ x


@attrs.frozen
class Upsampled(ProjectionSampler):
    """The same directions, but already at full resolution and of unit length there."""

    U: Tensor

    def sample(self, space: Space, count: int, draw: Draw) -> Tensor:
        theta = draw.sphere(count, COARSE_D) @ self.U.T
        return theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


@attrs.frozen
class TwoStages(Schedule):
    """A coarse stage, then one in the data's space."""

    first: Stage

    def stages(self, space: Space, projection: ProjectionSampler) -> list[Stage]:
        return [self.first, Stage(steps=2, directions=40, step_size=2.0)]


@attrs.frozen
class Seen(NoCondition):
    """Coordinates 0 to 2 are observed, stretched by the amplifier."""

    amplifier: float = 1.0

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        return Conditions(origin=draw.integers(len(data), count))

    def observation(self, data: Dataset, conditions: object, draw: Draw) -> Observation:
        return Masked(torch.arange(data.space.dimension) < 3)


@attrs.frozen
class SeenEach(Seen):
    """Every particle has a mask of its own: j observes coordinate j mod 3 and nothing else."""

    def observation(self, data: Dataset, conditions: object, draw: Draw) -> Observation:
        return Masked(torch.arange(data.space.dimension)[:, None] == torch.arange(30) % 3)


class MeanSeen(Observation):
    """The mean of all coordinates."""

    def seen(self, x: Tensor) -> Tensor:
        return x.mean(dim=0, keepdim=True).expand_as(x)


@attrs.frozen
class SeenMean(Seen):
    """Nothing of x is known but its mean."""

    def observation(self, data: Dataset, conditions: object, draw: Draw) -> Observation:
        return MeanSeen()


OBSERVED = [NoCondition(), Seen(), Seen(3.0), Seen(0.0), SeenEach(), SeenMean(), SeenMean(2.0)]


@pytest.fixture
def U() -> Tensor:
    return Key(3, "U").open(dtype=torch.float64).normal(FINE_D, COARSE_D)


@pytest.fixture
def data() -> Dataset:
    return Dataset(x=Key(1, "x").open(dtype=torch.float64).normal(FINE_D, 50), space=Space((FINE_D,)))


@pytest.mark.parametrize("condition", OBSERVED)
@pytest.mark.parametrize(("bin_width", "entropy"), [(0.0, 0.0), (0.5, 0.01)])
def test_coarse_coordinates_equal_the_plain_computation(U, data, condition, bin_width, entropy):
    data = attrs.evolve(data, bin_width=bin_width)
    shared = {"steps": 3, "directions": 100, "step_size": 3.0, "entropy": entropy}
    coarse = TwoStages(Stage(upsampling=Matrix(U), **shared))
    plain = TwoStages(Stage(sampler=Upsampled(U), **shared))
    got = small_flow(data, condition=condition, schedule=coarse).run()
    expected = small_flow(data, condition=condition, schedule=plain).run()
    torch.testing.assert_close(got.x, expected.x, atol=1e-10, rtol=0)


def test_samples_in_the_middle_of_a_coarse_stage_are_in_the_data_s_space(U, data):
    shared = {"steps": 5, "directions": 20, "step_size": 2.0}
    coarse = small_flow(data, schedule=TwoStages(Stage(upsampling=Matrix(U), **shared)))
    plain = small_flow(data, schedule=TwoStages(Stage(sampler=Upsampled(U), **shared)))
    for _ in range(3):
        got, expected = next(iter(coarse)), next(iter(plain))
        torch.testing.assert_close(coarse.samples().x, plain.samples().x, atol=1e-10, rtol=0)
        assert got.displacement == pytest.approx(expected.displacement)
        assert got.distance == pytest.approx(expected.distance)


@pytest.mark.parametrize("bin_width", [0.0, 0.5])
@pytest.mark.parametrize("condition", [Seen(), Seen(3.0), Seen(0.0), SeenEach()])
def test_observed_coordinates_never_move(data, condition, bin_width):
    flow = small_flow(attrs.evolve(data, bin_width=bin_width), condition=condition)
    samples, given = flow.run(), flow.originals()
    assert torch.equal(samples.x == given, flow.observation.mask.expand(FINE_D, 30))
    assert (given - data.x[:, samples.conditions.origin] <= bin_width).all()


def test_an_observed_mean_stays_what_it_was(data):
    flow = small_flow(data, condition=SeenMean(2.0))
    torch.testing.assert_close(flow.run().x.mean(dim=0), flow.originals().mean(dim=0))


def test_amplifier_0_ignores_what_is_observed(data):
    data.x[3:] = data.x[:1]  # what is hidden is known from what is seen
    parts = {"schedule": Constant(steps=30, directions=60), "count": 200}
    samples = (small_flow(data, condition=Seen(amplifier), **parts).run().x for amplifier in (0.0, 1.0))
    ignored, followed = (float(torch.corrcoef(x[[0, 5]])[0, 1]) for x in samples)
    assert abs(ignored) < 0.3
    assert followed > 0.6
