"""Contract of conditions: what Y is, how it enters a direction θ = [θ_x, θ_y], and what is seen of x."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.contract import Contract
from cswf_core.interfaces.dataset import Conditions, Dataset
from cswf_core.interfaces.draw import Draw

Stratum = tuple[Tensor, Tensor]
"""Indices of particles and indices of data that are transported onto each other and nobody else."""


class Observation(abc.ABC):
    """What is seen of x: its image under an orthogonal projection O (d×d); P = I − O is what flows."""

    shared: bool = True
    """Whether O is the same for all particles; if not, `seen` takes exactly M columns, one for each."""

    @abc.abstractmethod
    def seen(self, x: Tensor) -> Tensor:
        """Return O x: d×n → d×n."""

    def free(self, x: Tensor) -> Tensor:
        """Return P x = x − O x: d×n → d×n."""
        return x - self.seen(x)

    def shown(self, x: Tensor) -> Tensor:
        """Return what is seen as one would draw it, black (−1) where nothing is seen: d×n → d×n."""
        return self.seen(x)

    def to(self, device: torch.device) -> Observation:
        """Return it on another device; one that keeps no tensors is there already."""
        del device
        return self


class Masked(Observation):
    """Whole pixels are seen. Those never change by a single bit."""

    def __init__(self, mask: Tensor) -> None:
        """`mask` is true where a coordinate is seen: d booleans for all particles, d×M for one each."""
        self.mask = mask.reshape(mask.shape[0], -1)
        self.shared = self.mask.shape[1] == 1

    def seen(self, x: Tensor) -> Tensor:
        """Return x with everything else set to 0: d×n → d×n."""
        return torch.where(self.mask, x, torch.zeros((), dtype=x.dtype, device=x.device))

    def free(self, x: Tensor) -> Tensor:
        """Return x with what is seen set to 0: d×n → d×n."""
        return x.masked_fill(self.mask, 0)

    def shown(self, x: Tensor) -> Tensor:
        """Return x with everything else black: d×n → d×n."""
        return x.masked_fill(~self.mask, -1)

    def to(self, device: torch.device) -> Masked:
        """Return it with its mask on another device."""
        return Masked(self.mask.to(device))


class ConditionEncoder(Contract):
    """Says what Y is. Subclasses are attrs classes whose fields are the parameters.

    Y may stand beside x: a direction of the joint space is then θ = [a θ_x, √(1−a²) θ_y], both parts of unit
    length, and a sample is projected to a θ_x·x + ξ √(1−a²) θ_y·y. Or Y may be a part of x itself, as in
    inpainting: then l = 0, `observation` says which part, and ξ stretches that part.

    Everything has a default: Y is the vector that each sample of the data has. A condition on something that
    can be computed from a sample, such as its mean brightness, overrides `encode` alone.
    """

    amplifier: float = 1.0
    """ξ. The larger, the closer the joint flow is to one flow per condition; 0 ignores the condition."""
    full_dimension: bool = False
    """Whether `weights` gets the d of the data, and not that of the stage's grid."""
    carries_held_out: bool = False
    """Whether particles that see held-out samples are carried along, and take no part in F_p."""
    dequantised: bool = False
    """Whether ξ y of the data gets uniform noise as wide as the data's bins, anew at every step."""

    def encode(self, data: Dataset) -> Conditions:
        """Return Y of each sample, labels or vectors (l×n): by default those that the data have.

        `data.x` is d×n; pixels of 8-bit images are the lower ends of their grey levels, whose middles are
        `data.x + data.bin_width / 2`. A sample's Y depends on this sample alone: data that memory does not hold
        are encoded some at a time, and data that arrive later by themselves. The methods below get data with
        this Y.
        """
        return data.conditions

    def length(self, data: Dataset) -> int:
        """Return l, the dimension of Y beside x; 0 where nothing stands beside x. By default that of the
        vectors.

        Raise `DataError` if data lack what Y needs, `RoomError` if they have more classes than Y may have.
        """
        if data.conditions.vectors is None:
            raise DataError(
                f"{type(self).__name__} needs a vector per sample, and this data set has none: "
                "`encode` can compute one from x"
            )
        return int(data.conditions.vectors.shape[0])

    def project(self, theta_y: Tensor, conditions: Conditions) -> Tensor:
        """Return θ_y·y for every direction and every sample: (H×l, n samples) → H×n. By default y is a
        vector."""
        assert conditions.vectors is not None, "samples without vectors are refused by `length`"
        return theta_y @ conditions.vectors

    def draw(self, data: Dataset, count: int, draw: Draw) -> Conditions:
        """Return Y₀ of `count` particles, from q(y): by default that of random data, with replacement."""
        return data.conditions.take(draw.integers(len(data), count))

    def directions(self, length: int, count: int, draw: Draw) -> Tensor:
        """Return `count` vectors θ_y of unit length (count × l): by default uniform on the sphere."""
        return draw.sphere(count, length)

    def weights(self, dimension: int, length: int, count: int, draw: Draw) -> Tensor:
        """Return a, the length of the θ_x part of each direction, in [0, 1] (`count` numbers).

        `dimension` is d, that of the stage's grid or, with `full_dimension`, of the data. By default
        a² ~ Beta(d/2, l/2): then [a θ_x, √(1−a²) θ_y] is uniform on the sphere of ℝ^(d+l) whenever θ_x and θ_y
        are uniform on theirs: line 4 of Algorithm 1.
        """
        return draw.beta(dimension / 2, length / 2, count).sqrt()

    def observation(self, data: Dataset, conditions: Conditions, draw: Draw) -> Observation | None:
        """Return what is seen of each particle's x and must not move; None, the usual: all of it flows.

        `conditions` are the particles'; their `origin` names the samples that are seen. `draw` says on which
        device the observation has to work.
        """
        del data, conditions, draw
        return None

    def balance(self, data: Dataset, draw: Draw) -> Tensor | None:
        """Return the data to flow to, by index, with repeats; None, the usual: each of them once.

        For a condition that draws Y₀ from another distribution than the data's: q(y) has to be p₀(y).
        """
        del data, draw
        return None

    def groups(self, conditions: Conditions) -> tuple[Tensor, Conditions] | None:
        """Return the group of each sample (n whole numbers) and the condition of each group; None: too many.

        For conditions with few values, such as labels: θ_y·y then is looked up by group, and never written out
        for every sample.
        """
        del conditions
        return None

    def strata(self, particles: Conditions, data: Conditions) -> list[Stratum] | None:
        """Return subsets that are transported apart from each other; None, the usual: all are one."""
        del particles, data
        return None
