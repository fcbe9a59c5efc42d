"""A table of all that a shell can complete, kept in a file: completing imports neither PyTorch nor plugins.

It is made from the commands, recipes and plugins themselves, which takes seconds, and made again as soon as one
of the files has changed that it was made of, or other plugins are installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cswf_core.errors import RunError

if TYPE_CHECKING:
    from cswf_core.plugins import Registry
    from cswf_core.recipe.merge import Source

FORMAT = 1

OURS = Path(__file__).parents[1]
"""The folder of `cswf_core`."""

Table = dict[str, Any]
"""`commands`, `recipes`, `keys` of recipes and `kinds` of plugins, each by name; `signature` and `files`."""

FOLDERS = ("run", "runs", "RUN|MODEL")
"""Arguments that take the folder of a run, by name or by the word that the help has for them."""


def read_table(root: click.Group, plugins_dir: Sequence[Path] = ()) -> Table:
    """Return the table from its file, or a new one; one with nothing in it if it cannot be made."""
    place = table_file(plugins_dir)
    with suppress(OSError, ValueError), place.open(encoding="utf-8") as file:
        table: Table = json.load(file) if _is_ours(file.fileno()) else {"signature": None}
        if table["signature"] == _signature() and table["files"] == _times(table["files"]):
            return table
    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            table = make_table(root, plugins_dir)
    except Exception:  # whatever is wrong, a person who presses TAB did not ask; the commands themselves tell
        return {"commands": {}, "recipes": {}, "keys": {}, "kinds": {}}
    from cswf_core.runs.durable import make_folder, write_durably

    with suppress(RunError):
        make_folder(place.parent)
        write_durably(place, json.dumps(table))
    return table


def _is_ours(descriptor: int) -> bool:
    """Say whether an open file belongs to the person who runs this: another's table is not believed."""
    return os.fstat(descriptor).st_uid == os.geteuid()


def make_table(root: click.Group, plugins_dir: Sequence[Path] = ()) -> Table:
    """Return the table of everything as it is now."""
    from cswf_core.plugins import KINDS, Registry
    from cswf_core.plugins.folders import folders_of
    from cswf_core.recipe import known_recipes

    registry = Registry.discover(plugins_dir)
    sources = known_recipes(registry)
    summaries = {(p.owner.kind, p.owner.name): p.summary for p in registry.plugins}
    kinds: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        kinds[kind] = {name: summaries[kind, name.rpartition(":")[2]] for name in registry.names(kind)}
    files = {str(source.path) for source in sources.values()} | _modules()
    files |= {str(Path(file).parent) for file in files}  # whose time changes when a file is added
    for folder in folders_of(plugins_dir, os.environ):
        files |= {str(folder.absolute()), *map(str, folder.absolute().glob("*.py"))}
    return {
        "signature": _signature(),
        "files": _times(files),
        "commands": dict(_commands(root)),
        "recipes": {name: _description(source) for name, source in sources.items()},
        "keys": dict(_keys(registry, kinds)),
        "kinds": kinds,
    }


def table_file(plugins_dir: Sequence[Path] = ()) -> Path:
    """Return the table's file; every environment and every folder of plugins has its own."""
    whose = json.dumps([sys.prefix, str(OURS), list(map(str, plugins_dir))])
    return (
        Path("~/.cache/cswf/completion").expanduser()
        / f"{hashlib.sha256(whose.encode()).hexdigest()[:12]}.json"
    )


def _signature() -> list[Any]:
    """Return what says which plugins there are, without importing any."""
    points = entry_points(group="cswf")
    offers = sorted({f"{p.dist.name} {p.dist.version} {p.value}" if p.dist else p.value for p in points})
    return [FORMAT, offers, os.environ.get("CSWF_LOAD_PLUGINS"), os.environ.get("CSWF_PLUGINS_DIR")]


def _times(files: Mapping[str, int] | set[str]) -> dict[str, int]:
    """Return when files were changed; 0 for one that is gone."""
    times = {}
    for file in sorted(files):
        try:
            times[file] = os.stat(file).st_mtime_ns
        except OSError:
            times[file] = 0
    return times


def _modules() -> set[str]:
    """Return the files of this program and of all plugins, broken ones too, as they are imported by now."""
    tops = {"cswf_core", *(point.module.partition(".")[0] for point in entry_points(group="cswf"))}
    loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    files = {file for name, file in loaded.items() if file and name.partition(".")[0] in tops}
    for top in tops:
        with suppress(Exception):  # a package that cannot even be looked for
            spec = importlib.util.find_spec(top)
            files |= {spec.origin} if spec is not None and spec.origin else set()
    return files


def _description(source: Source) -> str:
    """Return what a recipe says that it is for."""
    from cswf_core.recipe.nodes import Mapping as Keys
    from cswf_core.recipe.nodes import Scalar

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
    """Return what a parameter takes: `recipe`, `override`, `run`, `file`, `dataset` and so on, or values."""
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
    elif name in FOLDERS or metavar in FOLDERS:
        return ["run"]
    elif name in ("recipe", "overrides", "words", "source"):
        takes = {"overrides": ["override"], "words": ["recipe", "override"], "source": ["dataset", "recipe"]}
        return takes.get(name, ["recipe"])
    elif name == "plugin":
        return list(KINDS)
    elif name == "kind":
        return [f"={kind}" for kind in KINDS]
    return ["file"] if isinstance(param.type, click.Path) else []


def _keys(registry: Registry, kinds: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, Any]]:
    """Yield every key path of recipes with its help and with the values that can be listed."""
    from cswf_core.recipe.fields import options
    from cswf_core.recipe.sections import (
        CHOICES,
        SECTIONS,
        EvaluateSection,
        HeadSection,
        OnlineSection,
        ReuseSection,
    )

    sections = [("", HeadSection), *((f"{key}.", cls) for key, cls in SECTIONS.items())]
    sections += [("evaluate.", EvaluateSection), ("online.", OnlineSection), ("projection.", ReuseSection)]
    keys: dict[str, dict[str, Any]] = {"evaluate.metrics": {"help": "a list of metrics", "values": {}}}
    for key, kind in CHOICES.items():
        keys[key] = {"help": f"the name of a {kind}", "values": kinds[kind]}
        sections += [(f"{key}.", registry.find(kind, name).factory) for name in kinds[kind]]
    for prefix, cls in sections:
        for name, option in options(cls).items():
            entry = keys.setdefault(f"{prefix}{name}", {"help": option.help, "values": {}})
            entry["values"] = {**entry["values"], **_values(option.schema(), kinds)}
    yield from sorted(keys.items())


def _values(schema: Mapping[str, Any], kinds: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the values that a JSON Schema lists, each with its help."""
    if "$ref" in schema:
        return dict(kinds[schema["$ref"].rpartition("/")[2]])
    if schema.get("type") == "boolean":
        return {"true": "", "false": ""}
    listed = {str(value): "" for value in schema.get("enum", ()) if value is not None}
    for other in schema.get("anyOf", ()):
        listed |= _values(other, kinds)
    return listed
