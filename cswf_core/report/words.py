"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from typing import Any

SHORT = {"fid": "FID", "kid": "KID", "wasserstein": "Wasserstein"}
"""Parts of scores' names that are written otherwise."""


def number(value: float) -> str:
    """Return a number with four digits."""
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3e}"
    digits = 4 if not value else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


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


def score(name: str) -> str:
    """Return a score's name in words."""
    return " ".join(SHORT.get(part, part) for part in name.split("_"))
