"""No step of a built-in recipe is so long that errors grow, by sampled directions and by a closed form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import attrs
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cswf_core.flow import stability
from cswf_core.flow.flow import Flow
from cswf_core.flow.stability import largest_eigenvalue, safe_step
from cswf_core.interfaces import Key, ProjectionSampler, Space, Stage, Upsampling
from cswf_core.recipe import Recipe
from cswf_plugins.coordinates.plain import Plain
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.exemplars import Exemplars
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.low_rank import LowRank
from cswf_plugins.projections.patches import covers, window
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.pyramid import Enlarged
from tests.recipe.flows import flows_of


def grid_of(stage: Stage, space: Space) -> Space:
    """The grid that a stage's filters live on."""
    return space if stage.upsampling is None else stage.upsampling.space


def all_stages(recipes: dict[str, Recipe]) -> Iterator[tuple[Flow, int]]:
    """The stages of all recipes and of their variants, those of the first round: flow and number."""
    for recipe in recipes.values():
        for flow in flows_of(recipe):
            for index in range(len(flow.stages) // flow.rounds):
                yield flow, index


def looked_at(recipes: dict[str, Recipe]) -> Iterator[tuple[Flow, int]]:
    """The stages whose step size the engine looks at, with grids below 500 dimensions: flow and number."""
    for flow, index in all_stages(recipes):
        stage = flow.stages[index]
        uneven = stage.tempered or flow.parts.projection.of_stage(stage).tempered
        many = stage.steps >= stability.FEWEST_STEPS or uneven
        if many and grid_of(stage, flow.data.space).dimension < SMALL:
            yield flow, index


def filters_of(flow: Flow, stage: Stage) -> ProjectionSampler:
    """A stage's projection, or another that draws the same filters on its grid: more stages are alike then."""
    plugin = flow.parts.projection.of_stage(stage).plugin
    if not isinstance(plugin, LocallyConnected | ConvStack):
        return plugin
    if not covers(plugin.patch, *grid_of(stage, flow.data.space).shape[1:]):
        return attrs.evolve(plugin, covering="whole")
    return Uniform() if plugin.covering == "whole" else plugin


def laborious(plugin: ProjectionSampler) -> bool:
    """Whether filters are those of deep networks."""
    return isinstance(plugin, ConvStack) and plugin.width is not None and plugin.patch > 5


SMALL = 500
"""Below so many dimensions the engine's own estimate takes no more than a second."""

Closed = LocallyConnected | ConvStack | Uniform
"""Projections with a closed form of λ."""


def as_dense(flow: Flow, stage: Stage) -> ProjectionSampler:
    """A stage's filters, or dense ones whose entries have the same variances.

    Entries of `low-rank` filters are nearly uncorrelated too; so are those of `exemplars`, pieces of many data
    that are evened out. In coordinates that are uneven they are not.
    """
    plugin = flow.parts.projection.of_stage(stage).plugin
    pieces = plugin if isinstance(plugin, Exemplars) else None
    of = plugin if pieces is None else pieces.of
    plain = flow.parts.coordinates is None or isinstance(flow.parts.coordinates.plugin, Plain)
    if not isinstance(of, LowRank) or of.tempered or not plain or (pieces and pieces.power != of.power):
        return filters_of(flow, stage)
    patch, dilation = (of.patch, of.dilation) if pieces is None else (pieces.patch, pieces.dilation)
    whole = covers(patch, *grid_of(stage, flow.data.space).shape[1:])
    return Uniform() if whole else ConvStack(patch=patch, dilation=dilation, power=of.power, covering="whole")


def has_closed_form(filters: ProjectionSampler, stage: Stage) -> TypeGuard[Closed]:
    """Whether λ of a stage can be reckoned from the variances of its filters."""
    return isinstance(filters, Closed) and not stage.tempered


@pytest.mark.slow
def test_no_step_of_a_recipe_grows_along_the_directions_drawn_most(recipes):
    """η λ E[a²] is below 2 in stages without a closed form, where steps are shortened if they have to be.

    λ is estimated once for all stages with the same filters on the same grid, by other random numbers than
    the flow's. Larger grids take hours on a CPU; `test_no_step_of_a_recipe_grows_by_the_closed_form` has them.
    """
    eigenvalues: dict[tuple[object, ...], float] = {}
    products: dict[str, float] = {}
    for flow, index in looked_at(recipes):
        stage = flow.stages[index]
        filters, grid = filters_of(flow, stage), grid_of(stage, flow.data.space)
        if has_closed_form(filters, stage):
            continue
        key, sampler = (flow.data.space, grid, filters, stage.tempered), flow.setup.sampler(stage)
        if key not in eigenvalues:
            eigenvalues[key] = largest_eigenvalue(sampler, Key(1, "another estimate"), closely_above=0.0)
        eta = stage.step_size * sampler.mean_square_length(Key(1, "another mean"))
        if eta * eigenvalues[key] >= 2:
            eta *= safe_step(sampler, Key(flow.settings.seed, "gain", index)).factor
        products[f"{flow.data.space.shape} {stage.name} {filters} {eta}"] = eta * eigenvalues[key]
    assert len(eigenvalues) >= 5
    assert {name: product for name, product in products.items() if product >= 2} == {}


def gram_of_lines(upsampling: Upsampling | None, grid: Space, axis: int) -> NDArray[np.float64]:
    """The factor of UᵀU = C copies of G_rows ⊗ G_columns that belongs to an axis, but for its scale: k×k."""
    channels, height, width = grid.shape
    k = (height, width)[axis]
    if upsampling is None:
        return np.eye(k)
    lines, place = torch.zeros(channels, height, width, k, dtype=torch.float64), torch.arange(k)
    first = lines[0, :, 0] if axis == 0 else lines[0, 0]  # the pixels of the first column, or of the first row
    first[place, place] = 1
    image = upsampling.gram(lines.flatten(0, 2)).view_as(lines)
    return (image[0, :, 0] if axis == 0 else image[0, 0]).numpy()


def variances_of_lines(filters: Closed, grid: Space, k: int) -> NDArray[np.float64]:
    """The variances of a filter's entries along an axis of k pixels: one row for each centre, k×k.

    Those of networks are counts of paths that do not leave the grid, as zeros in front of every layer have it.
    """
    if isinstance(filters, Uniform) or (filters.covering == "whole" and covers(filters.patch, *grid.shape[1:])):
        return np.ones((k, k))
    layers, apart = filters.patch // 2, filters.dilation
    if isinstance(filters, ConvStack) and filters.width is not None:
        layer = np.eye(k) + np.eye(k, k=apart) + np.eye(k, k=-apart)
        return np.linalg.matrix_power(layer, layers)
    profile = np.ones(filters.patch)
    if isinstance(filters, ConvStack):
        profile = window(layers, filters.power) ** 2
    return sum(
        (variance * np.eye(k, k=(place - layers) * apart) for place, variance in enumerate(profile)),
        np.zeros((k, k)),
    )


def eigenvalue_by_variances(filters: Closed, upsampling: Upsampling | None, space: Space) -> float:
    """The largest eigenvalue λ of E[θθᵀ], θ = U t / ‖U t‖, in closed form and without random numbers.

    The entries of a filter t are uncorrelated, and have a variance v_c(p) at pixel p if c is its centre. With
    n_c = Σ v_c(p) G_pp, the mean of ‖U t‖², in place of ‖U t‖² itself, E[θθᵀ] is U D Uᵀ, where D is diagonal
    and has the mean of v_c(p) / n_c over all centres at p; λ is the largest eigenvalue of D^½ G D^½. For
    `locally-connected` at full resolution that is exact. Variances and G are products of one factor for rows
    and one for columns, and are the same for each of C colours; so λ is a product of two eigenvalues over C.
    """
    if not space.is_image:
        assert isinstance(filters, Uniform)
        return 1 / space.dimension
    grid = space if upsampling is None else upsampling.space
    eigenvalue = 1 / grid.shape[0]
    for axis in (0, 1):
        G = gram_of_lines(upsampling, grid, axis)
        variances = variances_of_lines(filters, grid, len(G))
        D = (variances / (variances @ np.diag(G))[:, None]).mean(axis=0)
        eigenvalue *= float(np.linalg.eigvalsh(np.sqrt(D)[:, None] * G * np.sqrt(D))[-1])
    return eigenvalue


@pytest.mark.parametrize(
    ("grid", "patch", "dilation", "product"), [(14, 13, 1, 1.95), (11, 5, 2, 2.07), (14, 7, 2, 2.13)]
)
def test_the_closed_form_has_the_numbers_of_the_manual(grid, patch, dilation, product):
    """docs/method.md has ηλ of `locally-connected` with η = k², from 800,000 directions."""
    coarse, fine = Space((1, grid, grid)), Space((1, 28, 28))
    filters = LocallyConnected(patch=patch, dilation=dilation)
    eigenvalue = eigenvalue_by_variances(filters, Enlarged(coarse, fine, "lanczos5"), fine)
    assert grid**2 * eigenvalue == pytest.approx(product, rel=0.01)  # 1.946, 2.064, 2.121


@pytest.mark.parametrize(
    ("name", "stage_name", "within"),
    [
        ("mnist-unconditional-paper", "(7×7) [5]", 0.035),
        pytest.param("cifar10-unconditional-paper", "(8×8) [7]", 0.02, marks=pytest.mark.slow),
        ("ablation-amplifier", "(2×2) [dense]", 0.07),
        ("ablation-amplifier", "(11×11) [5] dilation=2", 0.08),
        ("mnist-unconditional-released", "(7×7) [3] dilation=2", 0.04),
        pytest.param("mnist-unconditional-released", "(7×7) [7]", 0.05, marks=pytest.mark.slow),
        ("cifar10-unconditional-released", "(8×8) [3] dilation=2", 0.03),
        ("mnist-unconditional", "(7×7) [5]", 0.03),
        pytest.param("ablation-projections, low-rank", "(8×8) [7]", 0.08, marks=pytest.mark.slow),
        ("ablation-projections, low-rank", "(8×8) [3]", 0.04),
    ],
)
def test_the_closed_form_is_near_what_sampled_directions_give(name, stage_name, within, recipes, monkeypatch):
    """Patches, windows and networks: dilated, placed, and with colours; filters of low rank, and pieces.

    Each tolerance is the largest difference among eight seeds, rounded up. Most of it is the sampled
    estimate's: by 200,000 to 400,000 directions, λ of 18 stages is 0.94 to 1.045 times the closed form,
    and of the four of low rank between 0.98 and 1.06.
    """
    name, _, variant = name.partition(", ")
    flow = dict(zip(("", *recipes[name].variants), flows_of(recipes[name]), strict=True))[variant]
    (stage,) = (stage for stage in flow.stages if stage.name == stage_name)
    filters = as_dense(flow, stage)
    closed = eigenvalue_by_variances(filters, stage.upsampling, flow.data.space)
    if not laborious(filters):
        monkeypatch.setattr(stability, "FEWEST_DIRECTIONS", 4096)
    sampled = largest_eigenvalue(flow.setup.sampler(stage), Key(1, "another estimate"), closely_above=0.0)
    assert sampled == pytest.approx(closed, rel=within)


MARGIN = 1.05
"""λ is at most so many times what the closed form says, as the test above found."""

CORRELATED = 1.01
"""Low rank makes it 1.06 at most: so much more."""


def test_no_step_of_a_recipe_grows_by_the_closed_form(recipes):
    """η λ E[a²] is below 2 in every stage, on the largest grids too, where λ is that of the closed form.

    Where that is too near to 2 to be sure of it, and the grid is small, steps are taken as long as the engine
    takes them. Other projections, `high-pass`, `data-covariance` and `orthogonal`, and coordinates that are
    uneven, have no closed form: the test with sampled directions has them, on small grids.
    """
    eigenvalues: dict[tuple[Space, Space, Closed], float] = {}
    factors: dict[tuple[object, ...], float] = {}
    products: dict[tuple[Flow, int], float] = {}
    for flow, index in all_stages(recipes):
        stage, space = flow.stages[index], flow.data.space
        filters, grid = as_dense(flow, stage), grid_of(stage, space)
        if not has_closed_form(filters, stage):
            continue
        key = space, grid, filters
        if key not in eigenvalues:
            eigenvalues[key] = eigenvalue_by_variances(filters, stage.upsampling, space)
        product = stage.step_size * eigenvalues[key]
        if filters != filters_of(flow, stage):
            product *= CORRELATED
        if flow.setup.condition_length:
            product *= flow.setup.sampler(stage).mean_square_length(Key(1, "another mean"))
        if product * MARGIN >= 2 and grid.dimension < SMALL:
            same = *key, stage.step_size, stage.directions, product
            if same not in factors:
                sampler = flow.setup.sampler(stage)
                factors[same] = safe_step(sampler, Key(flow.settings.seed, "gain", index)).factor
            product *= factors[same]
        products[flow, index] = product
    assert len(products) > 2000
    assert len(eigenvalues) > 300
    assert {(1, 28, 28), (3, 32, 32), (3, 64, 64)} <= {grid.shape for _, grid, _ in eigenvalues}

    def above(bound: float) -> dict[str, float]:
        return {
            f"{flow.data.space} {flow.stages[index].name}": product
            for (flow, index), product in products.items()
            if product >= bound
        }

    assert above(2) == {}
    # Patches of 15 have 1.98 there. The engine finds 2.03 and halves the steps, but takes four seconds for it.
    # (12×12) [11] has 1.903, just below.
    assert set(above(2 / MARGIN)) <= {"3×32×32 (16×16) [15]", "3×64×64 (16×16) [15]"}
