"""Particles that are clipped: `particles.clip` keeps every coordinate in bounds after each step."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import RunError
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.super_resolution import SuperResolution
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import small_flow
from tests.flow.kinds import images

ENTRIES = tuple(map(Entry.from_text, ("(2×2) [2]", "(5×5) [3]", "(8×8) [5, 3]")))


def pyramid_flow(condition: object, **settings: object):
    parts = {
        "condition": condition,
        "projection": LocallyConnected(),
        "schedule": Pyramid(entries=ENTRIES, steps=3, directions=100),
    }
    return small_flow(images(), **parts, **settings)


CONDITIONS = [NoCondition(), Mask(), Mask(hidden="boxes", masks="each")]


@pytest.mark.parametrize("condition", CONDITIONS, ids=["no mask", "one mask", "a mask for each"])
def test_every_coordinate_is_in_bounds_after_each_step_and_seen_pixels_stay(condition):
    assert max(float(flow.samples().x.abs().max()) for flow in [pyramid_flow(condition)] for _ in flow) > 1.2
    flow = pyramid_flow(condition, clip=1.0)
    masked = flow.observation is not None
    seen = flow.observation.mask if masked else torch.zeros(64, 1, dtype=torch.bool)
    originals = flow.originals() if masked else flow.samples().x
    for _ in flow:
        x = flow.samples().x
        assert float(x.abs().max()) <= 1
        assert torch.equal(torch.where(seen, x, 0), torch.where(seen, originals, 0))


@pytest.mark.parametrize("entropy", [0.0, 0.01])
def test_bounds_hold_to_the_bit_in_float32_also_with_noise(entropy):
    schedule = Constant(steps=5, directions=100, step_size=30.0, entropy=entropy)
    flow = small_flow(images(), schedule=schedule, clip=0.3, dtype=torch.float32)
    bound = float(torch.tensor(0.3))
    assert all(float(flow.samples().x.abs().max()) <= bound for _ in flow)


def test_observations_that_are_not_made_of_pixels_are_refused():
    with pytest.raises(RunError, match="not made of whole pixels: leave out clip"):
        small_flow(images(), condition=SuperResolution(size=4), clip=1.0)


def test_seen_pixels_beyond_the_bound_stay_as_they_are():
    flow = pyramid_flow(Mask(), clip=0.25)
    seen, originals = flow.observation.mask[:, 0], flow.originals()
    samples = flow.run().x
    assert torch.equal(samples[seen], originals[seen])
    assert float(samples[seen].abs().max()) > 0.9
    assert float(samples[~seen].abs().max()) <= 0.25


@attrs.frozen
class Enlarging(LocallyConnected):
    """Filters of a pyramid's stage, already enlarged to the images' size, with unit length there."""

    stage: object = None

    def sample(self, space, count, draw):
        filters = self.stage.sampler.sample(self.stage.upsampling.space, count, draw)
        theta = self.stage.upsampling.up(filters.T.contiguous()).T
        return theta / torch.linalg.vector_norm(theta, dim=1, keepdim=True)


@attrs.frozen(kw_only=True)
class FullSize(Pyramid):
    """The stages of a pyramid, at full resolution."""

    def stages(self, space, projection):
        return [
            stage
            if stage.upsampling is None
            else attrs.evolve(stage, sampler=Enlarging(stage=stage), upsampling=None)
            for stage in super().stages(space, projection)
        ]


@pytest.mark.parametrize("condition", CONDITIONS, ids=["no mask", "one mask", "a mask for each"])
def test_clipping_in_a_pyramid_is_clipping_at_full_resolution_after_each_step(condition):
    """Against a flow at full resolution that does not clip, whose particles are clipped by hand."""
    flow = pyramid_flow(condition, clip=0.9)
    schedule = FullSize(entries=ENTRIES, steps=3, directions=100)
    plain = small_flow(images(), condition=condition, projection=LocallyConnected(), schedule=schedule)
    free = torch.ones(64, 1, dtype=torch.bool) if plain.observation is None else ~plain.observation.mask
    for state, by_hand in zip(flow, plain, strict=True):
        x = plain.particles.stored[0].x
        x.copy_(torch.where(free, x.clamp(-0.9, 0.9), x))
        torch.testing.assert_close(flow.samples().x, plain.samples().x, atol=1e-9, rtol=0)
        assert state.distance == pytest.approx(by_hand.distance, rel=1e-9)
