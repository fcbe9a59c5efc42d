"""Checks of conditions."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.checks.adapter import transpose_gap
from cswf_core.errors import DataError
from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Draw, Key, Masked
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import (
    COLOUR,
    GREY,
    POINTS,
    FlowSubject,
    bare,
    constant,
    recipe_with,
    samples,
)
from cswf_core.testing.outcome import FaultError, SkipError, one_sentence, require, require_laws, takeable

COUNT = 30
"""Particles whose Y is drawn."""

ROUNDING = 1e-9
"""How far two ways to compute one number in float64 may be apart."""

STILL = 1e-5
"""How far the part of x that is seen may move in float32, where it is not a mask."""


def draw(role: str = "condition") -> Draw:
    """Return a draw of float64 numbers."""
    return Key(11, role).open(dtype=torch.float64)


class Encoding(FlowSubject[CheckedCondition]):
    """A condition, and data that have the Y it needs."""

    kind = "condition"

    def __init__(self, plugin: ConditionEncoder, data: Dataset | None = None) -> None:
        super().__init__(plugin)
        self.offered = (data,) if data is not None else tuple(map(samples, (POINTS, GREY, COLOUR)))

    @cached_property
    def taken(self) -> Dataset:
        """The first data that the condition takes, as they were."""
        wanted = (
            "a condition that takes images or points with labels, vectors and held-out samples "
            "(others: check_condition(plugin, data=…))"
        )
        return next(takeable(self.offered, self.length_for, partial(FaultError, wanted)))

    def length_for(self, data: Dataset) -> int:
        """Return l for some data, with the Y that the condition gives them."""
        return self.checked.length(self.checked.encoded(data))

    @property
    def data(self) -> Dataset:
        """Data that the condition takes, with the Y that it gives them."""
        return self.checked.encoded(self.taken)

    @property
    def y(self) -> Conditions:
        """Y of the data, vectors in float64."""
        return self.data.conditions.to(torch.device("cpu"), torch.float64)

    def drawn(self) -> Conditions:
        """Return Y₀ of some particles."""
        return self.checked.draw(self.data, COUNT, draw())

    def answers(self) -> list[Any]:
        """Return Y₀, l, the data that are chosen, and θ_y and its weights in few dimensions and in many."""
        y = self.drawn()
        length = self.length_for(self.taken)
        balanced = self.checked.balance(self.data, draw("balance"))
        answers = [y.labels, y.vectors, y.origin, length, balanced]
        if length:
            dimensions = (1, self.data.space.dimension, 3072)
            answers.append(self.checked.directions(length, COUNT, draw()))
            answers += [self.checked.weights(d, length, COUNT, draw()) for d in dimensions]
        return answers

    def beside_x(self) -> int:
        """Return l, if Y stands beside x; else there is nothing to project."""
        length = self.length_for(self.taken)
        if length == 0:
            raise SkipError("l = 0: nothing stands beside x")
        return length

    def theta_y(self, role: str = "condition") -> Tensor:
        """Return a few vectors like θ_y, of any length: 7×l."""
        return draw(role).normal(7, self.beside_x())

    def products(self, theta_y: Tensor, y: Conditions | None = None, count: int | None = None) -> Tensor:
        """Return θ_y·y of all samples, or of `count` others, checked: H×n."""
        if y is None:
            return self.checked.project(theta_y, self.y, count=len(self.data))
        return self.checked.project(theta_y, y, count=count)

    def recipe(self) -> Recipe:
        """Return the recipe of a short flow with the condition."""
        schedule = constant(max(192, 4 * self.data.space.dimension))
        return recipe_with("condition", self.plugin, self.taken, schedule=schedule)


def data_that_lack_y_are_refused_in_a_sentence(subject: Encoding) -> None:
    """For points without labels and vectors, `length` works or raises a `DataError`, and nothing else."""
    try:
        subject.length_for(bare(samples(POINTS)))
    except DataError as error:
        one_sentence(error)


def y_of_a_sample_is_its_own(subject: Encoding) -> None:
    """`encode` gives a sample the same Y alone and among others: data may come some at a time."""
    some = torch.arange(0, len(subject.taken), 3)
    together, apart = (
        subject.checked.encoded(data).conditions for data in (subject.taken, subject.taken.take(some))
    )
    for kind in ("labels", "vectors"):
        whole = getattr(together.take(some), kind)
        part = getattr(apart, kind)
        require((whole is None) == (part is None), f"{kind} for some samples as for all", "others")
        if whole is not None:
            same = torch.allclose(whole.double(), part.double(), rtol=1e-5, atol=1e-6)
            require(same, f"the same {kind} for a sample alone as among others", "others")


def y_is_drawn_from_the_data(subject: Encoding) -> None:
    """Y₀ of particles is that of the data: labels that these have, vectors within their range."""
    y = subject.drawn()
    own = subject.y
    if y.labels is not None and own.labels is not None:
        labels = set(y.labels.tolist())
        require(labels <= set(own.labels.tolist()), "labels that the data have", sorted(labels))
    if y.vectors is not None and own.vectors is not None:
        low = own.vectors.amin(dim=1, keepdim=True)
        high = own.vectors.amax(dim=1, keepdim=True)
        within = bool(((y.vectors >= low - STILL) & (y.vectors <= high + STILL)).all())
        require(within, "vectors within the range of the data's", "vectors beyond it")


def products_are_linear_in_directions(subject: Encoding) -> None:
    """`project` is θ_y·y: twice the direction, twice the product; the sum of two, the sum of both."""
    a = subject.theta_y("a")
    b = subject.theta_y("b")
    apart = 2 * subject.products(a) - subject.products(b)
    gap = float((subject.products(2 * a - b) - apart).abs().max())
    near = gap <= ROUNDING * max(1.0, float(apart.abs().max()))
    require(near, "project(2θ − φ) = 2 project(θ) − project(φ)", f"values {gap:.3g} apart")


def the_product_of_a_sample_is_its_own(subject: Encoding) -> None:
    """θ_y·y of some samples is the same as among all of them: the engine takes them in groups."""
    theta_y = subject.theta_y()
    some = torch.arange(len(subject.data) - 1, 0, -3)
    alone = subject.products(theta_y, subject.y.take(some), len(some))
    gap = float((subject.products(theta_y)[:, some] - alone).abs().max())
    require(gap <= ROUNDING, "the same product of a sample alone and among others", f"{gap:.3g} apart")


def groups_agree_with_products(subject: Encoding) -> None:
    """θ_y·y looked up by group is what `project` returns for every sample."""
    theta_y = subject.theta_y()
    groups = subject.checked.groups(subject.y)
    if groups is None:
        raise SkipError("it makes no groups")
    index, conditions = groups
    looked_up = subject.products(theta_y, conditions, len(conditions))[:, index.long()]
    gap = float((looked_up - subject.products(theta_y)).abs().max())
    require(gap <= ROUNDING, "products by group that are those of `project`", f"values {gap:.3g} apart")


def strata_divide_particles_and_data(subject: Encoding) -> None:
    """Each particle is in exactly one stratum, and no datum in two."""
    strata = subject.checked.strata(subject.drawn(), subject.y, sizes=(COUNT, len(subject.data)))
    if strata is None:
        raise SkipError("it has no strata: all flow together")
    theirs = torch.cat([data for _, data in strata])
    twice = len(theirs) - len(torch.unique(theirs))
    require(twice == 0, "each datum in one stratum at most", f"{twice} in two")


def an_observation_is_an_orthogonal_projection(subject: Encoding) -> None:
    """O x, what is seen, is linear and symmetric, and seeing it again changes nothing; P x is the rest."""
    seen = subject.checked.observation(subject.data, subject.drawn(), draw("observation"))
    if seen is None:
        raise SkipError("it observes no part of x")
    u, v = (draw(role).normal(subject.data.space.dimension, COUNT) for role in ("u", "v"))
    Ou, Pu, OOu = subject.checked.observed_parts(seen, u)
    gaps = {
        "O(2u − v) = 2 Ou − Ov": seen.seen(2 * u - v) - (2 * Ou - seen.seen(v)),
        "O(Ou) = Ou": OOu - Ou,
        "Ou + Pu = u": Ou + Pu - u,
        "Ou·v = u·Ov": transpose_gap(v, Ou, seen.seen(v), u),
    }
    largest = {law: float(gap.abs().max()) for law, gap in gaps.items()}
    require_laws(largest, 1e-6, "values {} apart")


def the_observed_part_never_moves(subject: Encoding) -> str:
    """After a flow, what is seen of x is what it was: to the bit for `Masked` pixels, else to rounding."""
    _, flow = subject.flowed
    if flow.observation is None:
        raise SkipError("it observes no part of x")
    before, after = (flow.observation.seen(x) for x in (flow.originals().cpu(), flow.samples().x))
    gap = float((before - after).abs().max())
    exact = isinstance(flow.observation, Masked)
    still = torch.equal(before, after) if exact else gap <= STILL
    require(still, "the part of x that is seen where it was", f"values moved by up to {gap:.3g}")
    return "to the bit" if exact else f"up to {gap:.1e}"
