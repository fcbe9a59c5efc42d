"""What directions do not see, and see too well, is told when a stage begins."""

from __future__ import annotations

import logging
import re

import attrs
import pytest
import torch

from cswf_core.flow import stability
from cswf_core.flow.stability import spread
from cswf_core.interfaces import Conditions, Dataset, DenseProjection, Key, Owner, ProjectionSampler, Space
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Pyramid
from tests.conftest import small_flow
from tests.flow.kinds import ENTRIES

STEPS = 16
"""Stages of fewer are not looked at."""


def bright(n: int = 60, brightness: float = 0.5) -> Dataset:
    """Images of 8×8 that are brighter than the noise particles begin as."""
    x = 0.1 * Key(4, "bright").open().normal(64, n) + brightness
    return Dataset(x, Space((1, 8, 8)), Conditions())


def told(caplog, projection: ProjectionSampler, *, steps: int = STEPS, **changes: object) -> list[str]:
    """The warnings of a flow's first stage, up to its first step."""
    owners = {"projection": Owner("projection", "mine", "acme-plugins", "1.2")}
    settings = {"schedule": Constant(steps=steps, directions=100), "scale": 0.1, "dtype": torch.float32}
    flow = small_flow(
        bright(), projection=projection, condition=NoCondition(), owners=owners, **{**settings, **changes}
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="cswf"):
        next(iter(flow))
    return [record.getMessage() for record in caplog.records]


@attrs.frozen
class Differences(ProjectionSampler):
    """Differences of two pixels: blind to mean brightness."""

    def sample(self, space, count, draw):
        first = draw.integers(space.dimension, count)
        second = (first + 1 + draw.integers(space.dimension - 1, count)) % space.dimension
        one, other = (torch.nn.functional.one_hot(at, space.dimension) for at in (first, second))
        return (one - other).to(draw.dtype) / 2**0.5


@attrs.frozen
class Half(ProjectionSampler):
    """Directions that see the upper half of an image."""

    def sample(self, space, count, draw):
        theta = draw.sphere(count, space.dimension // 2)
        return torch.cat([theta, torch.zeros_like(theta)], dim=1)


@attrs.frozen
class Unweighed(Uniform):
    """Uniform directions, of which those that see the lower half do not count."""

    def sample(self, space, count, draw):
        seen, unseen = Half().sample(space, count, draw), draw.sphere(count, space.dimension)
        counts = (torch.arange(count) % 2 == 0).to(draw.dtype)
        theta = torch.where(counts[:, None] > 0, seen, unseen)
        return DenseProjection(theta, 2 * counts)

    isotropic = False


@attrs.frozen
class Uneven(ProjectionSampler):
    """Directions that nearly all look the same way."""

    def sample(self, space, count, draw):
        theta = 0.5 * draw.sphere(count, space.dimension)
        theta[:, 0] += 1.0
        return torch.nn.functional.normalize(theta)


@attrs.frozen
class Tempered(Uneven):
    """The same, and says so."""

    tempered = True


def share(warnings: list[str]) -> float:
    (blind,) = [text for text in warnings if "does not see" in text]
    assert re.match(r"stage constant: projection 'mine' \(acme-plugins 1\.2\) does not see", blind)
    return float(re.search(r"does not see (\S+) of the way", blind)[1])


def test_directions_that_do_not_see_mean_brightness_are_told_with_the_share_of_the_way_to_it(caplog):
    # Particles are 0.1 N(0, I), data 0.5 + 0.1 N(0, I): of |way|² = 64 (0.25 + 0.02) brightness is 64·0.25.
    assert share(told(caplog, Differences())) == pytest.approx(0.25 / 0.27, abs=0.02)


def test_the_share_does_not_depend_on_how_long_rounding_errors_are_followed(caplog, monkeypatch):
    once = share(told(caplog, Differences()))
    monkeypatch.setattr(stability, "GRADIENT_ROUNDS", 100)
    assert share(told(caplog, Differences())) == once


def test_directions_that_see_half_of_the_pixels_are_told_that_half_is_missing(caplog):
    assert share(told(caplog, Half())) == pytest.approx(0.5, abs=0.05)


def test_directions_that_do_not_count_see_nothing(caplog):
    assert share(told(caplog, Unweighed())) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("sampler", [Uniform(), ConvStack(patch=5), LocallyConnected(patch=3)], ids=str)
def test_directions_that_see_all_are_told_nothing(caplog, sampler):
    assert told(caplog, sampler) == []


def test_on_coarse_grids_too_nothing_is_told_of_directions_that_see_all_of_them(caplog):
    pyramid = Pyramid(entries=ENTRIES, steps=STEPS, directions=100)
    assert told(caplog, LocallyConnected(patch=3), schedule=pyramid) == []


def test_uneven_directions_are_told_to_say_so_and_those_that_do_are_not(caplog):
    (uneven,) = [text for text in told(caplog, Uneven()) if "much better than others" in text]
    assert "projection 'mine' (acme-plugins 1.2)" in uneven
    assert "tempered = True" in uneven
    assert not [text for text in told(caplog, Tempered()) if "much better than others" in text]


def test_stages_of_few_steps_are_not_looked_at(caplog):
    assert told(caplog, Half(), steps=STEPS - 1) == []


@pytest.mark.parametrize(("count", "of"), [(8, 3), (3, 8), (5, 5), (2, 0)])
def test_a_few_samples_are_spread_over_all_and_none_comes_twice(count, of):
    x = torch.arange(of)[None].double()
    chosen = spread(x, count)[0].tolist()
    assert len(chosen) == len(set(chosen)) == min(count, of)
    assert chosen == sorted(chosen)
