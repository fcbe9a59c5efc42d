"""YAML without surprises, and a place for everything."""

from __future__ import annotations

import pytest

from cswf_core.nodes import Items, Location, Mapping, Scalar, parse

TOP = Location("recipe.yaml", 1, 1)


def value(text: str):
    problems = []
    node = parse(f"key: {text}\n", TOP, problems)
    assert not problems
    assert isinstance(node, Mapping)
    return node.get("key").value


def complaints(text: str) -> list[str]:
    problems = []
    parse(text, TOP, problems)
    return [str(problem) for problem in problems]


NUMBERS = {"1e-3": 0.001, "1E5": 100000.0, ".5": 0.5, "-3": -3, "010": 10}
OTHERS = {"true": True, "False": False, "null": None, "": None, "'5'": "5", '"true"': "true"}
TEXTS = ["no", "on", "y", "12:30", "2023-01-01", "0x10", "1_000", ".inf", ".nan", "1e999", "9" * 5000, "="]


@pytest.mark.parametrize(
    ("text", "expected"), [*NUMBERS.items(), *OTHERS.items(), *zip(TEXTS, TEXTS, strict=True)]
)
def test_scalars_mean_what_they_look_like(text, expected):
    got = value(text)
    assert got == expected
    assert type(got) is type(expected)


def test_every_node_knows_its_place():
    problems = []
    node = parse("a: 1\nb:\n  c: [x,\n      y]\n", TOP, problems)
    b = node.get("b")
    items = b.get("c")
    assert isinstance(items, Items)
    assert [str(i.location) for i in items.items] == ["recipe.yaml:3:7", "recipe.yaml:4:7"]
    assert str(b.entries["c"].location) == "recipe.yaml:3:3"
    assert isinstance(items.items[0], Scalar)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: 2\na: 3\n", "recipe.yaml:3:1: duplicate key 'a', first written at recipe.yaml:1:1"),
        ("a: &x 1\n", "recipe.yaml:1:4: anchor '&x'"),
        ("a: &x [1]\nb: *x\n", "recipe.yaml:2:4: alias '*x'"),
        ("a: !!python/object/apply:os.system [ls]\n", "recipe.yaml:1:4: tag"),
        ("a: !!int 3\n", "recipe.yaml:1:4: tag"),
        ("a: 1\n---\nb: 2\n", "recipe.yaml:2:1: a second document begins here"),
        ("? [1, 2]\n: 3\n", "recipe.yaml:1:3: a key must be a text"),
        ("a: [1\n", "not valid YAML"),
        ("a:\n\t- 1\n", "recipe.yaml:2:1: not valid YAML"),
        ("a: \x00\n", "not valid YAML"),
        ("[" * 2000, "nested deeper than 40 levels"),
        ("a: \ud800", "not valid UTF-8"),
    ],
)
def test_what_is_refused_has_a_place(text, complaint):
    assert any(complaint in line for line in complaints(text)), complaints(text)


def test_an_alias_that_would_explode_is_refused_and_stays_small():
    bomb = "a: &a [x, x]\n" + "".join(
        f"{c}: &{c} [*{p}, *{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert len([line for line in complaints(bomb) if ": alias '" in line]) == 16
