"""`cswf plugins`: list the plugins: what they are, whose, and which are broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
def plugins(as_json: bool, plugins_dir: Path | None) -> None:
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
        table.add_row(row["kind"] or "?", row["name"], owner, row["status"], row["error"] or row["summary"])
    Console().print(table, markup=False)


def _plugin(registry: Registry, plugin: Plugin) -> dict[str, Any]:
    owner, parameters, error = plugin.owner, [], None
    try:
        parameters = [
            {
                "name": name,
                "type": option.kind.words,
                "required": option.required,
                "default": None if option.required else fields.plain(option.default),
                "help": option.help,
            }
            for name, option in fields.options(plugin.factory).items()
        ]
    except PluginError as failed:
        error = str(failed)
    clash = owner.name not in registry.names(owner.kind)
    if clash:
        error = f"two plugins have this name: write '{owner.distribution}:{owner.name}'"
    status = "ambiguous" if clash else "broken" if error else "ok"
    return _row(owner, status, plugin.summary, error, parameters)


def _watcher(watcher: Watcher) -> dict[str, Any]:
    summary = f"Watches every run: {', '.join(watcher.hooks)}."
    return {**_row(watcher.owner, "ok", summary), "hooks": watcher.hooks}


def _row(
    owner: Owner, status: str, summary: str = "", error: str | None = None, parameters: Sequence[object] = ()
) -> dict[str, Any]:
    return {
        "kind": owner.kind or None,
        "name": owner.name,
        "distribution": owner.distribution,
        "version": owner.version,
        "status": status,
        "summary": summary,
        "error": error,
        "parameters": list(parameters),
        "hooks": [],
    }
