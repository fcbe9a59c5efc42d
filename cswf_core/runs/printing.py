"""Text for people at a terminal: whatever names and texts of strangers are in it, it is shown and never obeyed.

What a command prints goes through here, line by line, so that a name with escape sequences neither moves the
cursor nor forges a line of its own.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TextIO

from cswf_core.errors import printable


def say(*lines: str) -> None:
    """Print lines; if nobody listens any more (`cswf run … | head`, a closed terminal), go on in silence."""
    _print(lines, sys.stdout)


def complain(*lines: str) -> None:
    """Print lines on stderr."""
    _print(lines, sys.stderr)


def say_json(value: Any) -> None:
    """Print a value as JSON."""
    say(*json_text(value).split("\n"))


def json_text(value: Any) -> str:
    """Return a value as indented JSON, with the unprintable characters of its texts as JSON's own escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def start_log(level: int) -> None:
    """Have warnings printed on stderr, a line each, from a level on; later calls change nothing."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(message)s"))
    logging.basicConfig(handlers=[handler], level=level)


class _Lines(logging.Formatter):
    """Makes one line of every message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging calls
        return printable(super().formatMessage(record))

    def formatException(  # noqa: N802 - the name that logging calls
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return "\n".join(map(printable, super().formatException(ei).split("\n")))


def _print(lines: Iterable[str], stream: TextIO) -> None:
    try:
        print(*map(printable, lines), sep="\n", file=stream, flush=True)
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
