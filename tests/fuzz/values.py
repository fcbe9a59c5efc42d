"""Values that nobody expects, and changes to nested values: the part of fuzzing that knows JSON and YAML.

Functions that take `draw` are parts of Hypothesis strategies, which `Target.inputs` makes of them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

HUGE, DEEP, TWICE = "<<huge>>", "<<deep>>", "<<twice>>"
"""Texts that `text_of` writes as a whole number of 5,000 digits, as 3,000 lists inside one another, and as a
mapping with one key twice."""

_RAW = {HUGE: "9" * 5000, DEEP: "[" * 3000 + "]" * 3000, TWICE: '{"use": 1, "use": 2}'}

TEXTS: tuple[str, ...] = (
    *("", " ", "\n", "\t", "\0", "\x1b[31mred\x1b[0m", "\x07", "\u202e", "\u2028", "\ud800", "é", "e\u0301"),
    *("0", "-1", "1e3", "nan", "inf", "true", "no", "null", "~", "x", "..", ".", "/", "../x"),
    *("/dev/null", "a/b", "uniform", "one-hot", "digits", "all", "paper", "dimension", "never"),
    *("float32", "float64", "train", "test"),
    *("500", "10min", "1e9h", "5" * 5000, "1" * 40 + "e", "%s%n", "{0}", "$HOME", "<script>", "'", '"', "`id`"),
    *("labels", "vectors", "image", "ff", "0x10", "tables-00000.safetensors", "model.json", "ü" * 300, DEEP),
)

KEYS: tuple[str, ...] = (
    *("use", "steps", "count", "mean", "format", "x", "1", "", "__class__", "stage", "file", "bytes", "sha256"),
    *("parts", "name", "shape", "extends", "path", "variants", "seed", "a.b", "\0", "é"),
)

numbers: st.SearchStrategy[Any] = (
    st.sampled_from((0, 1, -1, 2, 10, 255, 65535, 2**31, -(2**63), 2**64, 10**18, HUGE, 0.5, 1e39, 5e-324))
    | st.integers()
    | st.floats()
)
texts = st.sampled_from(TEXTS) | st.text(max_size=8)
anything: st.SearchStrategy[Any] = st.recursive(
    numbers | texts | st.none() | st.booleans() | st.sampled_from((DEEP, TWICE)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=4,
)
"""A value of any type: often a boundary, seldom a nested one."""

Item = TypeVar("Item")


def pick(draw: DrawFn, items: Sequence[Item]) -> Item:
    """Draw one of some items; faster than `sampled_from`, which would be made anew each time."""
    return items[draw(st.integers(0, len(items) - 1))]


def chance(draw: DrawFn, probability: float) -> bool:
    """Draw whether something happens, in a step of a percent; the simpler answer is that it does not."""
    return draw(st.integers(0, 99)) >= 100 - 100 * probability


def text_of(value: Any) -> str:
    """Return a value as JSON, which YAML is too; the texts above become what they stand for."""
    text = json.dumps(value, ensure_ascii=False)
    for mark, raw in _RAW.items():
        text = text.replace(f'"{mark}"', raw)
    return text


def bytes_of(value: Any) -> bytes:
    """Return a value as the bytes of a JSON file; halves of surrogates stay as they are, which is no UTF-8."""
    return text_of(value).encode("utf-8", "surrogatepass")


def replaced(document: Any, changes: dict[str, Any]) -> Any:
    """Return a document with other values at key paths such as `data.shape` or `shards.0.file`."""
    document = copy.deepcopy(document)
    for path, value in changes.items():
        *above, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
        at(document, above)[last] = value
    return document


def near(draw: DrawFn, value: Any) -> Any:
    """Return a value like another one: one more, the opposite, as a text, in a list."""
    match value:
        case bool():
            choices: list[Any] = [not value, int(value), str(value)]
        case int() | float():
            choices = [value + 1, value - 1, -value, value * 1000, value * 10**9, value / 3]
            choices += [str(value), [value]]
        case str():
            choices = [value + "x", value[:-1], value.upper(), f" {value}", [value], list(value)[:5], value * 2]
            choices += [value[::-1], value + "\n", value + "\x1b[2J", digit_changed(draw, value)]
        case list():
            choices = [value[:-1], value + value, value[::-1], value[1:], [value], {"0": value}, value * 50]
        case dict():
            choices = [list(value.items()), list(value), [value], {**value, "x": 1}, {}]
        case _:
            choices = [0, "", [], {}]
    return pick(draw, choices)


def digit_changed(draw: DrawFn, text: str) -> str:
    """Return a text with another digit in one place, which may still mean something."""
    digits = [match.start() for match in re.finditer(r"[0-9a-f]", text)]
    if not digits:
        return text
    place = pick(draw, digits)
    return text[:place] + pick(draw, "0123456789abcdef") + text[place + 1 :]


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place in a nested value: the keys and numbers that lead there."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, item in below for place in places(item, (*here, key)))]


def at(value: Any, place: Sequence[Any]) -> Any:
    """Return what is at a place."""
    for key in place:
        value = value[key]
    return value


def changed(draw: DrawFn, value: Any, others: Sequence[Any] = (), most: int = 3) -> Any:
    """Return a nested value with one to `most` changes; parts of `others` may come into it."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        inside = places(value)[1:]
        if not inside:
            return draw(anything)
        *above, key = pick(draw, inside)
        _change(draw, at(value, above), key, [value, *others])
    return value


def _change(draw: DrawFn, parent: Any, key: Any, sources: Sequence[Any]) -> None:
    """Change an item of a list or mapping; parts of `sources` may replace it."""
    match draw(st.integers(0, 10)):
        case 0 | 1 | 2 | 3:
            parent[key] = draw(anything)
        case 4 | 5 | 6:
            parent[key] = near(draw, parent[key])
        case 7:
            del parent[key]
        case 8:
            source = pick(draw, sources)
            parent[key] = copy.deepcopy(at(source, pick(draw, places(source))))
        case 9 if isinstance(parent, list):
            parent.append(draw(anything))
        case 9:
            parent[pick(draw, KEYS)] = draw(anything)
        case _ if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        case _:
            parent[pick(draw, [*KEYS, f"{key}x", str(key)[:-1], str(key).upper(), *parent])] = parent.pop(key)
