"""`make audit`: the packages of the lock, looked up in the database of known vulnerabilities by pip-audit.

Only those that this machine and version of Python would install are looked up. Exit status 0: none has a known
vulnerability; 1: some have; 3: the database could not be reached, so that nothing is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

OPTIONS = "--requirement requirements.lock --require-hashes --disable-pip --format json --progress-spinner off"
COMMAND = (sys.executable, "-m", "pip_audit", *OPTIONS.split(), "--timeout", "15")

UNREACHED = 3
"""Exit status where nothing could be looked up."""


def verdict(output: str, complaint: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines to print, of what pip-audit has printed on stdout and on stderr."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    known = [package for package in packages if "vulns" in package]
    if not known:
        skipped = [str(package.get("skip_reason")) for package in packages]
        reason = next(iter([*skipped, *reversed(complaint.strip().splitlines())]), "it says nothing")[:200]
        return UNREACHED, [f"nothing was audited, as the database could not be reached: {reason}"]
    lines = [
        f"{package['name']} {package['version']}: {fault['id']}, mended in {' or '.join(fault['fix_versions'])}"
        for package in known
        for fault in package["vulns"]
    ]
    others = f"; {len(packages) - len(known)} could not be looked up" if len(packages) > len(known) else ""
    found = f"{len(lines)} known vulnerabilities" if lines else "no known vulnerability"
    return int(bool(lines)), [*lines, f"{len(known)} packages: {found}{others}"]


def main() -> int:
    """Audit the lock."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    status, lines = verdict(done.stdout, done.stderr)
    print(*lines, sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
