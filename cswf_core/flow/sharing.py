"""Particles of which each rank has a share: brought together at rank 0, and shared out anew when more come."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor

from cswf_core.flow.particles import Particles
from cswf_core.interfaces import Conditions, Observation
from cswf_core.ranks import Ranks


def gathered(
    particles: Particles,
    index: Tensor | None,
    ranks: Ranks,
    seen: Observation | None,
    originals: Callable[[], Tensor],
) -> Tensor:
    """Return the particles that `index` names, on the CPU, or all, at rank 0; others only send theirs: d×m.

    `seen` is what is observed of a rank's particles, if that has to be put back as it is in their originals.
    """
    share = particles.share
    own = share.own(None if index is None else index.to(particles.device))

    def gather(columns: Tensor) -> Tensor:
        columns = ranks.gathered(columns)
        if index is None or ranks.alone or not ranks.leads:
            return columns
        shares = ranks.shares(share.total, particles.device)
        here = [each.has(index).nonzero()[:, 0] for each in shares]
        return torch.empty_like(columns).index_copy_(1, torch.cat(here).to(columns.device), columns)

    if seen is not None:
        x = seen.free(particles.x) + seen.seen(originals())
        x = gather(x if own is None else x[:, own])
    elif isinstance(own, Tensor):
        x = particles.some(own, gather)
    else:
        x = gather(particles.x)
    return x.cpu() if particles.in_blocks else x.detach().clone().cpu()  # those in blocks are a copy already


def join(particles: Particles, x: Tensor, conditions: Conditions, ranks: Ranks) -> None:
    """Let particles x (d×m) in behind all others; `conditions` are those of all then, on the CPU.

    With several ranks the last has them first; then particles are shared out anew.
    """
    M = particles.share.total
    before = ranks.shares(M, x.device)
    before[-1] = attrs.evolve(before[-1], stop=M + x.shape[1])
    after = ranks.shares(M + x.shape[1], x.device)
    share = after[ranks.rank]
    own = conditions.take(share.cut).to(x.device, x.dtype)
    particles.join(x if ranks.rank == ranks.size - 1 else x[:, :0], own, share)
    if not ranks.alone:
        particles.reshare(lambda part: ranks.reshared(part, before, after))
