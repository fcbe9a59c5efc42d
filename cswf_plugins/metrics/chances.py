"""The chance that samples come first by luck alone, where samples and real images are drawn alike.

If both are drawn alike, every order of them is as likely, whatever they look like: so these chances are exact.
"""

from __future__ import annotations

import math


def chance_of_at_least(ours: int, drawn: int, n: int, m: int) -> float:
    """Return the chance that `ours` or more of `drawn` images are samples, of n samples and m real images.

    They are drawn without putting back (hypergeometric).
    """
    if ours <= max(0, drawn - m):
        return 1.0
    all_ways = _log_ways(drawn, n + m)
    terms = (_log_ways(k, n) + _log_ways(drawn - k, m) - all_ways for k in range(ours, min(drawn, n) + 1))
    return min(1.0, math.fsum(map(math.exp, terms)))


def chance_before(ours: int, rank: int, n: int, m: int) -> float:
    """Return the chance that `ours` or more of n samples are below the `rank`-th smallest of m real ones.

    So it is if at least `ours` of the ours + rank − 1 smallest of all are samples (negative hypergeometric).
    """
    return chance_of_at_least(ours, ours + rank - 1, n, m)


def _log_ways(chosen: int, count: int) -> float:
    """Return the logarithm of the number of ways to choose some of `count` things."""
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
