"""`cswf completion`: print the script that lets a shell complete commands, recipes and plugins."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cswf_core.cli.completion_table import write_table


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, recipes, plugins and files.

    \b
    bash: cswf completion bash > ~/.local/share/bash-completion/completions/cswf
    zsh:  cswf completion zsh > "${fpath[1]}/_cswf"
    fish: cswf completion fish > ~/.config/fish/completions/cswf.fish

    It takes effect in new shells.
    """
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    script = get_completion_class(shell)
    assert script is not None
    write_table(root)  # so that the first TAB need not make it
    click.echo(script(root, {}, "cswf", "_CSWF_COMPLETE").source(), nl=False)
