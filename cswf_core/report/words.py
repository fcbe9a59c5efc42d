"""Numbers and names as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def number(value: float) -> str:
    """Return a number with four digits."""
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3e}"
    digits = 4 if not value else max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def measured(value: float, error: float | None = None, *, share: bool = False) -> str:
    """Return a number, a share in percent, with its uncertainty behind ± and no more digits than that tells."""
    if not math.isfinite(value):
        return "not finite"
    unit, factor = (" %", 100.0) if share else ("", 1.0)
    value *= factor
    if error is None or not math.isfinite(error):
        return f"{value:.3g} %" if share else number(value)
    error *= factor
    if not error:
        return f"{value:.3g} ± 0 %" if share else f"{number(value)} ± 0"
    if not 1e-7 <= error < 1e6 or abs(value) >= 1e6:
        return f"{number(value)} ± {number(error)}{unit}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}{unit}"


def size(value: int) -> str:
    """Return a number of bytes in the unit that a person would say it in."""
    return (
        f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.0f} kB" if value >= 1e3 else f"{value} B"
    )


def listed(texts: Sequence[str], most: int = 6) -> str:
    """Return texts as a list in a sentence; of many, the first and how many more there are."""
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most} more"
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


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
