"""The command `cswf`. It imports nothing heavy here: signal handlers must stand before that begins."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line: mistakes are sentences with status 2, Ctrl-C ends with status 130."""
    try:
        from cswf_core.cli import signals

        signals.install()
        from cswf_core.cli import program

        status = program.call()
        signals.ignore()
    except KeyboardInterrupt as error:  # before the handlers stand, while modules load, or a second signal
        from cswf_core.cli import signals

        signals.ignore()
        status = signals.status_of(error)
    sys.exit(status)
