r"""Tables as text: digits that are worth printing; `&`, `|`, `=` and the like are shown, and never obeyed."""

from __future__ import annotations

import csv
import io
import re
from itertools import accumulate

import pytest

from cswf_core.scores.layout import (
    Grid,
    comma_separated,
    escaped_for_latex,
    heading,
    latex,
    measured,
    plain_or_markdown,
    quantity,
)

HOSTILE = (
    "&%$#_{}~^\\",
    "[x] *",
    "a\nb\r\nc\x1b[31m",
    "| a | b |",
    "=cmd|' /C calc'!A0",
    "<b>",
    "ξ = 10×2² 字 é ₂",
    '"',
)


def test_every_sign_that_latex_obeys_is_written_as_a_letter():
    assert escaped_for_latex("&%$#_{}~^\\") == (
        r"\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escaped_for_latex("ξ = 10 ± 2 × 字 é, SW₂") == r"$\xi$ = 10 $\pm$ 2 $\times$ U+5B57 é, SW$_2$"


def unescaped(text: str) -> str:
    """LaTeX without what is escaped, so that all that is left is obeyed."""
    return re.sub(r"\\[&%$#_{}]|\\\\", "", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_leave_latex_in_balance_and_in_its_columns(name):
    text = latex(Grid(("", heading(name, "lower")), ((name, quantity(1.0, 0.1)),), (name,), name))
    bare = unescaped(text)
    depths = list(accumulate((sign == "{") - (sign == "}") for sign in bare))
    assert min(depths) >= depths[-1] == 0
    assert bare.count("$") % 2 == 0
    assert not set("%#") & set(bare)
    assert text.replace("\n", "").isprintable()
    rows = text.partition("\\toprule\n")[2].partition("    \\bottomrule")[0].splitlines()
    assert [unescaped(row).count("&") for row in rows if row.strip() != "\\midrule"] == [1, 1]
    assert not any(row.strip().startswith(("[", "*")) for row in rows)
    assert re.search(r"\\label\{tab:[a-z0-9-]+\}", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_their_cell_and_are_not_computed(name):
    text = comma_separated(["run", "mean"], [{"run": name, "mean": -1.5}, {"run": name}])
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["run", "mean"]
    assert [row[1] for row in rows] == ["-1.5", ""]
    assert not rows[0][0].startswith(("=", "+", "-", "@"))
    assert "\n" not in rows[0][0]
    lines = plain_or_markdown(Grid(("", name), ((name, quantity(1.0)),)), markdown=True).split("\n")
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]
    assert "<b>" not in "".join(lines)
    lines = plain_or_markdown(Grid(("", "fid"), ((name, quantity(1.0)),))).split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


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
    assert measured(0.159, share=True) == "15.90 %"
    assert measured(0.0, 0.0, share=True) == "0 %"
