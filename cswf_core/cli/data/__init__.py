"""`cswf data`: commands that pack images into shards, and look at such folders; each is a file."""

from __future__ import annotations

import click

from cswf_core.cli.lazy import LazyGroup

COMMANDS = {
    "pack": "Write a data set's images into a folder of shards.",
    "check": "Read a folder of shards and compare its checksums.",
    "info": "Say what a folder of shards has.",
}
"""Each command with its help; its file has its name."""


@click.group(cls=LazyGroup, package=__name__, helps=COMMANDS)
def data() -> None:
    """Pack images into shards: files that are mapped into memory as they lie, with checksums.

    Recipes read them with data: {use: packed, path: FOLDER}.
    """
