"""A stage's own coordinates: exact, and as small as the grid of its directions.

Where directions are θ = U t with t on a coarse grid, a step needs only z = Uᵀx, since θ·x = t·z, and moves x
only by multiples of U. So z is computed when the stage begins, each update u changes it by G u with G = UᵀPU,
where P removes what is observed, and P U S is added to x when the stage ends, with the sum of the updates S. Up
to rounding, this is what steps on x itself would have given.

With coordinates w = W x (`interfaces.coordinates`), directions have unit length in w, z = UᵀW x, x receives
W⁻¹ U S, and G is UᵀU. Where a part of x is observed, updates in w are projected, at right angles there, to
those that leave this part alone, which are no longer than they were: x receives K Wᵀ U S with
K = P (P WᵀW P)⁻¹ P, and G = UᵀW K WᵀU.

The amplifier ξ of an observation stretches the observed part of particles and data alike: x is replaced by
L x, L = P + ξ (I − P). Particles begin and stay stretched; data are stretched when they enter.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.interfaces import Conditions, LinearMap, Masked, Observation, Projection, Space, Upsampling
from cswf_core.kernels.columns import columnwise

LARGEST_FREE_PART = 4096  # d up to which K is a matrix, and G with it: above, the observation is refused


@attrs.frozen(eq=False)
class Cloud:
    """Samples in a stage's coordinates, z (d_k×n), with their conditions y."""

    z: Tensor
    conditions: Conditions
    noise: Tensor | None = None
    """Noise that is added to ξy: l×n, or l×1 for all samples."""
    first: int = 0
    """The number of the first sample among all that are counted."""


class StageCoordinates:
    """The linear algebra of one stage, from the data's space, `full`, to that of z, `space`, and back."""

    def __init__(
        self,
        space: Space,
        observation: Observation | None = None,
        amplifier: float = 1.0,
        like: Tensor | None = None,
        *,
        upsampling: Upsampling | None = None,
        W: LinearMap | None = None,
        free: Tensor | None = None,
    ) -> None:
        """Set up the maps; K is `free`, of `free_moves`. G is kept where that pays, as `like`."""
        self.upsampling = upsampling
        self.W = W
        self.free = free
        self.full = space
        self.space = space if upsampling is None else upsampling.space
        self.observation = observation
        self.amplifier = amplifier
        self._gram: Tensor | None = None
        self.quick: QuickGram | None = None
        """G for tensor cores, where half precision is accurate enough; see `use_tf32`."""
        # Of an observation, up to which d_k G is a matrix: above, up and down is cheaper
        largest = 1024 if free is None else LARGEST_FREE_PART
        keep = observation is not None and observation.shared and self.space.dimension <= largest
        if not self.identity and keep and like is not None:
            self._gram = self.enter(self.leave(torch.eye(self.space.dimension).to(like)))

    @property
    def identity(self) -> bool:
        """Whether z is x itself."""
        return self.upsampling is None and self.W is None

    @property
    def reversible(self) -> bool:
        """Whether x can be computed from z alone: z = W x, and nothing is observed."""
        return self.upsampling is None and self.W is not None and self.observation is None

    def enter(self, x: Tensor) -> Tensor:
        """Return z = UᵀW x: d×n → d_k×n."""
        return x if self.identity else columnwise(self._enter, x)

    def _enter(self, x: Tensor) -> Tensor:
        w = x if self.W is None else self.W.enter(x)
        return w if self.upsampling is None else self.upsampling.down(w)

    def enter_data(self, x: Tensor) -> Tensor:
        """Return UᵀW L x, of data or of their noise: d×n → d_k×n."""
        return self.enter(self.stretched(x))

    def stretched(self, x: Tensor) -> Tensor:
        """Return L x = P x + ξ (I − P) x: d×n → d×n."""
        if self.observation is None or self.amplifier == 1:
            return x
        return self.observation.free(x) + self.amplifier * self.observation.seen(x)

    def leave(self, u: Tensor) -> Tensor:
        """Return P U u, or W⁻¹ U u, or K Wᵀ U u, the change of x for a sum of updates: d_k×n → d×n."""
        if self.free is not None:
            return columnwise(self._leave_free, u)
        change = u if self.identity else columnwise(self._leave, u)
        # What is observed does not move by a bit, whatever W and K are.
        return change if self.observation is None else self.observation.free(change)

    def _leave_free(self, u: Tensor) -> Tensor:
        """Return K Wᵀ U u: d_k×n → d×n."""
        assert self.free is not None
        assert self.observation is not None
        return self.observation.free(self.free @ self.of_pixels(u))

    def _leave(self, u: Tensor) -> Tensor:
        change = u if self.upsampling is None else self.upsampling.up(u)
        return change if self.W is None else self.W.leave(change)

    def of_pixels(self, theta: Tensor) -> Tensor:
        """Return Wᵀ U t for filters as columns, the weights that a direction gives to pixels: d_k×n → d×n."""
        full = theta if self.upsampling is None else self.upsampling.up(theta)
        return full if self.W is None else self.W.adjoint(full)

    def gram(self, u: Tensor) -> Tensor:
        """Return G u, the change of z for an update u: d_k×n → d_k×n."""
        if self._gram is not None:
            return columnwise(self._gram.matmul, u)
        if self.observation is None:
            return u if self.upsampling is None else columnwise(self.upsampling.gram, u)
        return self.enter(self.leave(u))

    def scale(self, projection: Projection) -> Tensor | None:
        """Return 1/‖U t_h‖ for every direction (H×1); None: it is 1, because U is the identity."""
        if self.upsampling is None:
            return None
        t = projection.dense()
        if self.quick is not None:
            return self.quick.squares(t).rsqrt()[:, None]
        return (t.T * self.upsampling.gram(t.T)).sum(dim=0).rsqrt()[:, None]

    def use_tf32(self, like: Tensor) -> None:
        """Compute products with G in TF32 from now on, where `like` is."""
        channels = self.space.shape[0] if self.space.is_image else 1
        pixels = self.space.dimension // channels
        # Above, one matrix for rows and one for columns are faster than G
        if self.upsampling is not None and pixels <= 1024:
            self.quick = QuickGram(self.upsampling.gram(torch.eye(self.space.dimension).to(like)), channels)


def free_moves(
    W: LinearMap | None, observation: Observation | None, dimension: int, like: Tensor
) -> Tensor | None:
    """Return K = P (P WᵀW P)⁻¹ P (d×d, as `like`); None if there are no coordinates W, or nothing is observed.

    Of all moves of x that leave O x alone, K Wᵀ u is the one whose image W K Wᵀ u is nearest to u.
    """
    if W is None or observation is None:
        return None
    if not observation.shared:
        raise RunError(
            "coordinates other than plain need the same part of every image to be seen, and here each has "
            "its own: take one mask for all, or plain coordinates"
        )
    if dimension > LARGEST_FREE_PART:
        raise RunError(
            "where a part of the image is seen, coordinates other than plain go up to "
            f"{LARGEST_FREE_PART:,} dimensions, and these data have {dimension:,}: take plain coordinates"
        )
    unit = torch.eye(dimension).to(like)
    if isinstance(observation, Masked):  # a smaller matrix will do
        rest = (~observation.mask[:, 0]).nonzero()[:, 0]
        squares = W.adjoint(W.enter(unit[:, rest]))[rest].double()
        K = torch.zeros_like(unit)
        K[rest[:, None], rest] = torch.linalg.inv((squares + squares.T) / 2).to(like)
        return K
    free = observation.free(unit)
    squares = observation.free(W.adjoint(W.enter(free))).double()  # P WᵀW P
    whole = (squares + squares.T) / 2 + observation.seen(unit).double()  # and 1 where nothing moves
    return observation.free(torch.linalg.solve(whole, free.double()).to(like))


class QuickGram:
    """UᵀU as a matrix, or one for each channel, in products with TF32, as accurate as half precision."""

    def __init__(self, G: Tensor, channels: int) -> None:
        d = G.shape[0]
        cut = G.view(channels, d // channels, channels, d // channels)
        own = torch.stack([cut[c, :, c] for c in range(channels)])
        apart = bool(own.square().sum() >= G.square().sum() * (1 - 1e-6))
        self.matrices = own.contiguous() if apart else G[None]
        """G of each channel (C×d_k/C×d_k/C), or of all (1×d_k×d_k)."""

    def times(self, u: Tensor) -> Tensor:
        """Return G u: d_k×n → d_k×n."""
        return _product(self.matrices, u.view(*self.matrices.shape[:2], u.shape[1])).view(u.shape)

    def squares(self, theta: Tensor) -> Tensor:
        """Return t·Gt for directions t (H×d_k): H."""
        t = theta.view(theta.shape[0], *self.matrices.shape[:2]).transpose(0, 1)
        return (_product(t, self.matrices) * t).sum(dim=(0, 2))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a batch of products of matrices in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.bmm(a, b)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
