"""Values that nobody expects, and changes to nested values: the part of fuzzing that knows JSON and YAML."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from typing import Any

HUGE, DEEP, TWICE = "<<huge>>", "<<deep>>", "<<twice>>"
"""Texts that `text_of` writes as a whole number of 5,000 digits, as 3,000 lists inside one another, and as a
mapping with one key twice."""

_RAW = {
    HUGE: "9" * 5000,
    DEEP: "[" * 3000 + "]" * 3000,
    TWICE: '{"use": 1, "use": 2}',
}

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 10, 64, 100, 255, 256, 1000, 65535, 99999, 2**31 - 1, 2**31, -(2**31), 2**32),
    *(2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**18, 10**30, HUGE),
    *(0.0, -0.0, 0.5, 1.0, -1.5, 1e-308, 5e-324, 1e38, 1e39, 1e308, 1e-3, 0.1, 1.0000000000000002),
    *(float("nan"), float("inf"), float("-inf")),
)

TEXTS: tuple[str, ...] = (
    *("", " ", "\n", "\t", "\0", "\x1b[31mred\x1b[0m", "\x07", "\u202e", "\u2028", "\ud800", "é", "e\u0301"),
    *("0", "-1", "1e3", "nan", "inf", "true", "no", "null", "~", "x", "..", ".", "/", "../x"),
    *("/dev/null", "a/b"),
    *("uniform", "one-hot", "digits", "all", "paper", "dimension", "never", "float32", "float64"),
    *("train", "test"),
    *("500", "10min", "1e9h", "5" * 5000, "1" * 40 + "e", "%s%n", "{0}", "$HOME", "<script>", "'", '"', "`id`"),
    *("labels", "vectors", "image", "ff", "0x10", "tables-00000.safetensors", "model.json", "ü" * 300, DEEP),
)

KEYS: tuple[str, ...] = (
    *("use", "steps", "count", "mean", "format", "x", "1", "", "__class__", "stage", "file", "bytes", "sha256"),
    *("parts", "name", "shape", "extends", "path", "variants", "seed", "a.b", "\0", "é"),
)

Path = tuple[Any, ...]
"""Keys and numbers that lead to a place in a nested value."""


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
        keys = [int(key) if key.isdecimal() else key for key in path.split(".")]
        at(document, tuple(keys[:-1]))[keys[-1]] = value
    return document


SEAL = "sha256"
"""The key of a document's own checksum."""


def sealed(document: Any) -> Any:
    """Return a document with the checksum that it would have if the program had written it."""
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        return document
    rest = {key: value for key, value in document.items() if key != SEAL}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return {**rest, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Return a value of any type: often a boundary, seldom a nested one."""
    kind = rng.randrange(12 if depth < 2 else 9)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 7:
        return rng.choice(TEXTS)
    if kind == 7:
        return None
    if kind == 8:
        return rng.random() < 0.5
    if kind == 9:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 10:
        return {rng.choice(KEYS): anything(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice([[], {}, [[]], [[[[1]]]], DEEP, TWICE])


def near(rng: random.Random, value: Any) -> Any:
    """Return a value like another one: one more, the opposite, as a text, in a list."""
    if isinstance(value, bool):
        return rng.choice([not value, int(value), str(value)])
    if isinstance(value, (int, float)):
        choices = [value + 1, value - 1, -value, value * 2, value * 1000, float(value), str(value), [value]]
        return rng.choice([*choices, value * 10**9, value / 3, 0])
    if isinstance(value, str):
        choices = [value + "x", value[:-1], value.upper(), f" {value}", [value], list(value)[:5], value * 2]
        return rng.choice([*choices, value[::-1], value + "\n", value + "\x1b[2J", digit_changed(rng, value)])
    if isinstance(value, list):
        return rng.choice(
            [value[:-1], value + value, value[::-1], value[1:], [value], {"0": value}, tuple(value)]
        )
    if isinstance(value, dict):
        return rng.choice([list(value.items()), list(value), [value], {**value, "x": 1}, {}])
    return rng.choice([0, "", [], {}])


def digit_changed(rng: random.Random, text: str) -> str:
    """Return a text with another digit in one place, which may still mean something."""
    places = [match.start() for match in re.finditer(r"[0-9a-f]", text)]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + rng.choice("0123456789abcdef") + text[at + 1 :]


def places(value: Any, here: Path = ()) -> list[Path]:
    """Return every place in a nested value."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, item in below for place in places(item, (*here, key)))]


def at(value: Any, place: Path) -> Any:
    """Return what is at a place."""
    for key in place:
        value = value[key]
    return value


def changed(rng: random.Random, value: Any, others: tuple[Any, ...] = (), times: int = 0) -> Any:
    """Return a nested value with one to three changes; parts of `others` may come into it."""
    value = copy.deepcopy(value)
    for _ in range(times or rng.choice([1, 1, 1, 2, 3])):
        value = _once(rng, value, others)
    return value


def _once(rng: random.Random, value: Any, others: tuple[Any, ...]) -> Any:
    inside = places(value)[1:]
    if not inside or rng.random() < 0.005:
        return anything(rng)
    place = rng.choice(inside)
    parent, key = at(value, place[:-1]), place[-1]
    action = rng.randrange(12)
    if action < 4:
        parent[key] = anything(rng)
    elif action < 7:
        parent[key] = near(rng, parent[key])
    elif action == 7:
        del parent[key]
    elif action == 8:
        other = rng.choice([value, *others])
        parent[key] = copy.deepcopy(at(other, rng.choice(places(other))))
    elif isinstance(parent, list):
        _rearranged(rng, parent, key)
    elif action == 9:
        parent[rng.choice(KEYS)] = anything(rng)
    elif action == 10:
        parent[rng.choice([*KEYS, f"{key}x", str(key)[:-1], str(key).upper()])] = parent.pop(key)
    else:
        other_key = rng.choice(list(parent))
        parent[key], parent[other_key] = parent[other_key], parent[key]
    return value


def _rearranged(rng: random.Random, items: list[Any], index: int) -> None:
    """Repeat, move or add items of a list."""
    action = rng.randrange(4)
    if action == 0:
        items.insert(index, copy.deepcopy(items[index]))
    elif action == 1:
        items.append(anything(rng))
    elif action == 2:
        items.reverse()
    else:
        items.extend(copy.deepcopy(items[index]) for _ in range(rng.choice([1, 5, 50])))
