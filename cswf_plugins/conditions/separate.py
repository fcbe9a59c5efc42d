"""Condition `separate`: a flow of its own for every class.

What it is: the ideal conditional flows of the paper's section 4.1, which the joint flow approximates; classes
share nothing, and each one's particles see only that class's data.
Cost: as for one flow, in as many smaller pieces as there are classes.
When not to use it: with many classes or few samples in some. It is the yardstick, not the method.
"""

from __future__ import annotations

import attrs
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Stratum
from cswf_plugins.conditions.none import WithoutVector
from cswf_plugins.references import bibtex


@attrs.frozen(kw_only=True)
class Separate(WithoutVector):
    """One flow per class."""

    references = bibtex("liutkus2019sliced")
    amplifier = 0.0

    def length(self, data: Dataset) -> int:
        """l = 0: classes are kept apart, not encoded."""
        if data.conditions.labels is None:
            raise DataError("condition 'separate' needs labelled data, and this data set has no labels")
        return 0

    def strata(self, particles: Conditions, data: Conditions) -> list[Stratum]:
        """Pair the particles of each class with the data of that class."""
        assert particles.labels is not None
        assert data.labels is not None
        present = torch.unique(particles.labels).tolist()
        return [((particles.labels == c).nonzero()[:, 0], (data.labels == c).nonzero()[:, 0]) for c in present]
