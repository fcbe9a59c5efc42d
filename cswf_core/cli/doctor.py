"""`cswf doctor`: say whether this installation can work, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from cswf_core.cli import options
from cswf_core.installation import Finding, examine

COLOURS = {"ok": "green", "missing": "yellow", "broken": "red"}


@click.command()
@options.json
@options.plugins_dir
def doctor(as_json: bool, plugins_dir: tuple[Path, ...]) -> int:
    """Say whether this installation can work: packages, devices, plugins, data, and room on the disks.

    Each line begins with ok, missing (not everybody needs it) or broken, and says what to do. The exit status
    is 1 if anything is broken, else 0.
    """
    findings = list(examine(plugins_dir))
    broken = sum(finding.status == "broken" for finding in findings)
    if as_json:
        rows = [finding._asdict() for finding in findings]
        click.echo(json.dumps({"works": not broken, "findings": rows}, indent=2, ensure_ascii=False))
    else:
        _print(findings)
        missing = sum(finding.status == "missing" for finding in findings)
        verdict = f"{_things(broken)} broken" if broken else "all that is needed works"
        click.echo(f"\n{verdict}; {_things(missing, 'optional ')} missing" if missing else f"\n{verdict}")
    return 1 if broken else 0


def _print(findings: Sequence[Finding]) -> None:
    """Print findings below their areas, a line each."""
    width = max(len(finding.name) for finding in findings)
    area = ""
    for finding in findings:
        if finding.area != area:
            click.echo(("\n" if area else "") + finding.area)
            area = finding.area
        status = click.style(f"{finding.status:<7}", fg=COLOURS[finding.status])
        advice = f"; {finding.advice}" if finding.advice else ""
        click.echo(f"  {status}  {finding.name:<{width}}  {finding.detail}{advice}")


def _things(count: int, kind: str = "") -> str:
    return f"1 {kind}thing is" if count == 1 else f"{count} {kind}things are"
