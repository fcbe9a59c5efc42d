"""Differences of scores, and whether they are more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

CONFIDENCE = 0.95
"""Of intervals: that of the true difference lies within, if errors are what they are said to be."""


def half_width(error: float, freedom: float = math.inf, among: int = 1) -> float:
    """Return half of the interval of CONFIDENCE around a number with a standard error.

    Of several such numbers, `among`, all lie within theirs with that confidence (Bonferroni).

    `freedom` are the degrees of freedom that the error itself was estimated with (Student's t): few seeds make
    a wide interval.
    """
    from scipy.special import ndtri, stdtrit  # only now: it takes a while to import

    level = 1 - (1 - CONFIDENCE) / 2 / among
    quantile = ndtri(level) if math.isinf(freedom) else stdtrit(max(freedom, 1.0), level)
    return error * float(quantile)


@attrs.frozen
class Difference:
    """How much larger one score is than another, and how sure that is."""

    value: float
    error: float | None
    """Its standard error; None: not known."""
    freedom: float = math.inf
    """Degrees of freedom of that error."""
    among: int = 1
    """How many differences are looked at together: with more of them, chance makes one of them large."""

    @property
    def interval(self) -> float | None:
        """Half of the interval around it; None where its error is not known."""
        return None if self.error is None else half_width(self.error, self.freedom, self.among)

    @property
    def is_noise(self) -> bool:
        """Whether it may be chance: the interval has 0 in it, or nobody knows its width."""
        return self.interval is None or abs(self.value) <= self.interval


@attrs.frozen
class Estimate:
    """A score, or the mean of several, with its standard error and the degrees of freedom of that."""

    value: float
    error: float | None = None
    freedom: float = math.inf

    def minus(self, other: Estimate) -> Difference:
        """Return the difference of independent estimates; degrees of freedom by Welch and Satterthwaite."""
        if self.error is None or other.error is None:
            return Difference(self.value - other.value, None)
        squares = (self.error**2, other.error**2)
        total = sum(squares)
        shares = sum(
            (square / total) ** 2 / each.freedom
            for square, each in zip(squares, (self, other), strict=True)
            if total and not math.isinf(each.freedom)
        )
        return Difference(self.value - other.value, math.sqrt(total), 1 / shares if shares else math.inf)


def best(estimates: Sequence[Estimate | None], better: str) -> int | None:
    """Return which estimate is the best beyond noise; None where none is, or nothing can be told."""
    there = [i for i, estimate in enumerate(estimates) if estimate is not None]
    if better not in ("lower", "higher") or len(there) < 2:
        return None
    sign = 1 if better == "lower" else -1
    first, *others = sorted(there, key=lambda i: sign * _of(estimates, i).value)
    differences = [_of(estimates, first).minus(_of(estimates, other)) for other in others]
    clear = all(not attrs.evolve(each, among=len(others)).is_noise for each in differences)
    return first if clear else None


def _of(estimates: Sequence[Estimate | None], i: int) -> Estimate:
    estimate = estimates[i]
    assert estimate is not None
    return estimate
