"""Coordinates `whitened`: every frequency and colour gets a gain, so that the data vary more evenly.

What it is: natural images have little energy in fine detail and in differences of colour, so that a direction
drawn evenly in pixels hardly sees those. W takes an image to its principal colours and to the frequencies of
the orthonormal DCT, multiplies each with a gain, and goes back: W = Bᵀ diag(gain) B with B orthonormal. For a
variance v of the data, gain = (v + floor·mean v)^(−a/2), times a number that keeps the total variance. At a = 0
nothing changes, at a = 1 all variances are equal.
Cost: when the flow begins, the DCT of all data; when a stage begins and ends, that of data and particles. Where
a part of the image is seen, a d×d matrix when the flow begins, and a product with one at every step.
When not to use it: for points, which have no frequencies. With a near 1, noise counts as much as structure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from cswf_core.interfaces import Coordinates, LinearMap, Space, parameter


@attrs.frozen(kw_only=True)
class WithGains(Coordinates):
    """Base of coordinates that give each of some axes a gain by the data's variance along it."""

    exponent: float = parameter(
        "a: gains are the variance to the power of −a/2; 0 is plain, 1 makes all variances equal",
        default=0.3,
        at_least=0,
        at_most=1,
    )
    floor: float = parameter(
        "added to each variance, as a share of the mean variance, so that no noise is blown up",
        default=1e-5,
        above=0,
    )

    def gains(self, variances: Tensor) -> Tensor:
        """Return (v + floor·mean v)^(−a/2) for variances v, scaled to Σ gain² v = Σ v: d → d.

        If nothing varies, gains are 1.
        """
        mean = variances.mean()
        gains = (variances + self.floor * mean).pow(-self.exponent / 2)
        total = (gains.square() * variances).mean() / mean
        return torch.where(mean > 0, gains * total.rsqrt(), 1.0)


@attrs.frozen(kw_only=True)
class Whitened(WithGains):
    """A gain for every frequency of the DCT and every principal colour of the data."""

    def fit(self, space: Space, x: Tensor) -> LinearMap:
        """Return W for images x (C·H·W×N)."""
        channels, _, _ = space.grid("coordinates 'whitened'")
        mean = x.mean(dim=1, keepdim=True)
        total = torch.zeros(channels, channels, dtype=torch.float64, device=x.device)
        parts = torch.split(x, 16384, dim=1)  # as many samples at a time
        for part in parts:
            centred = (part - mean).view(channels, -1)
            total += (centred @ centred.T).double()
        colours = _axes(total).to(x).contiguous()
        basis = Basis(space, colours)
        variances = torch.zeros(space.dimension, dtype=torch.float64, device=x.device)
        for part in parts:
            variances += basis.coefficients(part - mean).square().sum(dim=1, dtype=torch.float64)
        variances /= x.shape[1]
        return self._map(basis, variances.to(x))

    def of_tensors(self, space: Space, tensors: Mapping[str, Tensor], like: Tensor) -> LinearMap:
        """Return W from its colours and variances."""
        colours, variances = (tensors[name].to(like) for name in ("colours", "variances"))
        return self._map(Basis(space, colours), variances)

    def _map(self, basis: Basis, variances: Tensor) -> WhitenedMap:
        return WhitenedMap(basis, variances, self.gains(variances.double()).to(variances))


def _axes(moments: Tensor) -> Tensor:
    """Return the principal axes of C×C second moments as rows, each with its largest entry positive."""
    _, vectors = torch.linalg.eigh(moments)
    largest = vectors.abs().argmax(dim=0)
    signs = vectors.gather(0, largest[None]).sign()
    axes: Tensor = (vectors * signs).T
    return axes


class Basis:
    """The orthonormal basis B of an image space: colours (C×C) times frequencies of rows and columns."""

    def __init__(self, space: Space, colours: Tensor) -> None:
        self.shape = space.shape
        self.colours = colours
        self._rows, self._columns = (cosines(size).to(colours) for size in space.shape[1:])

    def coefficients(self, x: Tensor) -> Tensor:
        """Return B x: d×n → d×n."""
        return self._apply(x, self.colours, self._rows, self._columns)

    def images(self, b: Tensor) -> Tensor:
        """Return Bᵀ b: d×n → d×n."""
        return self._apply(b, self.colours.T, self._rows.T, self._columns.T)

    def _apply(self, x: Tensor, colours: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        channels, height, width = self.shape
        n = x.shape[1]
        mixed = colours @ x.reshape(channels, -1) if channels > 1 else x
        tall = torch.matmul(rows, mixed.reshape(channels, height, width * n))
        wide = torch.matmul(columns, tall.reshape(channels * height, width, n))
        return wide.reshape(channels * height * width, n)


def cosines(size: int) -> Tensor:
    """Return the orthonormal DCT-II of a line of pixels, frequencies as rows: size×size, float64."""
    k = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(math.pi / size * (k + 0.5) * k[:, None]) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


class WhitenedMap(LinearMap):
    """W = Bᵀ diag(gain) B, which is its own transpose."""

    def __init__(self, basis: Basis, variances: Tensor, gains: Tensor) -> None:
        """`variances` and `gains` are those of B x: d each."""
        self.basis = basis
        self.variances = variances
        self.gains = gains

    def enter(self, x: Tensor) -> Tensor:
        """Return W x: d×n → d×n."""
        return self._scaled(x, self.gains)

    def leave(self, w: Tensor) -> Tensor:
        """Return W⁻¹ w: d×n → d×n."""
        return self._scaled(w, 1 / self.gains)

    def adjoint(self, theta: Tensor) -> Tensor:
        """Return Wᵀθ = W θ: d×n → d×n."""
        return self.enter(theta)

    def tensors(self) -> dict[str, Tensor]:
        """Return the colours and the variances."""
        return {"colours": self.basis.colours, "variances": self.variances}

    def coloured(self, noise: Tensor) -> Tensor:
        """Return Bᵀ √v ε, of independent ε: d×n → d×n."""
        return self.basis.images(noise * self.variances.sqrt()[:, None])

    def _scaled(self, x: Tensor, gains: Tensor) -> Tensor:
        return self.basis.images(self.basis.coefficients(x).mul_(gains[:, None]))
