"""Contract of projections: H random directions θ_h, and how data meet them."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError, PluginError
from cswf_core.interfaces.contract import Contract, parameter
from cswf_core.interfaces.draw import Draw
from cswf_core.interfaces.space import Space
from cswf_core.kernels.patches import embedded


class Projection(abc.ABC):
    """H directions as a linear operator. Implement it only to be faster than a dense matrix."""

    weights: Tensor | None = None
    """w_h ≥ 0, how much each direction counts: H numbers, 1 on average; None, the usual: all count alike.

    Particles then move by η/H Σ_h w_h δ_h θ_h. Energy-based slicing weighs directions by how far apart
    particles and data are along them.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(H, d)."""

    @abc.abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Return θ_h·x for every direction and every column: d×n → H×n."""

    @abc.abstractmethod
    def adjoint(self, a: Tensor) -> Tensor:
        """Return Σ_h a_h θ_h for every column: H×n → d×n."""

    @abc.abstractmethod
    def dense(self) -> Tensor:
        """Return the directions as rows: H×d."""

    def rows(self, cut: slice) -> Projection:
        """Return some of the directions, without their weights. The default makes a matrix of all, once."""
        return DenseProjection(self._matrix[cut])

    @cached_property
    def _matrix(self) -> Tensor:
        return self.dense()


class DenseProjection(Projection):
    """Directions as the rows of a matrix θ (H×d), with weights if these are given (H numbers)."""

    def __init__(self, theta: Tensor, weights: Tensor | None = None) -> None:
        self.theta = theta
        self.weights = weights

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.theta.shape[0], self.theta.shape[1]

    def project(self, x: Tensor) -> Tensor:
        """θ x: d×n → H×n."""
        return torch.mm(self.theta, x)

    def adjoint(self, a: Tensor) -> Tensor:
        """θᵀ a: H×n → d×n."""
        return torch.mm(self.theta.T, a)

    def dense(self) -> Tensor:
        """θ."""
        return self.theta


class PatchProjection(DenseProjection):
    """Small filters somewhere on a grid: directions whose matrix is made only if somebody asks for it.

    On CUDA, in half precision, they are packed for products straight from the filters.
    """

    def __init__(self, filters: Tensor, space: Space, dilation: int, row: Tensor, column: Tensor) -> None:
        """`filters` (H×C×S×S) of any length stand around rows and columns (H each), pixels `dilation` apart.

        What falls outside the grid is cut off, and the rest scaled to unit length.
        """
        self.filters = filters
        self.space = space
        self.dilation = dilation
        self.row = row
        self.column = column

    @cached_property
    def theta(self) -> Tensor:  # type: ignore[override]
        """The directions as rows: H×d."""
        return embedded(self.filters, self.space.shape, self.dilation, self.row, self.column)

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        return self.filters.shape[0], self.space.dimension

    def rows(self, cut: slice) -> PatchProjection:
        """Return some of the directions, without their weights."""
        return PatchProjection(self.filters[cut], self.space, self.dilation, self.row[cut], self.column[cut])


class NonlinearProjection(Projection):
    """H functions g_h of x in the place of θ_h·x: generalised sliced Wasserstein. Slower than directions.

    Only `shape` and `project` have no default, if `project` is written in PyTorch. No step is longer than 1/λ,
    λ being the largest eigenvalue of 1/H Σ_h ∇g_h ∇g_hᵀ at some of the particles. Such slices work on the
    data's own grid or in coordinates W of it, not on the coarse grids of a pyramid, and not where a part of x
    is observed.
    """

    @abc.abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Return g_h(x) for every function and every column: d×n → H×n."""

    def adjoint(self, a: Tensor, x: Tensor | None = None) -> Tensor:
        """Return Σ_h a_h ∇g_h(x) for every column: H×n and d×n → d×n. The default differentiates `project`."""
        if x is None:
            raise TypeError("the gradient of a nonlinear slice depends on x: call adjoint(a, x)")
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.project(point), point, grad_outputs=a)
        return gradient

    def dense(self) -> Tensor:
        """Raise `TypeError`: no matrix does what these functions do."""
        raise TypeError("nonlinear slices have no matrix")

    def rows(self, cut: slice) -> NonlinearProjection:
        """Return some of the functions. The default computes all and leaves out the others."""
        return _SomeSlices(self, cut)


class _SomeSlices(NonlinearProjection):
    """Some functions of a nonlinear projection."""

    def __init__(self, whole: NonlinearProjection, cut: slice) -> None:
        self.whole = whole
        self.cut = cut

    @property
    def shape(self) -> tuple[int, int]:
        """(H, d)."""
        count, d = self.whole.shape
        return len(range(*self.cut.indices(count))), d

    def project(self, x: Tensor) -> Tensor:
        """Return g_h(x) of these: d×n → H×n."""
        return self.whole.project(x)[self.cut]

    def adjoint(self, a: Tensor, x: Tensor | None = None) -> Tensor:
        """Return Σ_h a_h ∇g_h(x) over these: H×n and d×n → d×n."""
        every = a.new_zeros(self.whole.shape[0], a.shape[1])
        every[self.cut] = a
        return self.whole.adjoint(every, x)


class ProjectionSampler(Contract):
    """Draws directions. Subclasses are attrs classes whose fields are the parameters of the recipe.

    Only `sample` has no default. A sampler that wants to know more than the grid overrides one of the methods
    that return another sampler: `patched`, `conditioned`, `fitted` and `adapted`, called in this order.
    """

    tempered: bool = False
    """Whether E[θθᵀ] is far from even on purpose: then no step is longer than 1/λ, λ being its largest
    eigenvalue, which the engine estimates. Elsewhere steps are shortened only where they would grow."""
    isotropic: bool = False
    """Whether E[θθᵀ] = I/d on every grid: then its eigenvalues need not be estimated."""
    sees_data: bool = False
    """Whether `fitted` is overridden: then directions depend on the data, and the engine shows it these."""
    adapts: bool = False
    """Whether `adapted` is overridden: then directions follow the particles, and each step draws its own."""
    looks_at: int | None = 4096
    """How many particles, and how many data, `adapted` gets: random ones, others at every step; None: all."""

    @abc.abstractmethod
    def sample(self, space: Space, count: int, draw: Draw) -> Tensor | Projection:
        """Return `count` directions of unit length in `space`, as a matrix (count × d) or an operator.

        `space` is the grid of the current stage, so an image sampler sees C×k×k and needs to know
        nothing about upsampling. Draw randomness from `draw` only: the same draw gives the same directions. A
        sampler that needs an image says so: `space.grid("projection 'mine'")` gives (C, H, W), or an error with
        that name. Directions that are to count differently come as `DenseProjection(theta, weights)`.
        """

    def patched(self, patch: int, dilation: int = 1) -> ProjectionSampler:
        """Return this sampler with patches of S×S pixels, `dilation` apart, for a schedule that says which.

        The default sets the parameters `patch` and `dilation` if the sampler has them.
        """
        wanted = {"patch": patch} if dilation == 1 else {"patch": patch, "dilation": dilation}
        mine: Any = self
        lacking = wanted.keys() - {field.name for field in attrs.fields(type(mine))}
        if lacking:
            dilated = f" dilated by {dilation}" if dilation != 1 else ""
            name = type(mine).__name__
            raise DataError(
                f"the schedule asks for patches of {patch}×{patch}{dilated}, and {name} has no parameter "
                f"'{min(lacking)}'; take locally-connected or conv-stack, or another schedule, or give the "
                "class "
                f'{name} the line {min(lacking)}: int = parameter("…", default={wanted[min(lacking)]})'
            )
        try:
            changed: ProjectionSampler = attrs.evolve(mine, **wanted)
        except ValueError as error:
            raise DataError(
                f"the schedule asks for patches that {type(mine).__name__} cannot have: {error}"
            ) from None
        return changed

    def conditioned(self, condition: Space) -> ProjectionSampler:
        """Return the sampler for conditions Y in this space, ℝ^l; l is 0 where nothing stands beside x."""
        del condition
        return self

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        """Return the sampler for a stage, made from the data in its coordinates (d_k×N); see `sees_data`."""
        del space, z
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return all that `fitted` has taken from the data, by name, for saved models; see `of_tensors`.

        The engine asks the sampler that `fitted` has returned.
        """
        return {}

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> ProjectionSampler:
        """Return the sampler that `fitted` returned, made of its `tensors`, on the device and in the numbers of
        `like`. It draws the same directions to the bit.

        The engine calls this in the place of `fitted` when a model is sampled, and after `fitted` in the run
        itself, so that both draw directions from the same numbers. Tensors are on the CPU. Samplers with
        `sees_data` that do not override it cannot be saved in models (`model.save`).
        """
        del space, tensors, like
        if self.sees_data:
            raise PluginError(
                f"{type(self).__name__} looks at the data and has no of_tensors, which makes it again of its "
                "tensors: write both"
            )
        return self

    def adapted(self, space: Space, particles: Tensor, data: Tensor, draw: Draw) -> ProjectionSampler:
        """Return the sampler for one step, made from particles and data in the stage's coordinates.

        They are d_k×n and d_k×m, of x alone, without Y: `looks_at` of each, or all where there are fewer. Only
        samplers that declare `adapts` are asked. No step is longer than 1/λ then, λ being the largest
        eigenvalue of 1/H Σ w θθᵀ over the step's own directions. Such directions cannot be drawn again without
        the particles: a run that saves a model refuses them.
        """
        del space, particles, data, draw
        return self

    def together(self, space: Space) -> int:
        """Return how many directions have to be drawn in one call, as for an orthonormal basis; usually 1."""
        del space
        return 1


@attrs.frozen(kw_only=True, eq=False)
class ProjectionWrapper(ProjectionSampler):
    """A sampler that changes the directions of another one, `of`. Only `sample` has no default.

    Whatever the engine tells it, it hands on to the other one. Its flags are that one's, but for `isotropic`,
    which is False.
    """

    of: ProjectionSampler = parameter("the sampler whose directions are changed")

    @property
    def tempered(self) -> bool:  # type: ignore[override]
        """Whether the other one's directions are uneven on purpose."""
        return self.of.tempered

    @property
    def sees_data(self) -> bool:  # type: ignore[override]
        """Whether the other one looks at the data."""
        return self.of.sees_data

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """Whether the other one follows the particles."""
        return self.of.adapts

    @property
    def looks_at(self) -> int | None:  # type: ignore[override]
        """As many as the other one."""
        return self.of.looks_at

    def patched(self, patch: int, dilation: int = 1) -> ProjectionSampler:
        """Hand the patch on to the other one."""
        return attrs.evolve(self, of=self.of.patched(patch, dilation))

    def conditioned(self, condition: Space) -> ProjectionSampler:
        """Let the other one know the space of conditions."""
        return attrs.evolve(self, of=self.of.conditioned(condition))

    def fitted(self, space: Space, z: Tensor) -> ProjectionSampler:
        """Let the other one see the data (d_k×N)."""
        return attrs.evolve(self, of=self.of.fitted(space, z))

    def tensors(self) -> dict[str, Tensor]:
        """Return what the other one has taken from the data, as `of/…`."""
        return {f"of/{name}": part for name, part in self.of.tensors().items()}

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> ProjectionWrapper:
        """Let the other one be made again of what it has taken from the data."""
        inner = {name.removeprefix("of/"): tensors[name] for name in tensors if name.startswith("of/")}
        return attrs.evolve(self, of=self.of.of_tensors(space, inner, like))

    def adapted(self, space: Space, particles: Tensor, data: Tensor, draw: Draw) -> ProjectionSampler:
        """Let the other one see particles and data of a step."""
        return attrs.evolve(self, of=self.of.adapted(space, particles, data, draw))

    def together(self, space: Space) -> int:
        """As many as the other one."""
        return self.of.together(space)

    def inner(self, space: Space, count: int, draw: Draw) -> DenseProjection:
        """Return `count` directions of the other one as a matrix, `theta` (count × d), with their `weights`.

        Nonlinear slices have no matrix: with them it raises `TypeError`.
        """
        drawn = self.of.sample(space, count, draw)
        if isinstance(drawn, Tensor):
            return DenseProjection(drawn)
        return DenseProjection(drawn.dense(), drawn.weights)
