"""JSON Schema of recipes, for editors: completion, types and descriptions of every key and plugin."""

from __future__ import annotations

from typing import Any

from cswf_core.plugins import Plugin, Registry
from cswf_core.recipe.merge import CHOICES
from cswf_core.recipe.sections import (
    DEFAULTS,
    KEYS,
    EvaluateSection,
    HeadSection,
    ModelSection,
    OnlineSection,
    OutputsSection,
    ParticlesSection,
    ReuseSection,
)
from cswf_core.recipe.types import object_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema for the plugins that are loaded. Nothing is required: a recipe may extend another."""
    head = object_schema(HeadSection)["properties"]
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    sections = {
        **head,
        "extends": {**names, "description": "a built-in recipe or a path, or a list of them, to build on"},
        "particles": _optional(object_schema(ParticlesSection)),
        "outputs": _optional(object_schema(OutputsSection)),
        "observers": _optional({"type": "array", "items": {"$ref": "#/$defs/observer"}}),
        "model": _optional(object_schema(ModelSection)),
        "online": _listing(OnlineSection, "arrivals", "dataset"),
        "evaluate": _listing(EvaluateSection, "metrics", "metric"),
        "variants": {
            "type": "object",
            "description": "changes to this recipe by label, run side by side by `cswf sweep`",
            "additionalProperties": {"type": "object"},
        },
        **{key: {"$ref": f"#/$defs/{kind}"} for key, kind in CHOICES.items()},
    }
    for key, name in DEFAULTS.items():
        sections[key] = {**sections[key], "default": name}
    return {
        "$schema": DIALECT,
        "title": "cswf recipe",
        "type": "object",
        "properties": {key: sections[key] for key in KEYS},
        "additionalProperties": False,
        "$defs": {kind: _choice(registry, kind) for kind in (*CHOICES.values(), "metric", "observer")},
    }


def _listing(section: type[Any], name: str, kind: str) -> dict[str, Any]:
    """Return the schema of a section that has a list of plugins beside its own keys."""
    items = {name: {"type": "array", "items": {"$ref": f"#/$defs/{kind}"}}}
    properties = {**items, **object_schema(section)["properties"]}
    return _optional({"type": "object", "properties": properties, "additionalProperties": False})


def _choice(registry: Registry, kind: str) -> dict[str, Any]:
    """Return the schema of a section that chooses a plugin: a name, or a mapping with that plugin's keys."""
    plugins = [p for p in registry.plugins if p.owner.kind == kind]
    names = [name for p in plugins for name in (p.owner.name, f"{p.owner.distribution}:{p.owner.name}")]
    whole = [_with_parameters(p, kind) for p in plugins]
    return {"anyOf": [{"enum": names}, *whole, {"type": "null"}]}


def _with_parameters(plugin: Plugin, kind: str) -> dict[str, Any]:
    described = object_schema(plugin.factory)
    extra = object_schema(ReuseSection)["properties"] if kind == "projection" else {}
    names = [plugin.owner.name, f"{plugin.owner.distribution}:{plugin.owner.name}"]
    described["properties"] = {"use": {"enum": names}, **described["properties"], **extra}
    described["required"] = []
    described["description"] = plugin.summary
    return described


def _optional(described: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [described, {"type": "null"}]}
