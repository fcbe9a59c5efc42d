"""Real images that no flow has made are called copies as rarely as is promised: draws of them, by the hundred.

`pytest -m slow -s tests/evaluation/test_false_alarms.py` prints the table in docs/evaluation.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
import torch

from cswf_core.interfaces import BIN, Key
from cswf_core.kernels.neighbours import nearest
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.mnist import Mnist
from cswf_plugins.metrics.copies import CHANCE, Copies, allowed_chance, relative_distances
from tests.conftest import skip_without

SIZES = (30, 100, 300, 1000)
DRAWS = 300
"""Draws for each number of samples."""
K = 50
OFTEN = 0.05
"""A chance that is common enough to be counted: a rule must have one as small in no more than so many draws."""


@attrs.frozen(eq=False)
class Pool:
    """Distances between real images of a data set."""

    name: str
    plain: torch.Tensor
    """Relative distances of 4,000 test images to 3,000 training images."""
    mirrored: torch.Tensor
    """The same to the mirror images of these."""
    distances: torch.Tensor
    """2,500×2,500: distances of test images to each other, infinite to themselves."""


@pytest.fixture(scope="module", params=["cifar10", "mnist"])
def pool(request) -> Pool:
    skip_without(request.param)
    source = {"cifar10": Cifar10, "mnist": Mnist}[request.param]
    data = source(count=3000, dequantise="none", download=False).load(Key(1, "data").open())
    images = data.images(), data.images().flip(-1), data.held_out.take(torch.arange(4000)).images()
    training, mirrored, others = (each.flatten(1).float() * BIN for each in images)
    ratios = (relative_distances(nearest(others, points, K)[0]) for points in (training, mirrored))
    return Pool(request.param, *ratios, torch.cdist(others[:2500], others[:2500]).fill_diagonal_(math.inf))


def with_held_out(pool: Pool, n: int, random: np.random.Generator) -> Iterator[Copies]:
    """Test images as samples and others as held-out images, as many or twice as many."""
    plain, mirrored = pool.plain, pool.mirrored
    for draw in range(DRAWS):
        order = torch.from_numpy(random.permutation(len(plain)))
        ours, theirs = order[:n], order[n : n + n * (1 + draw % 2)]
        yield Copies(plain[ours], plain[theirs], (mirrored[ours], mirrored[theirs]))


def without(pool: Pool, n: int, random: np.random.Generator) -> Iterator[Copies]:
    """Test images as samples, and 1,000 or 300 others as training images, each compared with all others."""
    for draw in range(DRAWS):
        order = torch.from_numpy(random.permutation(len(pool.distances)))
        samples, training = order[:n], order[n : n + (1000, 300)[draw % 2]]
        near = (
            pool.distances[each[:, None], training].topk(K, largest=False).values.sort(dim=1).values
            for each in (samples, training)
        )
        yield Copies(*map(relative_distances, near), left_out=True)


def most(draws: int, chance: float) -> int:
    """The largest number of draws that has more than one chance in a thousand to be reached or passed."""
    binomial = pytest.importorskip("scipy.stats").binom
    return int(binomial.isf(1e-3, draws, chance))


@pytest.mark.slow
@pytest.mark.parametrize("control", [with_held_out, without])
def test_real_images_are_called_copies_as_rarely_as_is_promised(control, pool):
    alarms: Counter[int] = Counter()
    for n in SIZES:
        small: Counter[str] = Counter()
        for copies in control(pool, n, np.random.default_rng(n)):
            alarms[n] += bool(copies.broken(allowed_chance([copies])))
            small.update(rule for rule, chance in copies.chances().items() if chance < OFTEN)
        assert all(count <= most(DRAWS, OFTEN) for count in small.values()), small
    told = ", ".join(f"{alarms[n]} of {DRAWS} with n = {n:,}" for n in SIZES)
    print(f"{pool.name}, {control.__name__.replace('_', ' ')}: {told}")
    assert alarms.total() <= most(DRAWS * len(SIZES), CHANCE)
