"""Opens files of strangers by commands of cswf, and prints which forbidden things have happened meanwhile.

A program of its own, called in the folder of the files: `opening.py PROGRAM CALLS.json`. PROGRAM is the code
that the files have in them, CALLS.json the arguments of each command. It prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

STARTED = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "subprocess.Popen",
    "pickle.find_class",
)
"""Events that a program is run, or that a pickle may run one."""

CHANGED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
"""Events that something on the disk is changed, without opening it."""

WRITERS = ("report", "eval", "resume", "sample")
"""Commands that write to the folder of a run, their last word."""


class Audit:
    """What Python says of all that happens; see the table of audit events in its documentation."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.folder = str(Path.cwd())
        self.call: list[str] = []
        self.events: list[tuple[list[str], str, str]] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Keep an event that is not to happen while a command runs."""
        if self.call and self._is_forbidden(event, arguments):
            self.events.append((list(self.call), event, repr(arguments)[:500]))

    def _is_forbidden(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "compile":
            return self.program in str(arguments[0]) or self._is_inside(arguments[1])
        if event == "exec":
            return isinstance(arguments[0], CodeType) and self._is_strange(arguments[0])
        if event == "import":
            return self._is_inside(arguments[1])
        if event == "open":
            writing = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            return bool(writing) and not self._may_change(arguments[0])
        return event in STARTED or (event in CHANGED and not self._may_change(arguments[0]))

    def _is_strange(self, code: CodeType) -> bool:
        return self._is_inside(code.co_filename) or "executed" in map(str, code.co_consts)

    def _is_inside(self, place: object) -> bool:
        path = _real(place)
        return path is not None and f"{path}/".startswith(f"{self.folder}/")

    def _may_change(self, place: object) -> bool:
        ours = [f"{self.folder}/out", *([f"{self.folder}/{self.call[-1]}"] if self.call[0] in WRITERS else [])]
        path = _real(place)
        return path in (None, os.devnull) or any(f"{path}/".startswith(f"{folder}/") for folder in ours)


def _real(place: object) -> str | None:
    """The path that a name leads to; None for what is none, such as the `<string>` that code is made of."""
    name = os.fsdecode(place) if isinstance(place, (str, bytes, os.PathLike)) else "<none>"
    return None if name.startswith("<") else os.path.realpath(name)


def opened(calls: list[list[str]], audit: Audit) -> list[int]:
    """Call all commands, and return their exit statuses."""
    from cswf_core import cli

    statuses = []
    for arguments in calls:
        audit.call = arguments
        sys.argv = ["cswf", *arguments]
        try:
            cli.main()
        except SystemExit as ended:
            statuses.append(int(ended.code or 0))
    audit.call = []
    return statuses


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # a command has not its own folder here either
    listening = Audit(sys.argv[1])
    sys.addaudithook(listening)
    ends = opened(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), listening)
    print(json.dumps({"events": listening.events, "statuses": ends}))
