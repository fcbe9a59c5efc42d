"""The plugin through the door, and its directions."""

import torch
from cswf_pairs import Pairs

from cswf_core.interfaces import Key, Space
from cswf_core.plugins import Registry
from cswf_core.testing import check_projection


def test_with_sums_it_is_a_sound_projection():
    """Without them no direction looks at the mean of all coordinates, and the kit says so."""
    check_projection(Pairs(share=0.5))


def test_pairs_are_offered_and_have_unit_length():
    pairs = Registry.discover().find("projection", "cswf-pairs:pairs").factory(share=0.5)
    theta = pairs.sample(Space((6,)), 500, Key(0, "test").open())
    torch.testing.assert_close(torch.linalg.vector_norm(theta, dim=1), torch.ones(500))
    assert (theta != 0).sum(dim=1).eq(2).all()
    sums = theta.sum(dim=1).abs() > 1
    assert 0.4 < sums.float().mean() < 0.6
