"""Contract of metrics: numbers that compare generated samples with real ones."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from cswf_core.interfaces.dataset import Dataset
from cswf_core.interfaces.draw import Draw


class Metric(abc.ABC):
    """Scores samples. Subclasses are attrs classes whose fields are the parameters."""

    @abc.abstractmethod
    def compute(self, generated: Dataset, real: Dataset, draw: Draw) -> Mapping[str, float]:
        """Return one or more named numbers; `draw` says on which device to work."""
