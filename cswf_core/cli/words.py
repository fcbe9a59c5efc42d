"""Words that a shell completes: recipes and plugins; it completes files by itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from cswf_core.cli.completion_table import Table, read_table
from cswf_core.errors import printable


class Word(CompletionItem):
    """A word that a shell may complete, and its help; the shell reads a line of each, and shows them."""

    def __init__(self, value: str, help: str | None = None) -> None:
        super().__init__(printable(value), help=None if help is None else printable(help))


Words = list[CompletionItem]


def declared(ctx: click.Context, module: str) -> click.Command | None:
    """Return a command with its parameters only, as the table has them; None if it has none of that module."""
    described = _table(ctx)["commands"].get(module)
    if described is None:
        return None
    params = [_declared(param) for param in described["params"]]
    return click.Command(
        module.rpartition(".")[2], params=params, help=described["help"], add_help_option=False
    )


def _declared(described: Mapping[str, Any]) -> click.Parameter:
    """Return a parameter that can be completed."""
    takes = described["completes"]
    completer = None if takes == ["file"] else partial(_complete, takes)
    kind = click.Path() if takes == ["file"] else click.STRING
    if "opts" not in described:
        return click.Argument(
            [described["name"]], nargs=described["nargs"], required=False, type=kind, shell_complete=completer
        )
    names = "/".join(part[-1] for part in (described["opts"], described["others"]) if part)
    more = {} if described["flag"] else {"type": kind, "nargs": described["nargs"], "shell_complete": completer}
    flags = {"is_flag": described["flag"], "multiple": described["multiple"], "help": described["help"]}
    return click.Option([*described["opts"][:-1], names, described["name"]], **flags, **more)


def _complete(takes: list[str], ctx: click.Context, param: click.Parameter, incomplete: str) -> Words:
    """Return the words that a parameter may go on with."""
    table = _table(ctx)
    words: dict[str, str] = {}
    for kind in takes:
        if kind.startswith("="):
            words[kind[1:]] = ""
        elif kind == "recipe":
            words |= {} if ctx.params.get(str(param.name)) else table["recipes"]
        else:
            words |= table["kinds"].get(kind, {})
    files: Words = [CompletionItem(incomplete, type="file")] if {"file", "recipe"} & set(takes) else []
    return files + _beginning(words, incomplete)


def _beginning(words: Mapping[str, str], incomplete: str) -> Words:
    return [Word(word, help=text or None) for word, text in words.items() if word.startswith(incomplete)]


def plugin_names(ctx: click.Context, incomplete: str) -> Words:
    """Return the plugins whose names begin so, of all kinds."""
    kinds = _table(ctx)["kinds"].values()
    return _beginning({name: text for kind in kinds for name, text in kind.items()}, incomplete)


def _table(ctx: click.Context) -> Table:
    """Return the table, with the plugins of `--plugins-dir` if that has been written by now."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    folders = ctx.params.get("plugins_dir") or ()
    return read_table(root, [Path(folder).expanduser().absolute() for folder in folders])
