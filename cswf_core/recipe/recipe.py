"""The recipe: every key it may have, and the choice of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from cswf_core.errors import PluginError
from cswf_core.interfaces import parameter
from cswf_core.offers import Plugin
from cswf_core.plugins import Registry
from cswf_core.recipe.convert import MISSING, Converter
from cswf_core.recipe.merge import CHOICES, as_choice, resolve_tree
from cswf_core.recipe.nodes import Entry, Items, Location, Mapping, Node, RecipeError, Scalar
from cswf_core.recipe.types import options, plain


@attrs.frozen(kw_only=True)
class ParticlesSection:
    """`particles:`."""

    count: int | None = parameter(
        "M; as many as there are data if left out", default=None, at_least=1, at_most=2**40
    )
    scale: float = parameter(
        "particles begin as N(0, scale² I); the released code has 0.1", default=1.0, above=0
    )
    precision: Literal["float32", "float64"] = parameter(
        "floating-point numbers to compute in", default="float32"
    )


@attrs.frozen(kw_only=True)
class ReuseSection:
    """What `projection:` takes besides the plugin's own parameters."""

    reuse: int | Literal["all"] = parameter(
        "for how many steps a set of directions is kept; 'all' keeps one for a whole stage",
        default=1,
        at_least=1,
    )


@attrs.frozen(kw_only=True)
class OutputsSection:
    """`outputs:`."""

    log_every: int = parameter("steps between two rows of metrics.jsonl", default=10, at_least=1)
    columns: int = parameter("samples in a row of samples.png", default=10, at_least=1, at_most=100)
    snapshots: tuple[int, ...] = parameter(
        "steps at which flow.png shows the particles; 0 is the start", default=()
    )


@attrs.frozen(kw_only=True)
class ModelSection:
    """`model:`; it has no keys in this version."""


@attrs.frozen
class Choice:
    """A plugin that a recipe has chosen, and the object made with the recipe's parameters."""

    name: str
    """As written, perhaps with its distribution."""
    plugin: Plugin
    part: Any

    def plain(self) -> dict[str, Any]:
        """Return the choice as YAML has it: `use` and all parameters."""
        return {"use": self.name, **plain(self.part)}


@attrs.frozen(kw_only=True)
class Recipe:
    """A whole, valid recipe; `origins` says where each value was written (absent if defaulted)."""

    name: str
    description: str
    seed: int
    data: Choice
    particles: ParticlesSection
    condition: Choice
    projection: Choice
    reuse: int | Literal["all"]
    cdf: Choice
    schedule: Choice
    outputs: OutputsSection
    metrics: tuple[Choice, ...]
    path: Path
    """The file it was read from."""
    registry: Registry = attrs.field(repr=False, eq=False)
    origins: dict[str, Location] = attrs.field(repr=False)

    def choices(self) -> dict[str, Choice]:
        """Return every chosen plugin by its key path."""
        chosen = {key: getattr(self, key) for key in CHOICES}
        return chosen | {f"evaluate.metrics.{i}": metric for i, metric in enumerate(self.metrics)}

    def resolved(self) -> dict[str, Any]:
        """Return the recipe with every default filled in and nothing to extend."""
        return {
            "name": self.name,
            "description": self.description,
            "seed": self.seed,
            "data": self.data.plain(),
            "particles": plain(self.particles),
            "condition": self.condition.plain(),
            "projection": {**self.projection.plain(), "reuse": self.reuse},
            "cdf": self.cdf.plain(),
            "schedule": self.schedule.plain(),
            "outputs": plain(self.outputs),
            "model": {},
            "evaluate": {"metrics": [metric.plain() for metric in self.metrics]},
        }


DEFAULTS = {"condition": "none", "projection": "uniform", "cdf": "sorted"}
"""Plugins of sections that a recipe leaves out."""

KEYS = (
    "name",
    "description",
    "extends",
    "seed",
    "data",
    "particles",
    "condition",
    "projection",
    "cdf",
    "schedule",
    "outputs",
    "model",
    "evaluate",
)
"""Top-level keys."""


@attrs.frozen(kw_only=True)
class HeadSection:
    """`name`, `description` and `seed`."""

    name: str = parameter("what the recipe is called; the file's name if left out", default="")
    description: str = parameter("what it is for, in a sentence", default="")
    seed: int = parameter("where all randomness comes from", default=0, at_least=0, at_most=2**63 - 1)


def load_recipe(
    name: str | Path,
    overrides: Sequence[str] = (),
    *,
    registry: Registry | None = None,
    plugins_dir: str | Path | None = None,
) -> Recipe:
    """Read, merge and validate a recipe; raise `RecipeError` with every mistake there is."""
    if isinstance(overrides, (str, dict)):
        raise TypeError("overrides must be a list of 'key.path=value' texts")
    tree = resolve_tree(name, overrides)
    registry = Registry.discover(plugins_dir) if registry is None else registry
    reader = _RecipeReader(registry, Converter(tree.problems, complete=tree.complete))
    recipe = reader.read(tree.root, tree.source.path)
    if tree.problems:
        raise RecipeError(tree.problems)
    assert recipe is not None
    return recipe


class _RecipeReader:
    """Turns a merged tree into a recipe."""

    def __init__(self, registry: Registry, converter: Converter) -> None:
        self.registry = registry
        self.converter = converter

    def read(self, tree: Mapping, path: Path) -> Recipe | None:
        """Return the recipe; None if anything was wrong."""
        convert = self.converter
        convert.unknown_keys(tree, KEYS, "")
        head = convert.object(self._part(tree, *options(HeadSection)), HeadSection, "")
        particles = convert.object(self._section(tree, "particles"), ParticlesSection, "particles")
        outputs = convert.object(self._section(tree, "outputs"), OutputsSection, "outputs")
        convert.object(self._section(tree, "model"), ModelSection, "model")
        chosen = {key: self._choice(tree, key, kind) for key, kind in CHOICES.items()}
        reuse = self._reuse(tree)
        metrics = self._metrics(tree)
        if convert.problems:
            return None
        return Recipe(
            name=head.name or path.stem,
            path=path,
            description=head.description,
            seed=head.seed,
            particles=particles,
            outputs=outputs,
            reuse=reuse.reuse,
            metrics=metrics,
            registry=self.registry,
            origins=convert.origins,
            **chosen,
        )

    def _choice(self, tree: Mapping, key: str, kind: str) -> Any:
        node = as_choice(self._section(tree, key))
        extra = tuple(options(ReuseSection)) if key == "projection" else ()
        if not isinstance(node, Mapping) or "use" in node.entries:
            return self.plugin(node, kind, key, extra)
        if key in DEFAULTS:
            use = Entry(node.location, Scalar(node.location, DEFAULTS[key], DEFAULTS[key]))
            chosen = self.plugin(Mapping(node.location, {"use": use, **node.entries}), kind, key, extra)
            self.converter.origins.pop(f"{key}.use", None)
            return chosen
        return (
            self.plugin(node, kind, key, extra) if node.entries else self.converter.missing(tree.location, key)
        )

    def plugin(self, node: Node, kind: str, path: str, extra: tuple[str, ...]) -> Any:
        """Return the choice that a section makes: a plugin's name, or a mapping with `use` and parameters."""
        convert, node = self.converter, as_choice(node)
        if not isinstance(node, Mapping):
            return convert.problem(
                node.location, f"{path} must be the name of a {kind} or a mapping with 'use'"
            )
        use = node.get("use")
        if not isinstance(use, Scalar) or use.value is None:
            place = node.location if use is None else use.location
            hint = f"{path} needs 'use', the name of a {kind}; known: {', '.join(self.registry.names(kind))}"
            return convert.problem(place, hint)
        convert.origins[f"{path}.use"] = use.location
        try:
            plugin = self.registry.find(kind, use.raw)
            part = convert.object(node, plugin.factory, path, of=f"{kind} '{use.raw}'", extra=("use", *extra))
        except PluginError as error:
            return convert.problem(use.location, str(error))
        return MISSING if part is MISSING else Choice(use.raw, plugin, part)

    def _metrics(self, tree: Mapping) -> tuple[Choice, ...]:
        section = self._section(tree, "evaluate")
        if not isinstance(section, Mapping):
            self.converter.problem(section.location, "evaluate must be a mapping with 'metrics'")
            return ()
        self.converter.unknown_keys(section, ("metrics",), "'evaluate'")
        node = section.get("metrics")
        if node is None or (isinstance(node, Scalar) and node.value is None):
            return ()
        if not isinstance(node, Items):
            self.converter.problem(node.location, "evaluate.metrics must be a list of metrics")
            return ()
        return tuple(self.plugin(n, "metric", f"evaluate.metrics.{i}", ()) for i, n in enumerate(node.items))

    def _reuse(self, tree: Mapping) -> Any:
        section = as_choice(self._section(tree, "projection"))
        if not isinstance(section, Mapping):
            return MISSING  # `_choice` has said so
        return self.converter.object(self._part(section, *options(ReuseSection)), ReuseSection, "projection")

    @staticmethod
    def _part(tree: Mapping, *keys: str) -> Mapping:
        return Mapping(tree.location, {k: e for k, e in tree.entries.items() if k in keys})

    @staticmethod
    def _section(tree: Mapping, key: str) -> Node:
        entry: Entry | None = tree.entries.get(key)
        if entry is None or (isinstance(entry.node, Scalar) and entry.node.value is None):
            return Mapping(tree.location if entry is None else entry.location, {})
        return entry.node
