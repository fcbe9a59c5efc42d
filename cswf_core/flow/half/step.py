"""The step of `flow/step.py` in half precision with float32 sums, on CUDA, with as few passes as possible.

Projecting writes the values once, in half precision, and finds their ends on the way. The transport
replaces them by δ. The last back-projection moves the particles and brings them into half precision again.
Particles themselves stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from cswf_core.flow.clock import Clock
from cswf_core.flow.half.layout import HalfCloud, HalfSlab, runs_of
from cswf_core.flow.particles import ParticleBlock
from cswf_core.flow.step import Tools
from cswf_core.flow.transport import Displace, Maps
from cswf_core.kernels.boxes import Strips
from cswf_core.kernels.columns import columnwise
from cswf_core.kernels.gpu import products

MEASURED_PARTICLES = 1024
"""Particles whose moves are measured, for the log."""


def step(
    particles: HalfParticles, slabs: Sequence[HalfSlab], maps: Maps[HalfCloud], factor: Tensor, tools: Tools
) -> Tensor:
    """Move particles by X ← X + η/H Σ_h δ_h θ_h; return Σ_h of the sums of δ_h², a scalar in float64.

    `maps` are T_h = F_q⁻¹∘F_p, and `factor` is η/H, one number on the device, where a recorded step reads it.
    """
    X = particles.cloud
    total = torch.zeros((), dtype=torch.float64, device=factor.device)

    def begun(theta: HalfSlab) -> tuple[HalfSlab, Tensor, Tensor, Displace]:
        p, whole = theta.projected_rows(X, tools.clock)  # project: p_h = θ_h·(X, ξY)
        return theta, p.values, whole, maps.begin(theta, p)  # fit F_p and F_q: begun here

    for number, (theta, delta, whole, displace) in enumerate(tools.ranks.ahead(map(begun, slabs))):
        total += displace().sum()  # fit what is left; transport: p_h becomes δ_h = F_q⁻¹(F_p(p_h)) − p_h
        if delta.dtype != whole.dtype:  # else δ is a part of the matrix already
            whole[: delta.shape[0], : delta.shape[1]] = delta
        if number + 1 < len(slabs):
            particles.add(theta, whole, tools.clock)  # back-project: Σ_h δ_h θ_h
        else:
            tools.moving = True
            particles.move(theta, whole, factor, tools.clock)  # back-project the last, and move: X ← X + …
    return total


@attrs.define(eq=False, slots=False)
class HalfParticles:
    """Particles inside a stage, with their copy in half precision.

    What moves is z itself; or the sum S of updates; or x by an update, where a part of it is observed or it
    is clipped. Where S moves, `particles.cloud.z` stays z₀, as it was on entering the stage, and the copy
    alone has z = z₀ + G S: `ParticleBlock.move`, which keeps z up to date, is not called.
    """

    _particles: ParticleBlock
    _places: Strips | None
    """The order of the coordinates of `_half`; None: their own."""
    _half: HalfCloud
    current: bool = attrs.field(default=True, kw_only=True)
    """Whether the copy is as the particles are."""
    _sums: Tensor | None = attrs.field(default=None, init=False)
    """Σ_h δ_h θ_h of all slabs but the last: d'×n'."""
    _begun: bool = attrs.field(default=False, init=False)
    """Whether `_sums` has those of this step."""
    _lengths: Tensor | None = attrs.field(default=None, init=False)
    """How far each particle moved in the last step, where they move by an update."""

    @property
    def cloud(self) -> HalfCloud:
        """The particles in half precision, brought up to date if they have changed."""
        if not self.current:
            self.refresh()
        return self._half

    @property
    def direct(self) -> bool:
        """Whether what moves is what is projected: x itself, or W x."""
        return self._particles.sum is None and not self._particles.constrained

    def add(self, theta: HalfSlab, delta: Tensor, clock: Clock) -> None:
        """Add Σ_h δ_h θ_h of a slab that is not the last: δ is H'×n'."""
        if self._sums is None:
            self._sums = torch.empty(self._half.z.shape, device=delta.device)
        moved = 8 if self._begun else 4
        with clock.part("back-project", partial(theta.back_work, self._half.count, moved)):
            products.back_project(theta.directions, delta, self._sums, add=self._begun)
        self._begun = True

    def move(self, theta: HalfSlab, delta: Tensor, factor: Tensor, clock: Clock) -> None:
        """Add Σ_h δ_h θ_h of the last slab, and move by η/H times all of it."""
        z = self._particles.cloud.z
        total = self._particles.sum
        target = torch.zeros_like(z) if self._particles.constrained else self._moving
        sums = self._sums if self._begun else None
        self._begun = False
        half = self._half.z if self.direct else None
        moved = 8 + (2 if self.direct else 0) + (0 if sums is None else 4)
        with clock.part("back-project", partial(theta.back_work, self._half.count, moved)):
            products.move(theta.directions, delta, sums, target, factor, self._places, half)
        # Of z = z₀ + G S: read S, write G S, read both parts, write z in half precision. Where particles move
        # by an update: read that, read and write z and S, or x, and bring that into half precision.
        each = (0 if self.direct else 18) + (8 if self._particles.constrained and total is not None else 0)
        with clock.part("move", lambda: (float(each * z.numel()), 0.0)):
            self._lengths = self._particles.move(target) if self._particles.constrained else None
            if not self.direct:
                self.refresh()

    @property
    def _moving(self) -> Tensor:
        """What moves unless particles move by an update: S, or z itself."""
        total = self._particles.sum
        return self._particles.cloud.z if total is None else total

    def some(self) -> Tensor:
        """Return a copy of what moves of some particles, to measure their move later."""
        return runs_of(self._moving, MEASURED_PARTICLES).clone()

    def mean_length(self, before: Tensor) -> Tensor:
        """Return the mean length of the last move: of `some` particles, unless they moved by an update."""
        lengths = self._lengths
        if lengths is None:
            change = (runs_of(self._moving, MEASURED_PARTICLES) - before).flatten(1)
            if self.direct:
                lengths = torch.linalg.vector_norm(change, dim=0)
            else:
                lengths = (change * self.gram(change)).sum(dim=0).clamp_min(0).sqrt()
        return lengths.mean()

    def refresh(self) -> None:
        """Bring the particles into half precision: z = z₀ + G S, or z itself."""
        total = self._particles.sum
        moved = None if total is None or self._particles.constrained else self.gram(total).contiguous()
        products.halve(self._particles.cloud.z.contiguous(), self._places, self._half.z, moved)
        self.current = True

    def gram(self, u: Tensor) -> Tensor:
        """Return G u: d_k×n → d_k×n."""
        coordinates = self._particles.coordinates
        quick = coordinates.quick
        return coordinates.gram(u) if quick is None else columnwise(quick.times, u)
