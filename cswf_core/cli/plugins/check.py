"""`cswf plugins check`: prove a plugin by the kit of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click
import yaml

from cswf_core.cli import options
from cswf_core.cli.plugins.listing import named
from cswf_core.errors import PluginError
from cswf_core.plugins import Broken, Registry, Watcher
from cswf_core.recipe import choose
from cswf_core.runs.printing import say, say_json
from cswf_core.testing import check_plugin
from cswf_core.testing.outcome import Outcome


@click.command()
@click.argument("plugin", metavar="NAME")
@options.json
@options.plugins_dir
def check(plugin: str, as_json: bool, plugins_dir: tuple[Path, ...]) -> int:
    """Prove the plugin NAME by the kit of its kind: what its contract asks for, tried on small data.

    NAME may have parameters, as in a recipe: '{use: strokes, width: 2}'. Exit status 1 if a check fails.
    """
    kind, part = _chosen(Registry.discover(plugins_dir), plugin)

    def tell(outcome: Outcome) -> None:
        if not as_json:
            remark = f": {outcome.sentence}" if outcome.sentence else ""
            say(f"{outcome.result:<8}{outcome.claim}{remark}")

    outcomes = check_plugin(kind, part, on_result=tell)
    results = [outcome.result for outcome in outcomes]
    if as_json:
        say_json([attrs.asdict(outcome) for outcome in outcomes])
    else:
        say(", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results)))
    return 1 if "failed" in results else 0


def _chosen(registry: Registry, text: str) -> tuple[str, Any]:
    """Return the kind of the plugin that a text names, and the object made of it, behind its checks."""
    name = text
    if text.lstrip().startswith("{"):
        written = yaml.safe_load(text)
        name = str(written.get("use", "")) if isinstance(written, dict) else text
    entries = [entry for entry in named(registry, name) if not isinstance(entry, Watcher)]
    broken = [entry for entry in entries if isinstance(entry, Broken)]
    if broken or not entries:
        reason = broken[0].reason if broken else "it watches runs, and there is no kit for that"
        raise PluginError(f"plugin '{name}' cannot be checked: {reason}")
    kind = entries[0].owner.kind
    return kind, choose(registry, kind, text, "NAME").checked
