"""What differs between two recipes, for the person who has changed one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

UNIMPORTANT = ("name", "description")
"""Keys that change nothing about a run."""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that differs between resolved recipes: `schedule.steps: 600, was 300`."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    paths = [path for path in {**before, **after} if path.partition(".")[0] not in UNIMPORTANT]
    return [
        f"{path}: {_written(after, path)}, was {_written(before, path)}"
        for path in paths
        if before.get(path, ...) != after.get(path, ...)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value with its path; an empty list or mapping is a value."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        inside = list(value.items())
    elif isinstance(value, (list, tuple)):
        inside = list(enumerate(value))
    if not inside:
        yield path, value if not isinstance(value, tuple) else []
    for key, item in inside:
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _written(values: Mapping[str, Any], path: str) -> str:
    if path not in values:
        return "not there"
    value = values[path]
    return "none" if value is None else str(value)
