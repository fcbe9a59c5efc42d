"""A section of a page, and the sentences on damaged files that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from cswf_core.report.read import ReportedRun


@attrs.frozen
class Section:
    """A part of a page under a heading; it is left out if there is nothing to show and nothing wrong."""

    name: str
    title: str
    macro: str
    """The file and the macro in templates/ that it is filled in by, as in `scores.metrics`."""
    content: Any
    problems: Sequence[str] = ()


def problems(run: ReportedRun, *names: str) -> list[str]:
    """Return the sentences on a run's damaged files of these names."""
    return [run.problems[name] for name in names if name in run.problems]


def problems_of(runs: Sequence[ReportedRun], *names: str) -> list[str]:
    """Return the sentences on damaged files of several runs, each with its run."""
    return [f"{run.label}: {sentence}" for run in runs for sentence in problems(run, *names)]
