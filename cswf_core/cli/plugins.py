"""`cswf plugins`: list the plugins: what they are, whose, and which are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cswf_core.cli import options
from cswf_core.errors import PluginError
from cswf_core.interfaces import Owner
from cswf_core.plugins import Plugin, Registry, Watcher
from cswf_core.recipe import fields


@click.command()
@options.json
@options.plugins_dir
def plugins(as_json: bool, plugins_dir: tuple[Path, ...]) -> None:
    """List the plugins: what they are, whose, and which are broken.

    CSWF_LOAD_PLUGINS=a,b loads only those distributions besides the built-ins; empty loads no others.
    """
    registry = Registry.discover(plugins_dir)
    rows = [_plugin(registry, plugin) for plugin in registry.plugins]
    rows += [_watcher(watcher) for watcher in registry.watchers]
    rows += [_row(broken.owner, "broken", error=broken.reason) for broken in registry.broken]
    if as_json:
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "name", "from", "status", "summary"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        owner = f"{row['distribution']} {row['version'] or ''}".strip()
        words = row["error"] or "\n".join(filter(None, (row["summary"], row["note"])))
        table.add_row(row["kind"] or "?", row["name"], owner, row["status"], words)
    Console().print(table, markup=False)


def _plugin(registry: Registry, plugin: Plugin) -> dict[str, Any]:
    owner, parameters, error = plugin.owner, [], None
    written = fields.by_name(registry)
    try:
        parameters = [
            {
                "name": name,
                "type": option.kind.words,
                "required": option.required,
                "default": None if option.required else fields.plain(option.default, written),
                "help": option.help,
            }
            for name, option in fields.options(plugin.factory).items()
        ]
    except PluginError as failed:
        error = str(failed)
    status, note = _clash(registry, owner)
    row = _row(owner, "broken" if error else status, plugin.summary, error)
    return row | {"note": note, "parameters": parameters}


def _clash(registry: Registry, owner: Owner) -> tuple[str, str | None]:
    """Return a plugin's status, and a sentence if others have its name."""
    others, name = registry.namesakes(owner), registry.name_of(owner)
    if not others:
        return "ok", None
    if name == owner.name:
        writing = " and ".join(f"'{registry.name_of(other)}'" for other in others)
        means = "means the other" if len(others) == 1 else "mean the others"
        return "ok", f"a recipe that says '{name}' means this one; {writing} {means} of this name"
    if any(registry.name_of(other) == other.name for other in others):
        return "second", f"a built-in plugin has this name: write '{name}' for this one"
    return "ambiguous", f"two plugins have this name: write '{name}' for this one"


def _watcher(watcher: Watcher) -> dict[str, Any]:
    summary = f"Watches every run: {', '.join(watcher.hooks)}."
    return _row(watcher.owner, "ok", summary) | {"hooks": watcher.hooks}


def _row(owner: Owner, status: str, summary: str = "", error: str | None = None) -> dict[str, Any]:
    return {
        "kind": owner.kind or None,
        "name": owner.name,
        "distribution": owner.distribution,
        "version": owner.version,
        "status": status,
        "summary": summary,
        "error": error,
        "note": None,
        "parameters": [],
        "hooks": [],
    }
