"""Several ranks take the steps in half precision as one does, to the bit: here in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreted import DEVICE

from cswf_core.flow.half import HalfStepper  # isort: skip
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.schedules.pyramid import Pyramid
from tests.flow.kinds import ENTRIES, image_flow
from tests.marks import slow_if
from tests.ranks.forked import on_ranks

pytestmark = pytest.mark.processes

KINDS = {
    "labels and tails": {"condition": OneHot(), "cdf": Histogram(bins=64, tail=0.05)},
    "whitened": {"coordinates": Whitened(), "gaussian": True},
    "a mask": {"condition": Mask()},
    "sorted": {"cdf": Sorted()},
}


@pytest.mark.skipif(DEVICE.type == "cuda", reason="ranks are forked, which CUDA does not survive")
@pytest.mark.parametrize("kind", slow_if(list(KINDS)[1:], KINDS))
def test_half_precision_on_two_ranks_has_the_bits_of_one(kind, tmp_path):
    def taken(ranks=None):
        schedule = Pyramid(entries=ENTRIES, steps=1, directions=40)
        changes = {"projection": LocallyConnected(patch=3), "schedule": schedule, "half": True, **KINDS[kind]}
        flow = image_flow(300, count=300, ranks=ranks, plan=HalfStepper, **changes)
        for _ in flow:
            pass
        return flow.samples().x if ranks is None or ranks.leads else None

    assert torch.equal(on_ranks(2, tmp_path, taken)[0], taken())
