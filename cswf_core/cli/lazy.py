"""Groups of commands that import a command only when it is called."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from cswf_core.cli import deferred, signals
from cswf_core.cli.failures import traceback_option
from cswf_core.cli.words import declared


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps, and imports a command only to run it."""

    def __init__(
        self, *, package: str, helps: Mapping[str, str], reading: Collection[str] = (), **options: Any
    ) -> None:
        """Each of `helps` is a command, in a module of its name in `package`; those of `reading` only read."""
        super().__init__(**options)
        self.params.append(traceback_option)
        self.package = package
        self.helps = helps
        self.reading = reading

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order a newcomer meets them."""
        del ctx
        return list(self.helps)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; every command has `--traceback`.

        A shell that completes gets the command's parameters alone, without importing what it works with.
        """
        if cmd_name not in self.helps:
            return None
        light = declared(ctx, f"{self.package}.{cmd_name}") if ctx.resilient_parsing else None
        if light is not None:
            return light
        if cmd_name in self.reading:
            deferred.defer()
        elif deferred.is_deferred():
            deferred.load()
        command: click.Command = getattr(signals.imported(f"{self.package}.{cmd_name}"), cmd_name)
        if traceback_option not in command.params:
            command.params.append(traceback_option)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands that begin so, without looking at any, and options."""
        names = [name for name in self.helps if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self.helps[name]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(self.helps.items()))
