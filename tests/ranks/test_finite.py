"""Particles of one rank that are not finite end all ranks, and each of them knows why."""

from __future__ import annotations

import math

import pytest

from cswf_core.errors import NotFiniteError
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.schedules.constant import Constant
from tests.conftest import small_flow
from tests.ranks.forked import on_ranks


def test_all_ranks_end_with_the_same_sentence_when_one_has_particles_that_are_none(tmp_path):
    def work(ranks):
        schedule = Constant(steps=9, directions=40)
        flow = small_flow(cdf=Histogram(), schedule=schedule, ranks=ranks, count=600)
        steps = iter(flow)
        for _ in range(3):
            next(steps)
        if ranks.rank == 1:
            flow.particles.stored[0].x[0, 0] = math.nan
        with pytest.raises(NotFiniteError) as error:
            next(steps)
        return str(error.value)

    first, other = on_ranks(2, tmp_path, work, seconds=30)
    assert first == other
    assert first.startswith("particles are not finite after step 4 of stage 1 'constant': ")
