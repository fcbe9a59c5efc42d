"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from typing import Any


def seconds(value: Any) -> str:
    """Return a time in the units that a person would say it in; nothing for what is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return ""
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def count(value: Any) -> str:
    """Return a whole number with its thousands apart; other values as they are, None as nothing."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
