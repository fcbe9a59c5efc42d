"""Flows of every kind that the engine has, small: for claims that have to hold for all of them."""

from __future__ import annotations

import attrs
import torch

from cswf_core.interfaces import Conditions, Dataset, DenseProjection, Key, Part, Space
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.adaptive import Adaptive
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import small_flow


@attrs.frozen
class Weighed(Uniform):
    """Directions that count unequally."""

    isotropic = False

    def sample(self, space, count, draw):
        return DenseProjection(super().sample(space, count, draw), 0.5 + draw.uniform(count))


ENTRIES = tuple(map(Entry.from_text, ("(2×2) [2]", "(8×8) [5, 3]")))
TWO_STAGES = tuple(map(Entry.from_text, ("(2×2) [2]", "(8×8) [3]")))


def images(n: int = 50) -> Dataset:
    """Random labelled images, some of them held out."""
    levels = Key(4, "images").open().integers(256, 64, n)
    conditions = Conditions(labels=torch.arange(n) % 3, origin=torch.arange(n))
    x = levels.float() / 128 - 1
    data = Dataset(x, Space((1, 8, 8)), conditions, ("a", "b", "c"), bin_width=1 / 128)
    return attrs.evolve(data, held_out=data.take(torch.arange(5)))


KINDS = {
    "plain": {"condition": NoCondition()},
    "classes": {"condition": OneHot()},
    "mask": {"condition": Mask(amplifier=2.0)},
    "masks": {"condition": Mask(hidden="boxes", masks="each")},
    "reuse": {"condition": OneHot(), "reuse": 3},
    "sets": {"condition": OneHot(), "sets": 2},
    "float64": {"condition": OneHot(), "dtype": torch.float64},
    "tempered": {"condition": NoCondition(), "projection": HighPass(of=LocallyConnected(patch=3))},
    "clip": {"condition": OneHot(), "clip": 0.7},
    "clip and mask": {"condition": Mask(hidden="boxes", masks="each"), "clip": 0.7},
    "offline": {"condition": OneHot(), "offline": 9},
    "parts": {"cdf": Histogram(bins=64, particles=Part(share=0.5), data=Part(count=20)), "reuse": 3},
    "turns": {"condition": OneHot(), "offline": 9, "turn": 2},
    "carried": {"condition": Mask(held_out=3, completions=2, carried=True)},
    "whitened": {"coordinates": Whitened(), "gaussian": True},
    "whitened, mask": {"coordinates": Whitened(), "condition": Mask(amplifier=2.0)},
    "whitened, a mask": {"coordinates": Whitened(), "condition": Mask(hidden="left")},
    "whitened, clip": {"coordinates": Whitened(), "clip": 0.7},
    "whitened, sets": {"coordinates": Whitened(), "condition": OneHot(), "sets": 2, "gaussian": True},
    "whitened, entropy": {
        "coordinates": Whitened(exponent=0.9),
        "schedule": Constant(steps=5, directions=40, entropy=0.01),
        "projection": Uniform(),
    },
    "adaptive": {"schedule": Adaptive(entries=ENTRIES, steps=9, directions=40, shortest=2, window=2)},
}


def image_flow(n: int = 50, *, data: Dataset | None = None, **changes):
    """A flow to so many small images, or to others, through two resolutions; any part can be replaced."""
    parts = {
        "projection": LocallyConnected(patch=3),
        "cdf": Histogram(bins=64),
        "schedule": Pyramid(entries=ENTRIES, steps=4, directions=40),
        "dtype": torch.float32,
        **changes,
    }
    return small_flow(images(n) if data is None else data, **parts)
