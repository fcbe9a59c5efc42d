"""`cswf doctor`: say whether this installation can work, and what is missing."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from pathlib import Path

import click

from cswf_core.errors import printable
from cswf_core.installation import examine
from cswf_core.runs.printing import say, say_json

COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


def doctor(as_json: bool, plugins_dir: tuple[Path, ...]) -> int:
    """Do the work of `cswf doctor`."""
    findings = list(examine(plugins_dir))
    broken = sum(finding.status == "broken" for finding in findings)
    if as_json:
        rows = [finding._asdict() for finding in findings]
        say_json({"works": not broken, "findings": rows})
        return 1 if broken else 0
    width = max(len(finding.name) for finding in findings)
    for area, own in groupby(findings, attrgetter("area")):
        say(*([] if area == findings[0].area else [""]), area)
        for finding in own:
            advice = f"; {finding.advice}" if finding.advice else ""
            status = click.style(f"{finding.status:<7}", fg=COLOURS[finding.status])
            click.echo(f"  {status}  " + printable(f"{finding.name:<{width}}  {finding.detail}{advice}"))
    missing = sum(finding.status == "missing" for finding in findings)
    verdict = f"{_things(broken)} broken" if broken else "all that is needed works"
    say("", f"{verdict}; {_things(missing, 'optional ')} missing" if missing else verdict)
    return 1 if broken else 0


def _things(count: int, kind: str = "") -> str:
    return f"1 {kind}thing is" if count == 1 else f"{count} {kind}things are"
