"""Checks of conditions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.errors import DataError
from cswf_core.flow.flow import Flow
from cswf_core.interfaces import ConditionEncoder, Conditions, Dataset, Draw, Key, Masked
from cswf_core.recipe import Recipe
from cswf_core.testing.flows import IN_A_FLOW, SHARED, flow_of, recipe_with
from cswf_core.testing.generators import require_untouched
from cswf_core.testing.outcome import FaultError, Kit, SkipError, Subject
from cswf_core.testing.samples import COLOUR, GREY, POINTS, bare, samples

COUNT = 30
"""Particles whose Y is drawn."""

DIRECTIONS = 7

ROUNDING = 1e-9
"""How far two ways to compute one number in float64 may be apart."""

STILL = 1e-5
"""How far the part of x that is seen may move in float32, where it is not a mask."""


def draw(role: str = "condition", index: int = 0) -> Draw:
    """Return a draw of float64 numbers."""
    return Key(11, role, index=index).open(dtype=torch.float64)


class Encoding(Subject):
    """A condition, and data that have the Y it needs."""

    kind = "condition"

    def __init__(self, plugin: ConditionEncoder, data: Dataset | None = None) -> None:
        super().__init__(plugin)
        self.offered = (data,) if data is not None else tuple(map(samples, (POINTS, GREY, COLOUR)))

    @cached_property
    def condition(self) -> CheckedCondition:
        """The condition behind its checks."""
        condition: CheckedCondition = self.checked
        return condition

    @property
    def data(self) -> Dataset:
        """Data that the condition takes, with the Y that it gives them."""
        return self.condition.encoded(self.taken)

    @cached_property
    def taken(self) -> Dataset:
        """The first data that the condition takes, as they were."""
        refusals = []
        for data in self.offered:
            try:
                self.condition.length(self.condition.encoded(data))
            except DataError as error:
                refusals.append(str(error))
            else:
                return data
        raise FaultError(
            "a condition that takes images or points with labels, vectors and held-out samples "
            "(others: check_condition(plugin, data=…))",
            refusals[0],
        )

    @property
    def length(self) -> int:
        """l."""
        return self.condition.length(self.data)

    @property
    def y(self) -> Conditions:
        """Y of the data, vectors in float64."""
        return self.data.conditions.to(torch.device("cpu"), torch.float64)

    def beside_x(self) -> int:
        """Return l, if Y stands beside x; else there is nothing to project."""
        if self.length == 0:
            raise SkipError("l = 0: nothing stands beside x")
        return self.length

    def products(self, theta_y: Tensor, y: Conditions, count: int) -> Tensor:
        """Return θ_y·y of `count` samples, checked: H×n."""
        return self.condition.project(theta_y, y, count=count)

    def recipe(self, **sections: Any) -> Recipe:
        """Return the recipe of a short flow with the condition."""
        directions = max(192, 4 * self.data.space.dimension)
        schedule = {"use": "constant", "steps": 8, "directions": directions}
        return recipe_with("condition", self.plugin, self.taken, **{"schedule": schedule, **sections})

    @cached_property
    def flow(self) -> Flow:
        """A short flow, run to its end."""
        flow = flow_of(self.recipe())
        flow.run()
        return flow

    def seen(self) -> None:
        """Raise `SkipError` unless the condition sees a part of x."""
        if self.flow.observation is None:
            raise SkipError("it observes no part of x")


def the_length_is_a_whole_number(subject: Encoding) -> None:
    """l is 0 or more, and the same when it is asked for again."""
    length = subject.length
    if not isinstance(length, int) or length < 0 or length != subject.length:
        raise FaultError(
            "l as a whole number, 0 or more, the same each time", f"{length!r}, {subject.length!r}"
        )


def data_that_lack_y_are_refused_in_a_sentence(subject: Encoding) -> None:
    """For points without labels and vectors, `length` works or raises a `DataError`, and nothing else."""
    try:
        subject.condition.length(subject.condition.encoded(bare(samples(POINTS))))
    except DataError as error:
        if "\n" in "\n".join(map(str, error.args)):
            raise FaultError("one sentence", f"{str(error)!r}") from None


def y_of_a_sample_is_its_own(subject: Encoding) -> None:
    """`encode` gives a sample the same Y alone and among others: data may come some at a time."""
    some = torch.arange(0, len(subject.taken), 3)
    together, apart = (
        subject.condition.encoded(data).conditions for data in (subject.taken, subject.taken.take(some))
    )
    for kind in ("labels", "vectors"):
        whole, part = getattr(together.take(some), kind), getattr(apart, kind)
        if (whole is None) != (part is None):
            raise FaultError(f"{kind} for some samples as for all", "others")
        if whole is not None and not torch.allclose(whole.double(), part.double(), rtol=1e-5, atol=1e-6):
            raise FaultError(f"the same {kind} for a sample alone as among others", "others")


def y_is_drawn_from_the_data(subject: Encoding) -> None:
    """Y₀ of particles is that of the data: labels that these have, vectors within their range."""
    y, own = subject.condition.draw(subject.data, COUNT, draw()), subject.y
    if (
        y.labels is not None
        and own.labels is not None
        and not set(y.labels.tolist()) <= set(own.labels.tolist())
    ):
        raise FaultError("labels that the data have", f"{sorted(set(y.labels.tolist()))}")
    if y.vectors is not None and own.vectors is not None:
        low, high = own.vectors.amin(dim=1, keepdim=True), own.vectors.amax(dim=1, keepdim=True)
        if not bool(((y.vectors >= low - STILL) & (y.vectors <= high + STILL)).all()):
            raise FaultError("vectors within the range of the data's", "vectors beyond it")


def y_follows_from_its_key(subject: Encoding) -> None:
    """The same key gives the same Y₀, and the global generators are left alone."""

    def drawn() -> Conditions:
        return subject.condition.draw(subject.data, COUNT, draw())

    require_untouched(drawn)
    first, second = drawn(), drawn()
    for name in ("labels", "vectors", "origin"):
        a, b = getattr(first, name), getattr(second, name)
        if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
            raise FaultError("the same Y₀ when the same key is drawn from twice", f"other {name}")


def directions_of_y_have_unit_length(subject: Encoding) -> None:
    """θ_y has length 1, follows from its key, and is as many numbers as Y has."""
    length = subject.beside_x()
    first = subject.condition.directions(length, COUNT, draw())
    if not torch.equal(first, subject.condition.directions(length, COUNT, draw())):
        raise FaultError("the same θ_y when the same key is drawn from twice", "others")


def weights_lie_within_0_and_1(subject: Encoding) -> None:
    """a, the length of the θ_x part of directions, is in [0, 1], in few dimensions and in many."""
    length = subject.beside_x()
    for dimension in (1, subject.data.space.dimension, 3072):
        subject.condition.weights(dimension, length, COUNT, draw())


def products_are_linear_in_directions(subject: Encoding) -> None:
    """`project` is θ_y·y: twice the direction, twice the product; the sum of two, the sum of both."""
    length, y, n = subject.beside_x(), subject.y, len(subject.data)
    a, b = (draw(role).normal(DIRECTIONS, length) for role in ("a", "b"))
    both = subject.products(2 * a - b, y, n)
    apart = 2 * subject.products(a, y, n) - subject.products(b, y, n)
    gap = float((both - apart).abs().max())
    if not gap <= ROUNDING * max(1.0, float(apart.abs().max())):
        raise FaultError("project(2θ − φ) = 2 project(θ) − project(φ)", f"values {gap:.3g} apart")


def the_product_of_a_sample_is_its_own(subject: Encoding) -> None:
    """θ_y·y of some samples is the same as among all of them: the engine takes them in groups."""
    length, y, n = subject.beside_x(), subject.y, len(subject.data)
    theta_y = draw().normal(DIRECTIONS, length)
    some = torch.arange(n - 1, 0, -3)
    gap = subject.products(theta_y, y, n)[:, some] - subject.products(theta_y, y.take(some), len(some))
    if not float(gap.abs().max()) <= ROUNDING:
        raise FaultError(
            "the same product of a sample alone and among others", f"{float(gap.abs().max()):.3g} apart"
        )


def groups_agree_with_products(subject: Encoding) -> None:
    """θ_y·y looked up by group is what `project` returns for every sample."""
    length, y, n = subject.beside_x(), subject.y, len(subject.data)
    groups = subject.condition.groups(y)
    if groups is None:
        raise SkipError("it makes no groups")
    index, conditions = groups
    theta_y = draw().normal(DIRECTIONS, length)
    looked_up = subject.products(theta_y, conditions, len(conditions))[:, index.long()]
    gap = float((looked_up - subject.products(theta_y, y, n)).abs().max())
    if not gap <= ROUNDING:
        raise FaultError("products by group that are those of `project`", f"values {gap:.3g} apart")


def strata_divide_particles_and_data(subject: Encoding) -> None:
    """Each particle is in exactly one stratum, and no datum in two."""
    particles = subject.condition.draw(subject.data, COUNT, draw())
    strata = subject.condition.strata(particles, subject.y, sizes=(COUNT, len(subject.data)))
    if strata is None:
        raise SkipError("it has no strata: all flow together")
    theirs = torch.cat([data for _, data in strata])
    if len(theirs) != len(torch.unique(theirs)):
        raise FaultError(
            "each datum in one stratum at most", f"{len(theirs) - len(torch.unique(theirs))} in two"
        )


def an_observation_is_an_orthogonal_projection(subject: Encoding) -> None:
    """O x, what is seen, is linear and symmetric, and seeing it again changes nothing; P x is the rest."""
    y = subject.condition.draw(subject.data, COUNT, draw())
    seen = subject.condition.observation(subject.data, y, draw("observation"))
    if seen is None:
        raise SkipError("it observes no part of x")
    u, v = (draw(role).normal(subject.data.space.dimension, COUNT) for role in ("u", "v"))
    gaps = {
        "O(2u − v) = 2 Ou − Ov": seen.seen(2 * u - v) - (2 * seen.seen(u) - seen.seen(v)),
        "O(Ou) = Ou": seen.seen(seen.seen(u)) - seen.seen(u),
        "Ou + Pu = u": seen.seen(u) + seen.free(u) - u,
        "Ou·v = u·Ov": (seen.seen(u) * v).sum(dim=0) - (u * seen.seen(v)).sum(dim=0),
    }
    for law, gap in gaps.items():
        if not float(gap.abs().max()) <= 1e-6:
            raise FaultError(law, f"values {float(gap.abs().max()):.3g} apart")


def the_observed_part_never_moves(subject: Encoding) -> str:
    """After a flow, what is seen of x is what it was: to the bit for `Masked` pixels, else to rounding."""
    subject.seen()
    flow = subject.flow
    assert flow.observation is not None
    seen = flow.observation
    before, after = (seen.seen(x) for x in (flow.originals().cpu(), flow.samples().x))
    gap = float((before - after).abs().max())
    exact = isinstance(seen, Masked)
    if not (torch.equal(before, after) if exact else gap <= STILL):
        raise FaultError("the part of x that is seen where it was", f"values moved by up to {gap:.3g}")
    return "to the bit" if exact else f"up to {gap:.1e}"


def balanced_data_are_data(subject: Encoding) -> None:
    """`balance` names data that there are, and follows from its key."""
    first, second = (subject.condition.balance(subject.data, draw("balance")) for _ in range(2))
    if first is None:
        raise SkipError("it flows to all data as they are")
    if second is None or not torch.equal(first, second):
        raise FaultError("the same data when the same key is drawn from twice", "others")


KIT = Kit(
    Encoding,
    (
        *SHARED,
        the_length_is_a_whole_number,
        data_that_lack_y_are_refused_in_a_sentence,
        y_of_a_sample_is_its_own,
        y_is_drawn_from_the_data,
        y_follows_from_its_key,
        directions_of_y_have_unit_length,
        weights_lie_within_0_and_1,
        products_are_linear_in_directions,
        the_product_of_a_sample_is_its_own,
        groups_agree_with_products,
        strata_divide_particles_and_data,
        an_observation_is_an_orthogonal_projection,
        the_observed_part_never_moves,
        balanced_data_are_data,
        *IN_A_FLOW,
    ),
)
