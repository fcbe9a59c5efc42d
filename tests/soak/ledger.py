"""Counts of a soak: commands, faults and exit statuses, and each finding with how to see it again."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Any

import attrs

KINDS = ("loss", "traceback", "status", "hang", "leftover", "soak")
"""Kinds of findings; a good soak has none of any. `soak`: a case could not be carried out."""


@attrs.frozen
class Finding:
    """Something that must not happen, in one sentence."""

    kind: str
    case: str
    sentence: str

    @property
    def again(self) -> str:
        """The command that does this case again."""
        return f"python -m tests.soak --case {self.case}"


@attrs.define
class Ledger:
    """All counts; threads may write to it."""

    commands: Counter[str] = attrs.field(factory=Counter)
    faults: Counter[str] = attrs.field(factory=Counter)
    statuses: Counter[int] = attrs.field(factory=Counter)
    findings: list[Finding] = attrs.field(factory=list)
    skipped: list[str] = attrs.field(factory=list)
    """A sentence for each kind of fault that this machine cannot have."""
    cases: int = 0
    resumes: int = 0
    unhandled: int = 0
    """Commands that a signal has ended before there was a handler."""
    _lock: Lock = attrs.field(factory=Lock, repr=False)

    def ended(self, command: str, status: int) -> None:
        """Count a command and its status."""
        with self._lock:
            self.commands[command] += 1
            self.statuses[status] += 1
            self.resumes += command == "resume"

    def befell(self, fault: str) -> None:
        """Count a fault."""
        with self._lock:
            self.faults[fault] += 1

    def of_kind(self, kind: str) -> int:
        """Return how many findings of a kind there are."""
        return sum(finding.kind == kind for finding in self.findings)

    def note(self, finding: Finding) -> None:
        """Add a finding."""
        with self._lock:
            self.findings.append(finding)

    def document(self) -> dict[str, Any]:
        """Return all as JSON has it."""
        return {
            "cases": self.cases,
            "commands": dict(self.commands.most_common()),
            "faults": dict(sorted(self.faults.items())),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "resumes": self.resumes,
            "before_the_handler": self.unhandled,
            "skipped": self.skipped,
            **{kind: self.of_kind(kind) for kind in KINDS},
            "findings": [{**attrs.asdict(finding), "again": finding.again} for finding in self.findings],
        }

    def table(self) -> str:
        """Return the counts as lines of text."""
        lines = [f"{self.cases:,} cases, {self.commands.total():,} commands, {self.resumes:,} of them resumes"]
        for title, counts in (("commands", self.commands), ("faults", self.faults)):
            lines += ["", title, *(f"  {name:<24}{count:>8,}" for name, count in sorted(counts.items()))]
        lines += ["", "exit statuses", *(f"  {s:<24}{count:>8,}" for s, count in sorted(self.statuses.items()))]
        lines += [f"  before the handler      {self.unhandled:>8,}"]
        lines += ["", "findings", *(f"  {kind:<24}{self.of_kind(kind):>8,}" for kind in KINDS)]
        lines += [f"skipped: {sentence}" for sentence in self.skipped]
        lines += [f"{f.kind}: {f.sentence}\n    {f.again}" for f in self.findings]
        return "\n".join(lines)
