"""Pictures of a few particles at several moments, which a run takes with it when it goes on after a kill."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Moment = tuple[int, Tensor]
"""Steps done, and some particles then: n×C×H×W bytes, or n×d numbers. Those that come later are the last."""


class Album:
    """Moments of a flow, in order."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def filled(self) -> tuple[Tensor, Tensor]:
        """Return all moments (T×n×…), with 0 where a particle has not come yet, and when each has come (n)."""
        shown = [kept for _, kept in self.moments]
        whole = torch.nn.utils.rnn.pad_sequence(shown, batch_first=True)
        counts = torch.tensor([len(kept) for kept in shown])
        since = (counts[:, None] <= torch.arange(whole.shape[1])).sum(dim=0)
        return whole, since

    def keep(self) -> dict[str, Tensor]:
        """Return what belongs into a checkpoint: `steps` and `counts` (T), and `shown` (T×n×…)."""
        if not self.moments:
            return {}
        steps = torch.tensor([step for step, _ in self.moments])
        counts = torch.tensor([len(kept) for _, kept in self.moments])
        return {"steps": steps, "counts": counts, "shown": self.filled()[0]}

    def recall(self, kept: Mapping[str, Tensor], total_step: int) -> None:
        """Go back to what a checkpoint has."""
        del total_step
        if not kept:
            self.moments = []
            return
        steps, counts = kept["steps"].tolist(), kept["counts"].tolist()
        self.moments = [(s, shown[:n]) for s, n, shown in zip(steps, counts, kept["shown"], strict=True)]
