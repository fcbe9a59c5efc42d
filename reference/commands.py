"""The command line as a page: every command with its arguments and options, read from click."""

from __future__ import annotations

from collections.abc import Iterator

import click

from cswf_core.cli.program import cli
from reference.markdown import code, heading, prose, required, section, table

Found = tuple[str, click.Command]
"""A command's name with those of its groups, `cswf data pack`, and the command."""


def commands(command: click.Command = cli, path: str = "cswf") -> Iterator[Found]:
    """Yield every command, a group before its commands."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from commands(inner, f"{path} {name}")


def commands_page() -> str:
    """Return every command, as `--help` would show it."""
    return section(*(_described(path, command) for path, command in commands()))


def _described(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    return section(
        heading(2, code(path), path),
        f"```text\n{usage}\n```",
        prose(required(command.help, f"the command `{path}`")),
        _inner(path, command),
        table(["option", "meaning", "default"], _options(path, command, context)),
    )


def _inner(path: str, command: click.Command) -> str:
    if not isinstance(command, click.Group):
        return ""
    names = command.list_commands(click.Context(command))
    listed = [
        (f"[`{path} {name}`](#{path.replace(' ', '-')}-{name})", _summary(command, name)) for name in names
    ]
    return table(["command", "purpose"], listed)


def _summary(group: click.Group, name: str) -> str:
    command = group.get_command(click.Context(group), name)
    return required(command.help if command else "", name).splitlines()[0]


def _options(path: str, command: click.Command, context: click.Context) -> Iterator[tuple[str, str, str]]:
    for option in command.get_params(context):
        if isinstance(option, click.Option):
            names = ", ".join([*option.opts, *option.secondary_opts])
            value = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
            help_text, default = _split(option.help or "")
            meaning = prose(required(help_text, f"`{path} {names}`"))
            yield code(names + value), meaning, default or _default(option, context)


def _split(help_text: str) -> tuple[str, str]:
    """Return a help without the default that it ends with, `[default: all there is]`, and this default."""
    text, found, default = help_text.partition("[default:")
    return text.strip(), default.strip(" ]") if found else ""


def _default(option: click.Option, context: click.Context) -> str:
    value = option.get_default(context)
    shown = option.show_default and not option.is_flag and value is not None
    return code(str(value)) if shown else ""
