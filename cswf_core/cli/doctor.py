"""`cswf doctor`: say whether this installation can work, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cswf_core.errors import printable
from cswf_core.installation import Finding, examine
from cswf_core.runs.printing import say, say_json

COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


def doctor(as_json: bool, plugins_dir: tuple[Path, ...]) -> int:
    """Do the work of `cswf doctor`."""
    findings = list(examine(plugins_dir))
    broken = sum(finding.status == "broken" for finding in findings)
    if as_json:
        rows = [finding._asdict() for finding in findings]
        say_json({"works": not broken, "findings": rows})
    else:
        _print(findings)
        missing = sum(finding.status == "missing" for finding in findings)
        verdict = f"{_things(broken)} broken" if broken else "all that is needed works"
        say("", f"{verdict}; {_things(missing, 'optional ')} missing" if missing else verdict)
    return 1 if broken else 0


def _print(findings: Sequence[Finding]) -> None:
    """Print findings below their areas, a line each."""
    width = max(len(finding.name) for finding in findings)
    area = ""
    for finding in findings:
        if finding.area != area:
            say(*([""] if area else []), finding.area)
            area = finding.area
        advice = f"; {finding.advice}" if finding.advice else ""
        status = click.style(f"{finding.status:<7}", fg=COLOURS[finding.status])
        click.echo(f"  {status}  " + printable(f"{finding.name:<{width}}  {finding.detail}{advice}"))


def _things(count: int, kind: str = "") -> str:
    return f"1 {kind}thing is" if count == 1 else f"{count} {kind}things are"
