"""CDFs that are fitted to a part of the particles or data, drawn anew at every step."""

from __future__ import annotations

import pytest
import torch

import cswf_core
from cswf_core.errors import RunError
from cswf_core.interfaces import Part
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.cdfs.spline import Spline
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow

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
