"""The data that particles flow to: all of them in the host's memory, this rank's share on the flow's device."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.checks import CheckedCondition
from cswf_core.flow.particles import balanced
from cswf_core.flow.settings import Settings
from cswf_core.interfaces import Dataset
from cswf_core.ranks import Ranks


class FlowData:
    """The data of a flow, balanced as its condition wants them."""

    def __init__(
        self, data: Dataset, condition: CheckedCondition, settings: Settings, device: torch.device, ranks: Ranks
    ) -> None:
        self.all = balanced(data, condition, settings.seed)
        """Those of all ranks, on the CPU."""
        self.share = ranks.share(len(self.all), device)
        """Which of them this rank has."""
        self.conditions = self.all.conditions.take(self.share.cut).to(device, settings.dtype)
        """Y of this rank's."""
        self._like = torch.empty(data.space.dimension, 0, device=device, dtype=settings.dtype)
        self.x = self._like
        """This rank's, on its device: d×n; none before `settle`, or where counts take their place."""

    def everything(self) -> Tensor:
        """Return the data of all ranks on the device: d×N; what is fitted to data is fitted to these."""
        if self.share.whole and self.x.shape[1] == len(self.all):
            return self.x
        return self.all.x.to(self._like.device, self._like.dtype).contiguous()

    def settle(self, all_x: Tensor) -> None:
        """Keep this rank's share of all data (d×N)."""
        self.x = all_x if self.share.whole else all_x[:, self.share.cut].clone()

    def forget(self) -> None:
        """Let go of the data on the device: counts have taken their place."""
        self.x = self._like
