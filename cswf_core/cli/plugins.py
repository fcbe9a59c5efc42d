"""What `cswf plugins` does: plugins listed, one shown with its parameters and faults, or proved by its kit."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import yaml

from cswf_core import fields
from cswf_core.errors import PluginError, did_you_mean
from cswf_core.interfaces import Owner
from cswf_core.plugins import KINDS, Broken, Plugin, Registry, Watcher
from cswf_core.plugins.plugin import normal
from cswf_core.recipe import choose
from cswf_core.runs.printing import say, say_json
from cswf_core.runs.screen import console, table

if TYPE_CHECKING:
    from cswf_core.testing.outcome import Outcome

Entry = Plugin | Watcher | Broken


def list_plugins(plugins_dir: Sequence[Path], as_json: bool) -> None:
    """Do the work of `cswf plugins`: print a row for each plugin."""
    registry = Registry.discover(plugins_dir)
    rows = [_row(registry, entry) for entry in _entries(registry)]
    if as_json:
        say_json(rows)
        return
    lines = []
    for row in rows:
        told = [row["error"]] if row["error"] else [text for text in (row["summary"], row["note"]) if text]
        lines.append((row["kind"] or "?", row["name"], _from(row), row["status"], told))
    console().print(table(("kind", "name", "from", "status", "summary"), lines))


def show_plugin(name: str, plugins_dir: Sequence[Path], as_json: bool) -> None:
    """Do the work of `cswf plugins NAME`: print all that is known of the plugins of a name."""
    registry = Registry.discover(plugins_dir)
    rows = [_row(registry, entry) | _details(entry) for entry in _named(registry, name)]
    if as_json:
        say_json(rows)
        return
    for number, row in enumerate(rows):
        if number:
            say("")
        _print(row)


def _entries(registry: Registry) -> list[Entry]:
    return [*registry.plugins, *registry.watchers, *registry.broken]


def _named(registry: Registry, name: str) -> list[Entry]:
    """Return what has a name, with or without its distribution; raise `PluginError` if nothing has."""
    distribution, _, bare = name.rpartition(":")
    alike = [entry for entry in _entries(registry) if entry.owner.name == bare]
    if distribution:
        alike = [entry for entry in alike if normal(entry.owner.distribution) == normal(distribution)]
    if not alike:
        known = [each for kind in KINDS for each in registry.names(kind)]
        raise PluginError(f"unknown plugin '{name}'{did_you_mean(name, known)}{registry.blame(name)}")
    return alike


def _row(registry: Registry, entry: Entry) -> dict[str, Any]:
    """Return what the listing says about a plugin."""
    owner = entry.owner
    row: dict[str, Any] = {
        "kind": owner.kind or None,
        "name": owner.name,
        "distribution": owner.distribution,
        "version": owner.version,
        "status": "ok",
        "summary": "",
        "error": None,
        "note": None,
        "parameters": [],
        "hooks": [],
    }
    if isinstance(entry, Broken):
        return row | {"status": "broken", "error": entry.reason}
    if isinstance(entry, Watcher):
        return row | {"summary": f"Watches every run: {', '.join(entry.hooks)}.", "hooks": entry.hooks}
    status, note = _clash(registry, owner)
    row |= {"status": status, "summary": entry.summary, "note": note, "hooks": [KINDS[owner.kind][0]]}
    try:
        return row | {"parameters": _parameters(registry, entry)}
    except PluginError as error:
        return row | {"status": "broken", "error": str(error)}


def _parameters(registry: Registry, plugin: Plugin) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": option.kind.words,
            "required": option.required,
            "default": None if option.required else fields.plain(option.default, registry.written),
            **option.bounds,
            "help": option.help,
        }
        for name, option in fields.options(plugin.factory).items()
    ]


def _clash(registry: Registry, owner: Owner) -> tuple[str, str | None]:
    """Return a plugin's status, and a sentence if others have its name."""
    others = registry.namesakes(owner)
    name = registry.name_of(owner)
    if not others:
        return "ok", None
    if name == owner.name:
        writing = " and ".join(f"'{registry.name_of(other)}'" for other in others)
        means = "means the other" if len(others) == 1 else "mean the others"
        return "ok", f"a recipe that says '{name}' means this one; {writing} {means} of this name"
    if any(registry.name_of(other) == other.name for other in others):
        return "second", f"a built-in plugin has this name: write '{name}' for this one"
    return "ambiguous", f"two plugins have this name: write '{name}' for this one"


def _details(entry: Entry) -> dict[str, Any]:
    """Return what is said only of a plugin that was asked for: its file, the SHA-256 of its code, its docs."""
    details: dict[str, Any] = {"file": None, "sha256": None, "sha256_of": None, "docs": ""}
    if isinstance(entry, Broken):
        return details
    if isinstance(entry, Watcher):
        return details | {"file": getattr(entry.module, "__file__", None), "docs": _docs(entry.module)}
    module = sys.modules.get(entry.factory.__module__)
    docs = dict.fromkeys(filter(None, (_docs(entry.factory), _docs(module))))
    covered = "file" if len(entry.files) == 1 else f"{len(entry.files)} files" if entry.files else "package"
    sha256 = entry.signed().owner.sha256 or None
    file = getattr(module, "__file__", None)
    return {"file": file, "sha256": sha256, "sha256_of": covered, "docs": "\n\n".join(docs)}


def _docs(documented: object) -> str:
    text = getattr(documented, "__doc__", None)
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def _print(row: dict[str, Any]) -> None:
    """Print one plugin for people."""
    signed = row["sha256"] and f"{row['sha256']} ({row['sha256_of']}: names and contents of its code)"
    facts = {"from": _from(row), "file": row["file"], "sha256": signed, "status": row["status"]}
    facts |= {"error": row["error"], "note": row["note"], "hooks": ", ".join(row["hooks"])}
    say(f"{row['kind'] or 'plugin'} {row['name']}")
    for heading, value in facts.items():
        if value:
            say(f"  {heading:<8}{value}")
    if row["docs"]:
        say("", *row["docs"].split("\n"))
    if row["parameters"]:
        say("", "parameters")
    for each in row["parameters"]:
        default = f"default {json.dumps(each['default'], ensure_ascii=False)}"
        default = "required" if each["required"] else default
        limits = [f"{bound.replace('_', ' ')} {each[bound]:,}" for bound in fields.BOUNDS if bound in each]
        say(f"  {each['name']}: {'; '.join((each['type'], *limits, default))}")
        if each["help"]:
            say(*click.wrap_text(each["help"], 100, "      ", "      ").split("\n"))


def _from(row: dict[str, Any]) -> str:
    return f"{row['distribution']} {row['version'] or ''}".strip()


def check_plugin(plugin: str, as_json: bool, plugins_dir: tuple[Path, ...]) -> int:
    """Do the work of `cswf plugins check`."""
    from cswf_core.testing import check_plugin as prove  # the others need no PyTorch

    kind, part = _chosen(Registry.discover(plugins_dir), plugin)

    def tell(outcome: Outcome) -> None:
        if not as_json:
            remark = f": {outcome.sentence}" if outcome.sentence else ""
            say(f"{outcome.result:<8}{outcome.claim}{remark}")

    outcomes = prove(kind, part, on_result=tell)
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
    entries = [entry for entry in _named(registry, name) if not isinstance(entry, Watcher)]
    broken = [entry for entry in entries if isinstance(entry, Broken)]
    if broken or not entries:
        reason = broken[0].reason if broken else "it watches runs, and there is no kit for that"
        raise PluginError(f"plugin '{name}' cannot be checked: {reason}")
    kind = entries[0].owner.kind
    return kind, choose(registry, kind, text, "NAME").checked
