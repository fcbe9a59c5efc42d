"""A valid recipe, read from a merged tree: typed sections, and plugins chosen by name with their parameters."""

from __future__ import annotations

import collections.abc
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from cswf_core.checks import checked
from cswf_core.errors import CswfError, KeyedError, PluginError, excerpt, nearest
from cswf_core.flow.settings import DEFAULTS
from cswf_core.plugins import Plugin, PluginFolders, Registry
from cswf_core.plugins.parameters import plugins_below, plugins_inside
from cswf_core.recipe.fields import MISSING, Reader, options, parameters, plain
from cswf_core.recipe.merge import Tree, as_choice
from cswf_core.recipe.nodes import Items, Location, Mapping, Node, Problem, RecipeError, Scalar, is_null, parse
from cswf_core.recipe.sections import (
    CHOICES,
    KEYS,
    SECTIONS,
    EvaluateSection,
    HeadSection,
    ModelSection,
    OnlineSection,
    OutputsSection,
    ParticlesSection,
    ReuseSection,
)


@attrs.frozen
class Choice:
    """A plugin that a recipe has chosen, and the object made with the recipe's parameters."""

    name: str
    """As written, perhaps with its distribution."""
    plugin: Plugin
    part: Any
    inner: dict[str, Choice] = attrs.field(factory=dict)
    """Plugins among its parameters and inside these, by key path below this one: `of`, `several.0`."""
    checked: Any = attrs.field(init=False, repr=False, eq=False)
    """The object behind the checks of its contract (`cswf_core.checks`): what the engine calls."""

    @checked.default
    def _behind_checks(self) -> Any:
        return checked(self.part, self.plugin.owner)

    @classmethod
    def of(cls, part: Any, registry: Registry) -> Choice:
        """Return the choice that would have made a plugin's object."""
        plugin = registry.plugin_of(part)
        inner = {path: cls.of(inside, registry) for path, inside in plugins_below(part)}
        return cls(registry.name_of(plugin.owner), plugin.signed(), part, inner)

    def plain(self) -> dict[str, Any]:
        """Return the choice as YAML has it: `use` and all parameters."""
        written = {name: choice.plain() for name, choice in self.inner.items()}
        inside = {id(choice.part): written[name] for name, choice in self.inner.items()}
        own = parameters(self.part, lambda part: inside[id(part)] if id(part) in inside else plain(part))
        direct = {name: value for name, value in written.items() if name in own}
        return {"use": self.name, **own, **direct}

    def by_path(self, path: str) -> dict[str, Choice]:
        """Return this choice, made at a key path, and those inside it, by their key paths."""
        choices = {path: self}
        for name, choice in self.inner.items():
            choices |= choice.by_path(f"{path}.{name}")
        return choices


@attrs.frozen(kw_only=True)
class Recipe:
    """A whole, valid recipe."""

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
    coordinates: Choice
    outputs: OutputsSection
    model: ModelSection
    online: OnlineSection | None
    """How data are learned that arrive later; None if the recipe does not say."""
    arrivals: tuple[Choice, ...]
    """Data that arrive one after the other."""
    observers: tuple[Choice, ...]
    metrics: tuple[Choice, ...]
    evaluation: EvaluateSection
    path: Path | None
    """The file it was read from; None if it was a mapping."""
    variants: dict[str, Recipe] = attrs.field(factory=dict, repr=False)
    """By label, the recipe with a variant's changes, which `cswf sweep` runs side by side."""
    registry: Registry = attrs.field(repr=False, eq=False)
    origins: dict[str, Location] = attrs.field(repr=False)
    """Key path → the place where the value was written; defaults have none."""

    def choices(self) -> dict[str, Choice]:
        """Return every chosen plugin by its key path."""
        lists = {
            "online.arrivals": self.arrivals,
            "observers": self.observers,
            "evaluate.metrics": self.metrics,
        }
        outer: dict[str, Choice] = {key: getattr(self, key) for key in CHOICES}
        for key, listed in lists.items():
            outer |= {f"{key}.{index}": choice for index, choice in enumerate(listed)}
        return {path: inner for key, choice in outer.items() for path, inner in choice.by_path(key).items()}

    def plugin_facts(self) -> list[dict[str, str]]:
        """Return the facts of all plugins that take part, each once and sorted.

        They are kind, name, distribution, version, and the SHA-256 of the code that the plugin comes from.
        """
        owners = {choice.plugin.owner for choice in self.choices().values()}
        return [attrs.asdict(owner) for owner in sorted(owners, key=attrs.astuple)]

    def resolved(self) -> dict[str, Any]:
        """Return the recipe with every default filled in and nothing to extend."""
        whole: dict[str, Any] = {key: getattr(self, key).plain() for key in CHOICES}
        whole |= {key: plain(getattr(self, key)) for key in ("name", "description", "seed", *SECTIONS)}
        whole["projection"]["reuse"] = self.reuse
        whole["observers"] = [observer.plain() for observer in self.observers]
        whole["evaluate"] = {"metrics": [metric.plain() for metric in self.metrics], **plain(self.evaluation)}
        whole["online"] = None
        if self.online is not None:
            whole["online"] = {"arrivals": [choice.plain() for choice in self.arrivals], **plain(self.online)}
        return {key: whole[key] for key in KEYS if key in whole}


def load_recipe(
    source: str | Path | collections.abc.Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    registry: Registry | None = None,
    plugins_dir: PluginFolders = None,
) -> Recipe:
    """Read, merge and validate a recipe: by its name, if it is built-in or a package's; by its path; a mapping.

    A mapping has what a file would have; relative paths in it count from the current folder. Raises
    `RecipeError` with every mistake there is.
    """
    if isinstance(overrides, (str, dict)):
        raise TypeError("overrides must be a list of 'key.path=value' texts")
    registry = Registry.discover(plugins_dir) if registry is None else registry
    tree = Tree(source, overrides, registry)
    recipes: dict[str, Recipe] = {}
    for label, root in tree.variants.items():
        reader = _RecipeReader(registry, [], complete=tree.complete)
        recipes[label] = reader.recipe(root, tree.path)
        tree.problems.extend(reader.problems)
    if tree.problems:
        raise RecipeError(tree.problems)
    return attrs.evolve(recipes.pop(""), variants=recipes)


def choose(
    registry: Registry, kind: str, text: str, origin: str = "command line", *, or_path: bool = False
) -> Choice:
    """Return the plugin that a text names: `fid`, or with parameters `{use: fid, mode: clean}`.

    `origin` is what errors call the place of the text; `or_path` says that it may name a file or folder too.
    """
    problems: list[Problem] = []
    place = Location(origin, 1, 1)
    node = parse(text, place, problems)
    if node is None or problems:
        raise RecipeError(problems or [Problem(place, f"a {kind} is missing")])
    choice: Choice = _RecipeReader(registry, problems).plugin(node, kind, kind)
    if or_path and problems and isinstance(node, Scalar):
        problems = [
            attrs.evolve(problem, message=problem.message + _similar_path(text)) for problem in problems
        ]
    if problems:
        raise RecipeError(problems)
    return choice


def _similar_path(text: str) -> str:
    """Return a guess at the file or folder that a text means, none of which has this name; "" for none."""
    path = Path(text).expanduser()
    try:
        guess = nearest(path.name, os.listdir(path.parent)[:5000])  # each is compared letter by letter
    except (OSError, ValueError):
        return ""
    return guess and f"; no file or folder has this name{guess}"


class _RecipeReader(Reader):
    """Turns a merged tree into a recipe."""

    def __init__(self, registry: Registry, problems: list[Problem], *, complete: bool = True) -> None:
        super().__init__(problems, self._inner_plugin, complete=complete)
        self.registry = registry
        self._inner: dict[str, Choice] = {}
        """Choices inside the plugin's section that is being read, by key path, without those inside these."""

    def recipe(self, tree: Mapping, path: Path | None) -> Any:
        """Return the recipe; MISSING if anything was wrong."""
        head = self.object(tree, HeadSection, "", extra=KEYS, others=self._deeper)
        sections = {key: self.object(self._section(tree, key), cls, key) for key, cls in SECTIONS.items()}
        online, arrivals = self._listing(tree, "online", OnlineSection, "arrivals", "dataset")
        model = sections["model"]
        if arrivals and model is not MISSING and model.save:
            self.problem(
                self.origins.get("model.save", tree.location),
                "model.save: a model's maps are of data that are all there from the start; leave out "
                "online.arrivals, or do not save a model",
            )
        chosen = {key: self._choice(tree, key, kind) for key, kind in CHOICES.items()}
        reuse = self._reuse(tree)
        observers = self._list(self._section(tree, "observers"), "observer", "observers")
        evaluation, metrics = self._listing(tree, "evaluate", EvaluateSection, "metrics", "metric")
        if not self.problems and all(isinstance(choice, Choice) for choice in chosen.values()):
            online_too = not is_null(tree.get("online"))
            self._check_projection(tree, chosen, saves=model.save, online=online_too, reuse=reuse.reuse)
        if self.problems:
            return MISSING
        return Recipe(
            name=head.name or ("recipe" if path is None else path.stem),
            path=path,
            description=head.description,
            seed=head.seed,
            online=None if is_null(tree.get("online")) else online,
            arrivals=arrivals,
            reuse=reuse.reuse,
            observers=observers,
            metrics=metrics,
            evaluation=evaluation,
            registry=self.registry,
            origins=self.origins,
            **sections,
            **chosen,
        )

    def _check_projection(
        self, tree: Mapping, chosen: dict[str, Any], *, saves: bool, online: bool, reuse: int | str
    ) -> None:
        """Report a projection that the schedule cannot use, or that the rest of the recipe cannot follow."""
        projection = chosen["projection"]
        try:
            projection.checked.refuse_unseeing()
            chosen["schedule"].checked.check(projection.checked)
        except CswfError as error:
            key = f"schedule.{error.key}" if isinstance(error, KeyedError) else "projection.use"
            self.problem(self.origins.get(key, tree.location), str(error))
        if not projection.checked.adapts:
            return
        follows = f"projection '{projection.name}' follows the particles"
        for key, fault, wish in (
            ("model.save", saves, "do not save a model, whose directions are drawn again without them"),
            ("online", online, "leave out online, which counts data along directions that stay"),
            ("projection.reuse", reuse != 1, "take reuse: 1, as every step has directions of its own"),
        ):
            if fault:
                section = tree.get(key)
                place = tree.location if section is None else section.location
                self.problem(self.origins.get(key, place), f"{key}: {follows}: {wish}")

    def _choice(self, tree: Mapping, key: str, kind: str) -> Any:
        node, default = self._section(tree, key), DEFAULTS.get(key)
        if default is None and isinstance(node, Mapping) and not node.entries:
            return self.missing(tree.location, key)
        return self.plugin(node, kind, key, default, options(ReuseSection) if key == "projection" else ())

    def plugin(
        self, node: Node, kind: str, path: str, default: str | None = None, extra: Collection[str] = ()
    ) -> Any:
        """Return the choice that a section makes: a plugin's name, or a mapping with `use` and parameters."""
        node = as_choice(node)
        if not isinstance(node, Mapping):
            return self.problem(node.location, f"{path} must be the name of a {kind} or a mapping with 'use'")
        use = node.get("use")
        if use is not None:
            self.origins[f"{path}.use"] = use.location
        elif default is not None:
            use = Scalar(node.location, default, default)
        if not isinstance(use, Scalar) or is_null(use):
            place = node.location if use is None else use.location
            hint = f"{path} needs 'use', the name of a {kind}; known: {', '.join(self.registry.names(kind))}"
            return self.problem(place, hint)
        outside = self._inner
        self._inner = {}
        try:
            plugin = self.registry.find(kind, use.raw)
            owner, read_here = f"{kind} '{use.raw}'", ("use", *extra)
            part = self.object(
                node, plugin.factory, path, owner, read_here, lambda key: self._others(kind, key)
            )
            if part is MISSING:
                return MISSING
            read = {key.removeprefix(f"{path}."): choice for key, choice in self._inner.items()}
            inner = {**self._default_plugins(node, part), **read}
        except PluginError as error:
            return self.problem(use.location, str(error))
        finally:
            self._inner = outside
        return Choice(use.raw, plugin.signed(), part, inner)

    def _others(self, kind: str, key: str) -> str:
        """Return which plugins of a kind have a parameter of this name, as the end of a sentence."""
        names = self.registry.names(kind)
        having = [name for name in names if key in options(self.registry.find(kind, name).factory)]
        if not having:
            return ""
        return f"; {kind} {' and '.join(map(repr, sorted(having)))} {'has' if len(having) == 1 else 'have'} it"

    def _deeper(self, key: str) -> str:
        """Return the sections whose key a key at the top would be, as the end of a sentence."""
        owners: list[tuple[str, type[Any]]] = [*SECTIONS.items(), ("evaluate", EvaluateSection)]
        kinds = {kind: name for name, kind in CHOICES.items()}
        owners += [(kinds[p.owner.kind], p.factory) for p in self.registry.plugins if p.owner.kind in kinds]
        sections = {name for name, cls in owners if key in options(cls)}
        sections |= {"evaluate"} if key == "metrics" else set()
        return (
            "; did you mean " + " or ".join(f"'{s}.{key}'" for s in sorted(sections)) + "?" if sections else ""
        )

    def _inner_plugin(self, node: Node, kind: str, path: str) -> Any:
        """Return the object for a parameter that is a plugin itself."""
        choice = self.plugin(node, kind, path)
        if choice is MISSING:
            return MISSING
        self._inner[path] = choice
        return choice.part

    def _default_plugins(self, node: Mapping, part: Any) -> dict[str, Choice]:
        """Return the plugins in the defaults of parameters that a section leaves out, as `Choice.inner`."""
        inner: dict[str, Choice] = {}
        for name, option in options(type(part)).items():
            if is_null(node.get(name)):
                inside = plugins_inside(getattr(part, option.attribute.name), name)
                inner |= {path: Choice.of(each, self.registry) for path, each in inside}
        return inner

    def _listing(
        self, tree: Mapping, key: str, cls: type[Any], name: str, kind: str
    ) -> tuple[Any, tuple[Choice, ...]]:
        """Return a section that has a list of plugins beside its own keys, and that list."""
        section = self._section(tree, key)
        if not isinstance(section, Mapping):
            return self.problem(section.location, f"{key} must be a mapping with '{name}'"), ()
        chosen = self._list(self._section(section, name), kind, f"{key}.{name}")
        return self.object(section, cls, key, extra=[name]), chosen

    def _list(self, node: Node, kind: str, path: str) -> tuple[Choice, ...]:
        """Return the choices of a list of plugins; none where the key is left out."""
        if isinstance(node, Mapping) and not node.entries:
            return ()
        if not isinstance(node, Items):
            hint = f" (write [{excerpt(node.raw)}])" if isinstance(node, Scalar) else ""
            self.problem(node.location, f"{path} must be a list of {kind}s{hint}")
            return ()
        return tuple(self.plugin(n, kind, f"{path}.{i}") for i, n in enumerate(node.items))

    def _reuse(self, tree: Mapping) -> Any:
        section = as_choice(self._section(tree, "projection"))
        if not isinstance(section, Mapping):
            return MISSING  # `_choice` has said so
        return self.object(section, ReuseSection, "projection", extra=section.entries)

    @staticmethod
    def _section(tree: Mapping, key: str) -> Node:
        entry = tree.entries.get(key)
        if entry is None:
            return Mapping(tree.location, {})
        return Mapping(entry.location, {}) if is_null(entry.node) else entry.node
