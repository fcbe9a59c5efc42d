"""`cswf plugins`: list the plugins: what they are, whose, and which are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cswf_core.cli.options import json_option, plugins_dir_option
from cswf_core.errors import PluginError
from cswf_core.plugins import Broken, Plugin, Registry
from cswf_core.recipe.fields import options, plain


@click.command()
@json_option
@plugins_dir_option
def plugins(as_json: bool, plugins_dir: Path | None) -> None:
    """List the plugins: what they are, whose, and which are broken.

    CSWF_LOAD_PLUGINS=a,b loads only those distributions besides the built-ins; empty loads no others.
    """
    registry = Registry.discover(plugins_dir)
    rows = [_row(registry, plugin) for plugin in registry.plugins] + [_broken_row(b) for b in registry.broken]
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


def _row(registry: Registry, plugin: Plugin) -> dict[str, Any]:
    owner = plugin.owner
    clash = owner.name not in registry.names(owner.kind)
    try:
        parameters, error = _parameters(plugin), None
    except PluginError as failed:
        parameters, error = [], str(failed)
    if clash:
        error = f"two plugins have this name: write '{owner.distribution}:{owner.name}'"
    return {
        "kind": owner.kind,
        "name": owner.name,
        "distribution": owner.distribution,
        "version": owner.version,
        "status": "ambiguous" if clash else "broken" if error else "ok",
        "summary": plugin.summary,
        "error": error,
        "parameters": parameters,
    }


def _parameters(plugin: Plugin) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": option.kind.words,
            "required": option.required,
            "default": None if option.required else plain(option.default),
            "help": option.help,
        }
        for name, option in options(plugin.factory).items()
    ]


def _broken_row(broken: Broken) -> dict[str, Any]:
    owner = broken.owner
    return {
        "kind": owner.kind or None,
        "name": owner.name,
        "distribution": owner.distribution,
        "version": owner.version,
        "status": "broken",
        "summary": "",
        "error": broken.reason,
        "parameters": [],
    }
