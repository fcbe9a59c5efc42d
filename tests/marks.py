"""Marks of parametrized tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_if(slow: Collection[str], names: Iterable[str]) -> list[Any]:
    """Return names as parameters; those in `slow`, of which others show nearly all, are for `make test-all`."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]
