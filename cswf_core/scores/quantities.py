"""Quantities: numbers with what stands behind ±, rounded to the digits that are worth printing."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import attrs

DIGITS = 4
"""Digits of a number of which nobody knows how sure it is."""

DIGITS_OF_SPREAD = 2
"""Digits of what stands behind ±; the number before it ends at the same place."""

MOST_DIGITS = 9
"""Digits of a number at most, however small its spread is."""

PLAIN = (1e-4, 1e6)
"""Numbers from the first to below the second are written without a power of ten."""


@attrs.frozen
class Quantity:
    """A number as it is printed: `value ± spread`, both times a power of ten."""

    value: str
    spread: str = ""
    """Nothing: it is not known."""
    exponent: int = 0
    """Of the power of ten; 0: there is none."""
    best: bool = False
    """Whether it is the best of its column by more than noise."""
    remark: str = ""
    """Written behind it in brackets."""

    def __str__(self) -> str:
        """Return it in plain letters: `31.23 ± 0.31`, `(1.20 ± 0.30)e-7`, `0 (all 3 seeds)`."""
        text = f"{self.value} ± {self.spread}" if self.spread else self.value
        if self.exponent:
            text = f"({text})e{self.exponent}" if self.spread else f"{text}e{self.exponent}"
        return f"{text} ({self.remark})" if self.remark else text


def quantity(value: float, spread: float | None = None, *, share: bool = False, best: bool = False) -> Quantity:
    """Return a number with two digits of its spread, or with four digits where no spread is known.

    A share becomes percent. A spread of 0 is not printed: values that agree do not make a number certain.
    """
    scale = 100 if share else 1
    value, spread = value * scale, None if spread is None else spread * scale
    largest = max(abs(value), spread or 0.0)
    exponent = 0 if not largest or PLAIN[0] <= largest < PLAIN[1] else _exponent(largest, DIGITS)
    number = Decimal(repr(value)).scaleb(-exponent)
    if not spread:
        return Quantity(_written(number, _places(number, DIGITS)), "", exponent, best)
    width = Decimal(repr(spread)).scaleb(-exponent)
    places, most = _places(width, DIGITS_OF_SPREAD), _places(number, MOST_DIGITS)
    if number and places > most:  # a spread of the last bits
        return Quantity(_written(number, most), f"{width:.1e}", exponent, best)
    return Quantity(_written(number, places), _written(width, places), exponent, best)


def measured(value: float, spread: float | None = None, *, share: bool = False) -> str:
    """Return a number with its spread as a text; a share in percent."""
    return f"{quantity(value, spread, share=share)}{' %' if share else ''}"


def _exponent(value: float | Decimal, digits: int) -> int:
    """Return the power of ten of a number that is not 0, after it is rounded to some digits."""
    return int(f"{abs(value):.{digits - 1}e}".partition("e")[2])


def _places(number: Decimal, digits: int) -> int:
    """Return how many places behind the point show so many digits; of hundreds fewer than 0."""
    return digits - 1 - _exponent(number, digits) if number else 0


def _written(number: Decimal, places: int) -> str:
    """Return a number rounded to places; whole numbers keep zeros in the place of digits that say nothing."""
    rounded = number.quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN)
    text = f"{rounded:f}"
    return text.removeprefix("-") if not rounded else text
