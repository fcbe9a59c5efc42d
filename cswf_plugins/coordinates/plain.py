"""Coordinates `plain`: the data's own, W = I.

What it is: directions are drawn in the space of the data, as in the paper.
Cost: none.
When not to use it: for photographs, where brightness varies much more than detail and colour do; `whitened` is
better there.
"""

from __future__ import annotations

import attrs
from torch import Tensor

from cswf_core.interfaces import Coordinates, LinearMap, Space


@attrs.frozen(kw_only=True)
class Plain(Coordinates):
    """The data's own coordinates."""

    sees_data = False

    def fit(self, space: Space, x: Tensor) -> LinearMap | None:
        """Return None: w is x itself."""
        del space, x
        return None
