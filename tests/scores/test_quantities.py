"""Numbers with what stands behind ±: as many digits as are worth printing."""

from __future__ import annotations

import pytest

from cswf_core.scores.quantities import quantity


@pytest.mark.parametrize(
    ("value", "spread", "printed"),
    [
        (31.2345, 0.3149, "31.23 ± 0.31"),
        (99.96, 0.0996, "99.96 ± 0.10"),  # rounding makes one digit more of it
        (12345.6, 1234.5, "12300 ± 1200"),
        (0.0, 0.01, "0.000 ± 0.010"),
        (-0.0001, 0.02, "0.000 ± 0.020"),
        (0.0158514, 0.000049, "0.015851 ± 0.000049"),
        (1.2e-7, 3e-9, "(1.200 ± 0.030)e-7"),
        (3.15, 1e-12, "3.15000000 ± 1.0e-12"),
        (5.0, 0.0, "5.000"),  # values that agree make no number certain
        (0.0, 0.0, "0"),
    ],
)
def test_a_number_ends_where_the_second_digit_of_its_spread_ends(value, spread, printed):
    assert str(quantity(value, spread)) == printed


@pytest.mark.parametrize(
    ("value", "printed"),
    [(31.2345, "31.23"), (0.0, "0"), (0.00158, "0.001580"), (123456.0, "123500"), (1.234e-5, "1.234e-5")],
)
def test_without_a_spread_a_number_has_four_digits(value, printed):
    assert str(quantity(value)) == printed


def test_shares_are_percent():
    assert str(quantity(0.61234, 0.0031, share=True)) == "61.23 ± 0.31"
