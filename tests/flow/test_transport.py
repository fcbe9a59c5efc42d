"""The CDF plugin at work: rows at a time, strata, parts that it is fitted to, and tables of its maps."""

from __future__ import annotations

import attrs
import pytest
import torch

import cswf_core
from cswf_core.errors import PluginError, RunError
from cswf_core.flow.coordinates import Cloud
from cswf_core.flow.settings import TableRequest
from cswf_core.flow.tables import Lookup
from cswf_core.interfaces import DenseProjection, Key, Part, Rows
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.test_snapshot import image_flow


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


CDFS = [(Sorted, {}), (Histogram, {"bins": 64}), (Spline, {"knots": 20})]


def samples_of(kind, parameters, **changes):
    schedule = Constant(steps=5, directions=60)
    return small_flow(cdf=kind(**parameters, **changes), schedule=schedule).run().digest()


@pytest.mark.parametrize(("kind", "parameters"), CDFS)
def test_all_of_them_are_no_part_and_a_part_is_the_same_part_again(kind, parameters):
    whole = samples_of(kind, parameters)
    assert samples_of(kind, parameters, particles=Part(share=1.0), data=Part(count=40)) == whole
    assert samples_of(kind, parameters, particles=Part(count=10**6)) == whole
    parts = {"particles": Part(share=0.5), "data": Part(count=15)}
    assert samples_of(kind, parameters, **parts) == samples_of(kind, parameters, **parts)
    alone = [samples_of(kind, parameters, **{side: part}) for side, part in parts.items()]
    assert len({whole, *alone, samples_of(kind, parameters, **parts)}) == 4


def test_each_step_draws_other_particles_and_data():
    seen = []

    class Spy(Sorted):
        def fit(self, values):
            seen.append(values[0].clone())
            return super().fit(values)

    spy = Spy(particles=Part(count=7), data=Part(share=0.25))
    schedule = Constant(steps=3, directions=4, step_size=1e-9)  # particles stay where they are
    small_flow(cdf=spy, schedule=schedule, reuse=None).run()
    assert sorted(map(len, seen)) == [7] * 3 + [10] * 3
    particles = [values.sort().values for values in seen if len(values) == 7]
    assert not torch.allclose(particles[0], particles[1])


@pytest.mark.parametrize("cdf", ["histogram", "sorted"])
def test_digits_are_reached_by_parts_of_the_particles_and_data(cdf):
    """From 0.82, and with all particles and data to 0.07; a part adds noise of its own at every step."""
    shared = ["particles.count=300", "schedule.steps=20", "schedule.directions=128", "data.classes=[0, 1, 2]"]
    shared += ["projection=uniform"]
    parts = ["cdf.particles={share: 0.7}", "cdf.data={count: 400}"]
    flow = cswf_core.build_flow("digits", [*shared, f"cdf={{use: {cdf}}}", *parts], device="cpu")
    distances = [state.distance for state in flow]
    assert distances[0] > 0.8
    assert max(distances[10:]) < 0.2


def test_a_part_says_how_many_or_how_large_a_share():
    with pytest.raises(ValueError, match="one of the two"):
        Part(share=0.5, count=3)
    with pytest.raises(ValueError, match="one of the two"):
        Part()
    assert [Part(share=0.1).of(count) for count in (1000, 10, 1)] == [100, 2, 1]


def test_where_each_class_has_a_flow_all_samples_count():
    data = random_data(n=40)
    with pytest.raises(RunError, match="has a flow for each class"):
        small_flow(data, condition=Separate(), cdf=Sorted(particles=Part(count=2)))
    with pytest.raises(RunError, match="leave out offline"):
        small_flow(data, condition=Separate(), offline=5)


def test_a_part_of_the_data_cannot_be_counted_online_and_one_of_the_particles_can():
    with pytest.raises(RunError, match="is fitted to a part of the data, drawn anew at every step"):
        small_flow(cdf=Histogram(bins=64, data=Part(share=0.5)), sets=2)
    assert torch.isfinite(small_flow(cdf=Histogram(bins=64, particles=Part(share=0.5)), sets=2).run().x).all()


def directions(flow, step: int):
    return next(flow.setup.sampler(flow.stages[0]).batches(flow.settings.seed, 0, step, check=False))


@pytest.mark.parametrize("condition", [NoCondition(), OneHot(), Separate()], ids=lambda c: type(c).__name__)
def test_moving_by_the_tables_is_nearly_the_step_itself(condition):
    parts = {"condition": condition, "cdf": Histogram(bins=512), "dtype": torch.float64, "count": 300}
    exact, tabulated = small_flow(**parts), small_flow(**parts, tables=TableRequest(knots=257, bits=16))
    before = exact.particles.x.clone()
    next(iter(exact))
    next(iter(tabulated))
    missed = (tabulated.particles.x - exact.particles.x).abs().mean()
    assert missed < 0.02 * (exact.particles.x - before).abs().mean()


def test_blocks_of_directions_do_not_change_the_order_of_tables(monkeypatch):
    sorted_ = [s.tables for s in image_flow(tables=TableRequest(knots=9, bits=16))]
    monkeypatch.setattr("cswf_core.flow.directions.PAYS_BELOW", -1.0)
    dense = [s.tables for s in image_flow(tables=TableRequest(knots=9, bits=16))]
    for one, other in zip(sorted_, dense, strict=True):
        torch.testing.assert_close(one.centre, other.centre, atol=0.02, rtol=0)


@pytest.mark.parametrize("slab", [7, 16, 1000])
def test_slabs_do_not_change_the_order_of_tables(slab, monkeypatch):
    monkeypatch.setattr("cswf_core.flow.memory.DIRECTIONS_PER_BATCH", 16)
    whole = [s.tables for s in image_flow(tables=TableRequest(knots=5, bits=16))]
    flow = image_flow(tables=TableRequest(knots=5, bits=16))
    flow.budget.slab = slab
    same = (whole[0].centre - next(iter(flow)).tables.centre).abs() < 1e-4
    assert float(same.float().mean()) > 0.95  # medians of few values may jump


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_particles_move_by_tables_as_they_are_stored(bits):
    flow = image_flow(tables=TableRequest(knots=9, bits=bits))
    before = flow.particles.x.clone()
    state = next(iter(flow))
    theta = directions(flow, 0)
    cloud = Cloud(flow.stages[0].upsampling.down(before), flow.particles.conditions)
    rows = Rows.of(theta.project(cloud))
    Lookup.of(state.tables, 9, rows.low).displace(rows, flow.conditions.labels)
    move = flow.stages[0].upsampling.up(theta.adjoint(rows.values, cloud)) * state.eta / rows.values.shape[0]
    torch.testing.assert_close(before + move, flow.particles.x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("condition", [OneHot(), Separate()], ids=lambda c: type(c).__name__)
def test_each_class_has_tables_of_its_own_which_span_its_particles(condition):
    flow = small_flow(condition=condition, cdf=Histogram(bins=64), tables=TableRequest(knots=5, bits=16))
    before = flow.particles.x.clone()
    tables = next(iter(flow)).tables
    assert tables.levels.shape == (3, 300, 5)
    cloud = Cloud(before, flow.particles.conditions)
    p = directions(flow, 0).project(cloud)
    lookup = Lookup.of(tables, 5, p)
    for label, (centre, reach) in enumerate(zip(lookup.centre, lookup.reach, strict=True)):
        own = p[:, flow.conditions.labels == label]
        assert (centre - reach[:, 0] <= own.amin(dim=1) + 1e-4).all()
        assert (centre + reach[:, 1] >= own.amax(dim=1) - 1e-4).all()
        assert (reach.sum(dim=1) <= 1.3 * (own.amax(dim=1) - own.amin(dim=1)) + 1e-4).all()


def test_tables_of_strata_that_are_no_classes_are_refused():
    class Halves(Separate):
        def strata(self, particles, data):
            return [(torch.arange(first, 30, 2), torch.arange(first, 40, 2)) for first in (0, 1)]

    with pytest.raises(RunError, match="strata that are classes"):
        small_flow(condition=Halves(), tables=TableRequest(knots=5, bits=16))
