"""Adapter of projection samplers: directions of unit length, operators with one adjoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from cswf_core.checks.adapter import Adapter, calling, parameters_of, sizes
from cswf_core.errors import PluginError
from cswf_core.interfaces import (
    DenseProjection,
    Draw,
    Key,
    NonlinearProjection,
    Owner,
    Projection,
    ProjectionSampler,
    Space,
    Stage,
)

VECTORS_CHECKED = 8
"""Vectors that an operator is checked on."""


def samplers_inside(value: object) -> Iterator[ProjectionSampler]:
    """Yield the samplers among a plugin's parameters, also those in lists."""
    for each in value if isinstance(value, (list, tuple)) else parameters_of(value):
        if isinstance(each, ProjectionSampler):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from samplers_inside(each)


def all_samplers(plugin: ProjectionSampler) -> Iterator[tuple[ProjectionSampler, ProjectionSampler]]:
    """Yield each sampler inside another one, at any depth, behind the one around it."""
    for inner in samplers_inside(plugin):
        yield plugin, inner
        yield from all_samplers(inner)


def lacks_of_tensors(plugin: ProjectionSampler) -> bool:
    """Return whether a sampler looks at the data by a `fitted` that comes without an `of_tensors`."""

    def definer(method: str) -> type:
        return next(base for base in type(plugin).__mro__ if method in vars(base))

    return plugin.sees_data and not issubclass(definer("of_tensors"), definer("fitted"))


class CheckedSampler(Adapter, ProjectionSampler):
    """A projection sampler whose directions have the right shape, unit length and one adjoint."""

    def __init__(self, plugin: ProjectionSampler, owner: Owner) -> None:
        super().__init__(plugin, owner)
        if self.looks_at is not None and (not isinstance(self.looks_at, int) or self.looks_at < 1):
            raise self._fault("looks_at", "None or a whole number, 1 or more", repr(self.looks_at))
        self._proved: set[tuple[Space, type[Projection]]] = set()
        """Operators whose products have been compared with their matrix."""

    def sample(self, space: Space, count: int, draw: Draw, *, check: bool = True) -> Projection:
        """Return `count` directions as an operator; `check` checks lengths and weights.

        Lengths and products of an operator that is no matrix are checked once for each space: they take as long
        as a step.
        """
        answer = self._call("sample", space, count, draw)
        shape = (count, space.dimension)
        if isinstance(answer, Tensor):
            self._tensor(answer, "sample", shape, draw.dtype, draw.device)
            projection: Projection = DenseProjection(answer)
        elif not isinstance(answer, Projection):
            raise self._fault("sample", "a tensor or a Projection", type(answer).__name__)
        elif tuple(answer.shape) != shape:
            raise self._fault("sample", f"a {sizes(shape)} operator", f"shape {tuple(answer.shape)}")
        else:
            projection = answer
        if projection.weights is not None:
            self._tensor(projection.weights, "weights", (count,), draw.dtype, draw.device)
        if check:
            self._check_numbers(projection, space, draw)
        return projection

    def _check_numbers(self, projection: Projection, space: Space, draw: Draw) -> None:
        """Check lengths and weights and, of an operator, products."""
        shape = projection.shape
        weights = projection.weights
        if weights is not None:
            self._finite(weights, "weights")
            if bool((weights < 0).any()):
                raise self._fault("weights", "numbers of 0 or more", f"{float(weights.min()):.4g}")
            mean = float(weights.mean())
            if len(weights) >= 32 and not 1 / 5 < mean < 5:  # of fewer, the mean says little
                raise self._fault("weights", "numbers that are 1 on average", f"{mean:.3g} on average")
        matrix = isinstance(projection, DenseProjection)
        if not matrix and (space, type(projection)) in self._proved:
            return
        if isinstance(projection, NonlinearProjection):
            self._check_gradient(projection, draw)
        else:
            with calling(self.owner, "dense"):
                theta = projection.dense()
            self._unit(self._tensor(theta, "dense", shape, draw.dtype, draw.device), "sample")
            gaps = [] if matrix else self.product_gaps(projection, theta)
            for method, gap, largest in gaps:
                if not gap <= 1e-3 * (1 + largest):
                    expected = f"what dense() ({sizes(theta.shape)}) gives"
                    raise self._fault(method, expected, f"values {gap:.3g} apart")
        self._proved.add((space, type(projection)))

    def recheck(self) -> None:
        """Check the products of operators again, the next time that they are drawn."""
        self._proved.clear()

    def product_gaps(self, projection: Projection, theta: Tensor) -> Iterator[tuple[str, float, float]]:
        """Yield how far `project` and `adjoint` are from products with θ (H×d) on a few random vectors.

        With each goes the largest number of the product with θ.
        """
        draw = Key(0, "operator").open(theta.device, theta.dtype)
        x = draw.normal(theta.shape[1], VECTORS_CHECKED)
        a = draw.normal(theta.shape[0], VECTORS_CHECKED)
        for method, vectors, wanted in (("project", x, theta @ x), ("adjoint", a, theta.T @ a)):
            with calling(self.owner, method):
                got = getattr(projection, method)(vectors.clone())
            self._like(got, method, wanted)
            yield method, float((got - wanted).abs().max()), float(wanted.abs().max())

    def _check_gradient(self, projection: NonlinearProjection, draw: Draw) -> None:
        """Compare `adjoint` of nonlinear slices with differences of `project`, at a few random points."""
        count, d = projection.shape
        numbers = Key(0, "operator").open(draw.device, draw.dtype)
        x = numbers.normal(d, VECTORS_CHECKED)
        v = numbers.normal(d, VECTORS_CHECKED) / d**0.5
        a = numbers.normal(count, VECTORS_CHECKED)
        h = 1e-5 if draw.dtype == torch.float64 else 1e-2
        with calling(self.owner, "project"):
            ahead = projection.project(x + h * v)
            behind = projection.project(x - h * v)
        self._finite(self._like(ahead, "project", a), "project")
        with calling(self.owner, "adjoint"):
            gradient = projection.adjoint(a, x)
        self._finite(self._like(gradient, "adjoint", x), "adjoint")
        meant = (a * (ahead - behind) / (2 * h)).sum(dim=0)
        got = (v * gradient).sum(dim=0)
        size = torch.linalg.vector_norm(a * (ahead - behind) / (2 * h), dim=0)
        # In float32, differences are within some percent of a gradient, in parts of its terms.
        if bool(((got - meant).abs() > 0.05 * (size + ahead.abs().mean())).any()):
            gap = float((got - meant).abs().max())
            raise self._fault("adjoint", "Σ a ∇g(x), the gradient of what project gives", f"{gap:.3g} apart")

    def conditioned(self, condition: Space) -> CheckedSampler:
        """Return the sampler that knows Y's space, checked too."""
        return self._another(self._call("conditioned", condition), "conditioned")

    def fitted(self, space: Space, z: Tensor) -> CheckedSampler:
        """Return the sampler that has seen the data, z (d_k×N), checked too."""
        return self._another(self._call("fitted", space, z), "fitted")

    def tensors(self) -> dict[str, Tensor]:
        """Return what the sampler has taken from the data, on the CPU."""
        named = self._named(self._call("tensors"), "tensors")
        return {name: part.detach().cpu() for name, part in named.items()}

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> CheckedSampler:
        """Return the sampler whose tensors these are, checked too."""
        return self._another(self._call("of_tensors", space, tensors, like), "of_tensors")

    @property
    def lacking(self) -> ProjectionSampler | None:
        """The sampler, this or one inside it, that looks at the data without an `of_tensors`; None: none."""
        inside = (inner for _, inner in all_samplers(self.plugin))
        return next(filter(lacks_of_tensors, (self.plugin, *inside)), None)

    def refuse_lacking(self) -> None:
        """Raise `PluginError` if a saved model could not draw these directions without the data."""
        lacking = self.lacking
        if lacking is not None:
            raise PluginError(
                f"{self.owner}: {type(lacking).__name__} looks at the data, and a saved model (model.save) has "
                "only what its `tensors` returns: write `tensors` and `of_tensors`, or save no model"
            )

    def adapted(self, space: Space, particles: Tensor, data: Tensor, draw: Draw) -> CheckedSampler:
        """Return the sampler that has seen particles and data of a step (d_k×n each), checked too."""
        return self._another(self._call("adapted", space, particles, data, draw), "adapted")

    def _another(self, answer: object, method: str) -> CheckedSampler:
        if answer is self.plugin:
            return self
        if not isinstance(answer, ProjectionSampler):
            raise self._fault(method, "a ProjectionSampler", type(answer).__name__)
        another = CheckedSampler(answer, self.owner)
        another._proved = self._proved
        return another

    def of_stage(self, stage: Stage) -> CheckedSampler:
        """Return the sampler of a stage: this one, or the stage's own behind its checks."""
        chosen = self
        if stage.sampler is not None:
            same = type(stage.sampler) is type(self.plugin)
            chosen = CheckedSampler(
                stage.sampler, self.owner if same else Owner.of("projection", stage.sampler)
            )
        chosen.refuse_unseeing()
        return chosen

    def refuse_unseeing(self) -> None:
        """Raise `PluginError` if a sampler inside follows the particles, and the one around it does not."""
        for outer, inner in all_samplers(self.plugin):
            if inner.adapts and not outer.adapts:
                raise PluginError(
                    f"{self.owner}: {type(outer).__name__} has inside it {type(inner).__name__}, which "
                    "follows the particles, and does not show it these: put the one that follows them "
                    "outside"
                )

    def together(self, space: Space) -> int:
        """Return how many directions have to be drawn in one call."""
        return self._whole(self._call("together", space), "together", 1)
