"""Adapters of metrics and of observers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch

from cswf_core.checks.adapter import Adapter, calling
from cswf_core.interfaces import (
    Comparison,
    Dataset,
    Figure,
    Meaning,
    Result,
    Spread,
    Workbench,
)


class CheckedMetric(Adapter):
    """A metric whose scores are finite numbers by name."""

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Raise `DataError` where samples like `data` cannot be scored."""
        self._call("check", data, bench)

    def compute(self, comparison: Comparison) -> Result:
        """Return the scores of the comparison's generated samples."""
        result = self._call("compute", comparison)
        with calling(self.owner, "compute"):
            return self._checked(result)

    def _checked(self, result: object) -> Result:
        if not isinstance(result, Result):
            raise self._fault("compute", "a Result", repr(result))
        if not isinstance(result.protocol, str) or not all(isinstance(note, str) for note in result.notes):
            got = f"{result.protocol!r}, {result.notes!r}"
            raise self._fault("compute", "texts as protocol and notes", got)
        for name, figure in result.figures.items():
            fine = isinstance(figure, Figure) and re.fullmatch(r"[a-z0-9-]+", str(name)) is not None
            if not fine or not all(row.dtype == torch.uint8 and row.ndim == 4 for row in figure.rows):
                expected = "figures with rows of n×C×H×W bytes, named like-this"
                raise self._fault("compute", expected, repr(name))
        scores = self._numbers(result.scores)
        details = self._numbers(result.details)
        known = {*scores, *details}
        for kind, facts, cls in (("spreads", result.spreads, Spread), ("meanings", result.meanings, Meaning)):
            if not isinstance(facts, Mapping) or not all(isinstance(value, cls) for value in facts.values()):
                raise self._fault("compute", f"{kind} as a mapping from names to {cls.__name__}", repr(facts))
            if not known >= set(facts):
                raise self._fault("compute", f"{kind} of its own scores", repr(sorted(set(facts) - known)))
        for name, spread in result.spreads.items():
            if not math.isfinite(spread.error) or not isinstance(spread.method, str):
                raise self._fault(
                    "compute", "a finite standard error and its method", f"{spread!r} for '{name}'"
                )
        return attrs.evolve(result, scores=scores, details=details)

    def _numbers(self, scores: object) -> dict[str, float]:
        if not isinstance(scores, Mapping) or not all(isinstance(name, str) for name in scores):
            raise self._fault("compute", "scores as a mapping from names to numbers", repr(scores))
        numbers: dict[str, float] = {}
        for name, value in scores.items():
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError):
                numbers[name] = math.nan
            if not math.isfinite(numbers[name]):
                raise self._fault("compute", "finite numbers", f"{value!r} for '{name}'")
        return numbers


class CheckedObserver(Adapter):
    """An observer plugin whose mistakes are told in its name."""

    def watch(self, folder: Path) -> object:
        """Return an object whose hooks watch one run, which has this folder."""
        return self._call("watch", folder)

    def close(self, watcher: Any) -> None:
        """Close what `watch` returned, if it can be closed."""
        if hasattr(watcher, "close"):
            with calling(self.owner, "close"):
                watcher.close()
