"""What a flow is made of: four plugins, and a few numbers that are no plugin's."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch

from cswf_core.flow.tables import TableRequest
from cswf_core.interfaces import CDFEstimator, ConditionEncoder, Owner, ProjectionSampler, Schedule


@attrs.frozen(eq=False)
class Parts:
    """The four plugins that make a flow, and who each belongs to (for errors)."""

    condition: ConditionEncoder
    projection: ProjectionSampler
    cdf: CDFEstimator
    schedule: Schedule
    owners: Mapping[str, Owner] = attrs.field(factory=dict)

    def owner(self, kind: str) -> Owner:
        """Return the owner of 'condition', 'projection', 'cdf' or 'schedule', or of the 'dataset'."""
        if kind == "dataset":
            return self.owners.get(kind) or Owner(kind, "data", "given", "")
        return self.owners.get(kind) or Owner.of(kind, getattr(self, kind))


@attrs.frozen
class Settings:
    """The numbers of a flow that are no plugin's."""

    count: int | None = None
    """M; None is as many particles as data."""
    scale: float = 1.0
    """Particles begin as N(0, scale² I)."""
    seed: int = 0
    reuse: int | None = 1
    """For how many steps a set of directions is kept; None keeps one for a whole stage."""
    dtype: torch.dtype = torch.float32
    half: bool = False
    """Whether products on CUDA are in half precision with float32 sums; particles stay in `dtype`, float32."""
    tables: TableRequest | None = None
    """Which of the steps' transport maps are handed to those who watch; None: none."""
    sets: int | None = None
    """How many sets of directions a stage has, used in turn; None: each step draws its own."""
