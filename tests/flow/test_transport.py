"""The CDF plugin at work in the engine: rows at a time, strata, operators and what plugins may do."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import PluginError
from cswf_core.interfaces import DenseProjection, Key
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import small_flow


def test_kept_directions_keep_the_datas_counts():
    fitted = []

    @attrs.frozen
    class Spy(Histogram):
        def fit_rows(self, rows):
            fitted.append(rows.values.shape[1])
            return super().fit_rows(rows)

    small_flow(cdf=Spy(bins=64), schedule=Constant(steps=6, directions=50), reuse=3).run()
    assert fitted.count(40) == 2  # of six steps; the particles are 30, and counted otherwise


@attrs.frozen
class Failing(Sorted):
    """Runs out of memory once, in the second stratum."""

    calls: list = attrs.field(factory=list)

    def transport(self, p, data):
        self.calls.append(len(p))
        if len(self.calls) == 2:
            raise MemoryError
        return super().transport(p, data)


def test_what_ran_out_of_memory_in_one_class_is_not_moved_twice_in_another():
    x = small_flow(cdf=Failing(), condition=Separate()).run().x
    torch.testing.assert_close(x, small_flow(cdf=Sorted(), condition=Separate()).run().x)


class Same(DenseProjection):
    """The unit vectors as an operator that hands the samples back."""

    def project(self, x):
        return x[: self.theta.shape[0]]


@attrs.frozen
class Axes(Uniform):
    operator: bool = True

    def sample(self, space, count, draw):
        theta = torch.eye(space.dimension, dtype=draw.dtype, device=draw.device)[:count]
        return Same(theta) if self.operator else theta


@pytest.mark.parametrize("cdf", [Sorted(), Histogram(bins=64)])
def test_an_operator_may_return_the_samples_themselves(cdf):
    schedule = Constant(steps=2, directions=4, step_size=1.0)
    parts = {"cdf": cdf, "condition": NoCondition(), "schedule": schedule}
    one, other = (small_flow(projection=Axes(operator), **parts).run().x for operator in (True, False))
    torch.testing.assert_close(one, other)


def test_an_estimator_may_do_it_all_at_once_and_a_map_that_is_none_is_named():
    @attrs.frozen
    class Still(Sorted):
        """Leaves every particle where it is."""

        displaces = True

        def displace(self, rows, data):
            del data
            rows.values.zero_()
            return torch.zeros_like(rows.low)

    @attrs.frozen
    class Forgetful(Sorted):
        displaces = True

        def between(self, p, data):
            del p, data

    flow = small_flow(cdf=Still())
    before = flow.samples().x
    assert torch.equal(flow.run().x, before)
    with pytest.raises(PluginError, match=r"Forgetful.*`between` returned None"):
        small_flow(cdf=Forgetful()).run()


def test_directions_that_go_wrong_later_are_named():
    @attrs.frozen
    class Wrong(Uniform):
        def sample(self, space, count, draw):
            theta = super().sample(space, count, draw)
            return theta * (1.3 if draw.key.step == 2 else 1)

    with pytest.raises(PluginError, match=r"Wrong.*unit length, got length 1\.3"):
        small_flow(projection=Wrong()).run()


def test_betas_differ_from_call_to_call_and_agree_with_themselves():
    one, other = Key(1, "b").open(), Key(1, "b").open()
    first = one.beta(2.0, 3.0, 5)
    assert torch.equal(first, other.beta(2.0, 3.0, 5))
    assert not torch.equal(one.beta(2.0, 3.0, 5), first)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda index, classes: index, "a whole number for each of 40 samples"),
        (lambda index, classes: (index[1:], classes), "a whole number for each of 40 samples"),
        (lambda index, classes: (index + 5, classes), "numbers up to 7 and 3 conditions"),
    ],
)
def test_groups_are_checked(answer, complaint):
    @attrs.frozen
    class Grouped(OneHot):
        def groups(self, conditions):
            return answer(*super().groups(conditions))

    flow = small_flow(condition=Grouped(), schedule=Constant(steps=1, directions=5))
    sampler = flow.setup.sampler(flow.stages[0])
    with pytest.raises(PluginError, match=f"groups must return .*{complaint}"):
        sampler.groups(flow.data.conditions)


def test_groups_are_the_classes_that_are_there():
    flow = small_flow(condition=OneHot(prior=(0.0, 1.0, 1.0)))
    index, classes = flow.setup.sampler(flow.stages[0]).groups(flow.particles.conditions)
    assert classes.labels.tolist() == [1, 2]
    assert torch.equal(classes.labels[index.long()], flow.particles.conditions.labels)
    assert index.dtype == torch.uint8
