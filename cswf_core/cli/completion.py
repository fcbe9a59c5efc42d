"""`cswf completion`: print the script that lets a shell complete commands, recipes and their keys."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cswf_core.cli.completion_table import read_table

NO_SPACE = """
# A key of a recipe and its value are written together, and so are the parts of a path.
%(function)s_together() {
    %(function)s "$@"
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F %(function)s_together cswf
"""
"""What Bash's script has behind that of click."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, recipes, KEY=VALUE and folders of runs.

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
    made = script(root, {}, "cswf", "_CSWF_COMPLETE")
    read_table(root)  # so that the first TAB need not make it
    click.echo(made.source() + (NO_SPACE % {"function": made.func_name} if shell == "bash" else ""), nl=False)
