"""The fenced blocks of the documentation's pages, and what the words behind their language say about them.

    ```python title="plugins/mine.py"    the file of that name, written into the page's folder
    ```python run                        executed there; a block `text output` behind it has what it prints
    ```console run                       each `$ cswf …` is called there; lines below it are what it prints
    ```console run="schedule.steps=3"    the same, with these words added to every `cswf run`, to be quick
    ```console run status=2              the same, and the last command ends with this status
    ```yaml                              a whole recipe that is valid; `yaml part` is some keys of one
    ```yaml faulty                       a recipe with mistakes
    ```console skip="an hour on a GPU"   not run, and why

The page's folder has the repository's `examples/`. `…` in what is printed stands for anything in its line, and
alone in a line for any lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from cswf_core.cli.program import cli
from tests.project.sources import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORD = re.compile(r'(\w+)(?:="([^"]*)"|=(\S+))?')


@attrs.frozen
class Block:
    """A fenced block: its language, its words, its text, and the line that it begins in."""

    language: str
    words: dict[str, str]
    text: str
    line: int

    @property
    def is_run(self) -> bool:
        return "run" in self.words

    @property
    def decided(self) -> bool:
        """Whether it is plain what becomes of the block."""
        return self.language == "yaml" or bool(self.words.keys() & {"run", "title", "skip"})


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text, found = page.read_text(encoding="utf-8"), []
    for match in FENCE.finditer(text):
        words = {name: quoted or plain for name, quoted, plain in WORD.findall(match[2])}
        found.append(Block(match[1], words, match[3], text.count("\n", 0, match.start()) + 1))
    return found


@attrs.frozen
class Command:
    """A command line of a block, and the lines below it."""

    line: str
    printed: str

    @property
    def words(self) -> list[str]:
        """Its words as a shell would split them, without a comment."""
        return shlex.split(self.line, comments=True)


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block: lines that begin with `$`, and what goes on behind a backslash."""
    found: list[Command] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        joined = re.sub(r"\\\n\s*", " ", part)
        line, _, printed = joined.partition("\n")
        found.append(Command(line, printed))
    return found


def commands(command: click.Command = cli, path: str = "cswf") -> Iterator[tuple[str, click.Command]]:
    """Every command of cswf with its name, `cswf data pack`; a group before its commands."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{path} {name}")


def matches(expected: str, printed: str) -> bool:
    """Whether a program has printed what a page shows."""
    lines = []
    for line in expected.rstrip("\n").split("\n"):
        lines.append(r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"[ ]*\n")
    return re.fullmatch("".join(lines), printed.rstrip("\n") + "\n") is not None
