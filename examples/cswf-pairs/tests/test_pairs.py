"""The plugin through the door, and its directions."""

import torch

from cswf_core.interfaces import Key, Space
from cswf_core.plugins import Registry


def test_pairs_are_offered_and_have_unit_length():
    pairs = Registry.discover().find("projection", "cswf-pairs:pairs").factory(share=0.5)
    theta = pairs.sample(Space((6,)), 500, Key(0, "test").open())
    torch.testing.assert_close(torch.linalg.vector_norm(theta, dim=1), torch.ones(500))
    assert (theta != 0).sum(dim=1).eq(2).all()
    sums = theta.sum(dim=1).abs() > 1
    assert 0.4 < sums.float().mean() < 0.6
