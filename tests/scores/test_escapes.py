r"""Names of strangers in tables: `&`, `|`, `=` and the like are shown, and never obeyed."""

from __future__ import annotations

import csv
import io
import re

import pytest

from cswf_core.scores import escapes
from cswf_core.scores.layout import Grid, Heading, comma_separated, latex, markdown, plain
from cswf_core.scores.quantities import quantity

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
    assert escapes.latex("&%$#_{}~^\\") == (
        r"\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escapes.latex("ξ = 10 ± 2 × 字 é, SW₂") == r"$\xi$ = 10 $\pm$ 2 $\times$ U+5B57 é, SW$_2$"


def unescaped(text: str) -> str:
    """LaTeX without what is escaped, so that all that is left is obeyed."""
    return re.sub(r"\\[&%$#_{}]|\\\\", "", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_leave_latex_in_balance_and_in_its_columns(name):
    text = latex(Grid((Heading(""), Heading(name, "lower")), ((name, quantity(1.0, 0.1)),), (name,), name))
    bare = unescaped(text)
    depth = 0
    for sign in bare:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    assert "%" not in bare
    assert "#" not in bare
    assert text.isprintable() or set(text) - {"\n"} == {c for c in text if c.isprintable()}
    rows = text.partition("\\toprule\n")[2].partition("    \\bottomrule")[0].splitlines()
    cells = [unescaped(row).count("&") for row in rows if row.strip() != "\\midrule"]
    assert cells == [1, 1]
    assert not any(row.strip().startswith(("[", "*")) for row in rows)
    assert re.search(r"\\label\{tab:[a-z0-9-]+\}", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_their_cell_of_markdown(name):
    lines = markdown(Grid((Heading(""), Heading(name)), ((name, quantity(1.0)),))).split("\n")
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]
    assert "<b>" not in "".join(lines)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_in_their_cell_of_csv_and_are_not_computed(name):
    text = comma_separated(["run", "mean"], [{"run": name, "mean": -1.5}, {"run": name}])
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["run", "mean"]
    assert [row[1] for row in rows] == ["-1.5", ""]
    assert not rows[0][0].startswith(("=", "+", "-", "@"))
    assert "\n" not in rows[0][0]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_one_line_of_plain_letters(name):
    lines = plain(Grid((Heading(""), Heading("fid")), ((name, quantity(1.0)),))).split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
