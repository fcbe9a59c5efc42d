"""`cswf plugins`: list the plugins, show one, or prove one."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from cswf_core.cli import options
from cswf_core.cli.lazy import LazyGroup
from cswf_core.cli.words import plugin_names

COMMANDS = {"check": "Prove a plugin by the kit of its kind."}


class NamesOrCommands(LazyGroup):
    """A group whose commands have a name each, and where any other word is the name of a plugin."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or one that shows the plugin of that name."""
        return super().get_command(ctx, cmd_name) or _showing(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and plugins that begin so, and options."""
        return super().shell_complete(ctx, incomplete) + plugin_names(ctx, incomplete)


@click.group(
    cls=NamesOrCommands,
    package=__name__,
    helps=COMMANDS,
    invoke_without_command=True,
    subcommand_metavar="[NAME | check NAME]",
)
@options.json
@options.plugins_dir
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """List the plugins: what they are, whose, and which are broken; or show the one called NAME.

    NAME is as in recipes: conv-stack, or DISTRIBUTION:NAME. CSWF_LOAD_PLUGINS=a,b loads only those
    distributions besides the built-ins; empty loads no others. CSWF_PLUGINS_DIR names folders of one-file
    plugins.
    """
    if ctx.invoked_subcommand is None:
        from cswf_core.cli.plugins.listing import print_all  # needs PyTorch

        print_all(plugins_dir, as_json=as_json)


def _showing(name: str) -> click.Command:
    """Return the command that shows the plugins of a name."""

    @click.command(name, help="Show the plugin of this name.")
    @options.json
    @options.plugins_dir
    @click.pass_context
    def show(ctx: click.Context, as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
        from cswf_core.cli.plugins.listing import print_named  # needs PyTorch

        before = {} if ctx.parent is None else ctx.parent.params
        folders = (*before.get("plugins_dir", ()), *plugins_dir)
        print_named(name, folders, as_json=as_json or bool(before.get("as_json")))

    return show
