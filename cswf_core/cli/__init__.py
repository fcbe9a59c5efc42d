"""The command `cswf`. It imports nothing heavy here: signal handlers must stand before that begins."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` would import others before it can be used
import os
import sys


def main() -> None:
    """Run the command line: mistakes are sentences with status 2, Ctrl-C ends with status 130."""
    try:
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            # Nothing has begun: Ctrl-C ends here at once. An exception could be lost, or printed, in an import.
            _signal.signal(_signal.SIGINT, lambda *_: os._exit(128 + _signal.SIGINT))
        from cswf_core.cli import signals

        signals.install()
        from cswf_core.cli import program

        status = program.call()
        signals.ignore()
    except KeyboardInterrupt as error:  # while modules load, or a second signal
        from cswf_core.cli import signals

        signals.ignore()
        status = signals.status_of(error)
    sys.exit(status)
