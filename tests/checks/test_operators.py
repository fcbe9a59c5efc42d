"""Directions as an operator: checked once, worked with by its own products, made a matrix next to never."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import torch

from cswf_core.errors import PluginError
from cswf_core.interfaces import ProjectionSampler
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Pyramid
from tests.checks.parts import OWNERS, Spied, named, variant
from tests.conftest import small_flow
from tests.flow.kinds import ENTRIES, images


@attrs.frozen
class Operators(ProjectionSampler):
    """Uniform directions as operators of a kind."""

    kind: type = Spied
    calls: list = attrs.field(factory=list, eq=False)

    def sample(self, space, count, draw):
        return self.kind(draw.sphere(count, space.dimension), self.calls)

    def patched(self, patch, dilation=1):
        return self


def flow_of(projection, **changes):
    parts = {"schedule": Constant(steps=4, directions=300), "cdf": Histogram(bins=32), **changes}
    return small_flow(images(), projection=projection, condition=NoCondition(), owners=OWNERS, **parts)


def counted(calls) -> Counter:
    return Counter(name for name, _ in calls)


@attrs.frozen
class Following(Operators):
    """Operators that follow the particles."""

    adapts = True

    def adapted(self, space, particles, data, draw):
        return attrs.evolve(self)


@pytest.mark.parametrize("kind", [Operators, Following])
def test_on_the_data_s_own_grid_a_matrix_is_made_once_for_the_check_and_never_again(kind):
    """Neither at another step, nor in another stage of the same space."""
    projection = kind()
    flow = flow_of(projection)
    flow.run()
    assert flow.position.total == 4
    flow.again(3)
    flow.run()
    assert counted(projection.calls)["dense"] == 1


def test_no_product_is_as_large_as_directions_times_directions():
    projection = Operators()
    flow_of(projection).run()
    M, N, H = 30, 50, 300
    widths = {shape[1] for name, shape in projection.calls if name in ("project", "adjoint")}
    assert max(widths) == max(M, N) < H


def test_products_are_checked_once_and_a_step_then_takes_as_many_as_it_needs():
    projection = Operators()
    flow = flow_of(projection)
    next(iter(flow))
    first = counted(projection.calls)
    projection.calls.clear()
    next(iter(flow))
    assert counted(projection.calls) == {"project": 2, "adjoint": 1}  # particles, data; and back
    assert first["project"] > 2


def test_its_own_rows_are_used_where_slabs_are_smaller():
    class OwnRows(Spied):
        def rows(self, cut):
            self.calls.append(("rows", (cut.start, cut.stop)))
            return OwnRows(self.theta[cut], self.calls)

    whole, small = Operators(OwnRows), Operators(OwnRows)
    wanted, flow = flow_of(whole).run(), flow_of(small)
    flow.budget.slab = 100
    torch.testing.assert_close(flow.run().x, wanted.x, atol=1e-10, rtol=0)
    cuts = [shape for name, shape in small.calls if name == "rows"]
    assert set(cuts) == {(0, 100), (100, 200), (200, 300)}
    assert counted(small.calls)["dense"] == 1
    assert not [shape for name, shape in whole.calls if name == "rows"]


def test_without_rows_of_its_own_a_step_s_matrix_is_made_once():
    projection = Operators()
    flow = flow_of(projection)
    flow.budget.slab = 100
    flow.run()
    assert counted(projection.calls)["dense"] == 1 + 4  # the check, and the four steps


@pytest.mark.parametrize(
    "parts", [{}, {"schedule": Pyramid(entries=ENTRIES, steps=4, directions=40)}], ids=["its own", "pyramid"]
)
def test_operators_give_what_matrices_give_on_every_grid(parts):
    dense = variant(Operators, sample=lambda self, space, count, draw: draw.sphere(count, space.dimension))
    operator, matrix = (flow_of(kind(), **parts).run().x for kind in (Operators, dense))
    torch.testing.assert_close(operator, matrix, atol=1e-10, rtol=0)


def test_a_wrong_adjoint_is_refused_before_the_first_step():
    class Wrong(Spied):
        def adjoint(self, a):
            return 1.1 * super().adjoint(a)

    flow = flow_of(Operators(Wrong))
    with pytest.raises(
        PluginError, match=r"adjoint must return what dense\(\) \(300×64\) gives, got val"
    ) as error:
        next(iter(flow))
    named(error, "projection")
    assert flow.position.total == 0
