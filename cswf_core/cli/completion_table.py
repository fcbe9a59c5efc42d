"""A table of all that a shell can complete, kept in a file: completing imports neither PyTorch nor plugins.

It is made from the commands, recipes and plugins themselves, which takes seconds, and made again by `cswf
completion`, and when other packages are installed or a one-file plugin has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cswf_core.errors import RunError

if TYPE_CHECKING:
    from cswf_core.recipe.merge import RecipeFile

FORMAT = 3

OURS = Path(__file__).parents[1]
"""The folder of `cswf_core`."""

Table = dict[str, Any]
"""`commands`, `recipes` and `kinds` of plugins, each by name; and `signature`."""


def read_table(root: click.Group, plugins_dir: Sequence[Path] = ()) -> Table:
    """Return the table from its file, or a new one."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        table: Table = json.loads(table_file(plugins_dir).read_text(encoding="utf-8"))
        if table["signature"] == _signature(plugins_dir):
            return table
    return write_table(root, plugins_dir)


def write_table(root: click.Group, plugins_dir: Sequence[Path] = ()) -> Table:
    """Return a new table and keep it in its file; one with nothing in it if it cannot be made."""
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            table = make_table(root, plugins_dir)
    except Exception:  # whatever is wrong, a person who presses TAB did not ask; the commands themselves tell
        return {"commands": {}, "recipes": {}, "kinds": {}}
    from cswf_core.runs.durable import make_folder, write_durably

    place = table_file(plugins_dir)
    with suppress(RunError):
        make_folder(place.parent)
        write_durably(place, json.dumps(table))
    return table


def make_table(root: click.Group, plugins_dir: Sequence[Path] = ()) -> Table:
    """Return the table of everything as it is now."""
    from cswf_core.plugins import KINDS, Registry
    from cswf_core.recipe import known_recipes

    registry = Registry.discover(plugins_dir)
    sources = known_recipes(registry)
    summaries = {(p.owner.kind, p.owner.name): p.summary for p in registry.plugins}
    kinds: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        kinds[kind] = {name: summaries[kind, name.rpartition(":")[2]] for name in registry.names(kind)}
    return {
        "signature": _signature(plugins_dir),
        "commands": dict(_commands(root)),
        "recipes": {name: _description(source) for name, source in sources.items()},
        "kinds": kinds,
    }


def table_file(plugins_dir: Sequence[Path] = ()) -> Path:
    """Return the table's file; every environment and every folder of plugins has its own."""
    whose = json.dumps([sys.prefix, str(OURS), list(map(str, plugins_dir))])
    return (
        Path("~/.cache/cswf/completion").expanduser()
        / f"{hashlib.sha256(whose.encode()).hexdigest()[:12]}.json"
    )


def _signature(plugins_dir: Sequence[Path]) -> list[Any]:
    """Return what says which plugins there are, without importing any."""
    points = entry_points(group="cswf")
    offers = sorted({f"{p.dist.name} {p.dist.version} {p.value}" if p.dist else p.value for p in points})
    environment = [os.environ.get(name) for name in ("CSWF_LOAD_PLUGINS", "CSWF_PLUGINS_DIR")]
    folders = [*plugins_dir, *map(Path, filter(None, (environment[1] or "").split(os.pathsep)))]
    files = sorted(file for folder in folders for file in folder.expanduser().glob("*.py"))
    return [FORMAT, offers, *environment, [[str(file), file.stat().st_mtime_ns] for file in files]]


def _description(source: RecipeFile) -> str:
    """Return what a recipe says that it is for."""
    from cswf_core.nodes import Mapping as Keys
    from cswf_core.nodes import Scalar

    tree = source.read([])
    node = tree.get("description") if isinstance(tree, Keys) else None
    return node.raw if isinstance(node, Scalar) else ""


def _commands(group: click.Group) -> Iterator[tuple[str, Any]]:
    """Yield every command that is no group, by its module, with its parameters."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from _commands(command)
        elif command is not None and command.callback is not None:
            params = [_parameter(param) for param in command.get_params(click.Context(command))]
            yield command.callback.__module__, {"help": command.get_short_help_str(200), "params": params}


def _parameter(param: click.Parameter) -> dict[str, Any]:
    """Return what is to be known of a parameter to complete it."""
    described: dict[str, Any] = {"name": param.name, "nargs": param.nargs, "completes": _completes(param)}
    if isinstance(param, click.Option):
        described |= {"opts": param.opts, "others": param.secondary_opts, "flag": param.is_flag}
        described |= {"multiple": param.multiple, "help": param.help}
    return described


def _completes(param: click.Parameter) -> list[str]:
    """Return what a parameter takes: `recipe`, `file`, `dataset` and so on, or values."""
    from cswf_core.plugins import KINDS

    name, metavar = str(param.name), param.metavar or ""
    if isinstance(param.type, click.Choice):
        return [f"={choice}" for choice in param.type.choices]
    if isinstance(param, click.Option):
        kind = param.opts[-1].removeprefix("--")
        if kind in KINDS:
            return [kind]
        if metavar.startswith("DATA"):
            return ["dataset", "file"]
        if metavar.startswith("auto|"):
            return [f"={word}" for word in metavar.split("|") if word.isalpha()]
    elif name in ("recipe", "words"):
        return ["recipe"]
    elif name == "source":
        return ["dataset", "recipe"]
    elif name == "plugin":
        return list(KINDS)
    elif name == "kind":
        return [f"={kind}" for kind in KINDS]
    return ["file"] if isinstance(param.type, click.Path) else []
