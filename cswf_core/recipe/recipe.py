"""A valid recipe, read from a merged tree: typed sections, and plugins chosen by name with their parameters."""

from __future__ import annotations

import collections.abc
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs

from cswf_core.checks import checked
from cswf_core.errors import CswfError, KeyedError, PluginError, did_you_mean, excerpt, nearest
from cswf_core.fields import Decoder, kind_of, options, parameters, plain, plugins_below
from cswf_core.flow.settings import DEFAULTS
from cswf_core.nodes import (
    Items,
    Location,
    Mapping,
    Node,
    Problem,
    RecipeError,
    Scalar,
    is_null,
    parse,
)
from cswf_core.plugins import Plugin, PluginFolders, Registry
from cswf_core.recipe.merge import Tree, as_choice
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
        try:
            recipes[label] = _RecipeReader(registry, complete=tree.complete).recipe(root, tree.path)
        except RecipeError as error:
            tree.problems.extend(error.problems)
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
    place = Location(origin)
    node = parse(text, place, problems)
    if node is None or problems:
        raise RecipeError(problems or [Problem(place, f"a {kind} is missing")])
    try:
        return _RecipeReader(registry).plugin(node, kind, kind)
    except RecipeError as error:
        hint = _similar_path(text) if or_path and isinstance(node, Scalar) else ""
        raise RecipeError(
            [attrs.evolve(each, message=each.message + hint) for each in error.problems]
        ) from None


def _similar_path(text: str) -> str:
    """Return a guess at the file or folder that a text means, none of which has this name; "" for none."""
    path = Path(text).expanduser()
    try:
        guess = nearest(path.name, os.listdir(path.parent)[:5000])  # each is compared letter by letter
    except (OSError, ValueError):
        return ""
    return guess and f"; no file or folder has this name{guess}"


class _RecipeReader(Decoder):
    """Turns a merged tree into a recipe: reads nodes, notes where values stand, and collects every mistake."""

    def __init__(self, registry: Registry, *, complete: bool = True) -> None:
        super().__init__(complete=complete)
        self.registry = registry
        self._faults: list[RecipeError] = []
        """Mistakes of a recipe's sections."""
        self._kinds: dict[str, str] = {}
        """Key path → the kind of the plugin that is chosen there."""
        self._chosen: dict[int, Choice] = {}
        """By the identity of the object that it has made, each choice inside a plugin's section."""

    def recipe(self, tree: Mapping, path: Path | None) -> Recipe:
        """Return the recipe; raise `RecipeError` with every mistake."""
        head = self._try(self.object, tree, HeadSection, "", "", KEYS)
        sections = {
            key: self._try(self.value, self._section(tree, key), kind_of(cls), key)
            for key, cls in SECTIONS.items()
        }
        online = self._try(self._listing, tree, "online", OnlineSection, "arrivals", "dataset")
        self._try(self._refuse_model_of_arrivals, tree, sections["model"])
        chosen = {key: self._try(self._choice, tree, key, kind) for key, kind in CHOICES.items()}
        reuse = self._try(self._reuse, tree)
        observers = self._try(self._list, self._section(tree, "observers"), "observer", "observers")
        evaluate = self._try(self._listing, tree, "evaluate", EvaluateSection, "metrics", "metric")
        if not self._faults:
            self._check_projection(tree, chosen, saves=sections["model"].save, reuse=reuse.reuse)
        if self._faults:
            raise RecipeError([problem for fault in self._faults for problem in fault.problems])
        return Recipe(
            name=head.name or ("recipe" if path is None else path.stem),
            path=path,
            description=head.description,
            seed=head.seed,
            online=None if is_null(tree.get("online")) else online[1],
            arrivals=online[0],
            reuse=reuse.reuse,
            observers=observers,
            metrics=evaluate[0],
            evaluation=evaluate[1],
            registry=self.registry,
            origins=self.origins,
            **sections,
            **chosen,
        )

    def _try(self, read: Callable[..., Any], *arguments: Any) -> Any:
        """Return what is read; None, with its mistakes kept, if that fails."""
        try:
            return read(*arguments)
        except RecipeError as error:
            self._faults.append(error)
            return None

    def _refuse_model_of_arrivals(self, tree: Mapping, model: ModelSection | None) -> None:
        online = tree.get("online")
        arrivals = online.get("arrivals") if isinstance(online, Mapping) else None
        if isinstance(arrivals, Items) and arrivals.items and model is not None and model.save:
            raise RecipeError.at(
                self.origins.get("model.save", tree.location),
                "model.save: a model's maps are of data that are all there from the start; leave out "
                "online.arrivals, or do not save a model",
            )

    def _check_projection(
        self, tree: Mapping, chosen: dict[str, Any], *, saves: bool, reuse: int | str
    ) -> None:
        """Report a projection that the schedule cannot use, or that the rest of the recipe cannot follow."""
        projection = chosen["projection"]
        try:
            projection.checked.refuse_unseeing()
            if saves:
                projection.checked.refuse_lacking()
            chosen["schedule"].checked.check(projection.checked)
        except CswfError as error:
            key = f"schedule.{error.key}" if isinstance(error, KeyedError) else "projection.use"
            self._faults.append(RecipeError.at(self.origins.get(key, tree.location), str(error)))
        if not projection.checked.adapts:
            return
        follows = f"projection '{projection.name}' follows the particles"
        online = not is_null(tree.get("online"))
        for key, fault, wish in (
            ("model.save", saves, "do not save a model, whose directions are drawn again without them"),
            ("online", online, "leave out online, which counts data along directions that stay"),
            ("projection.reuse", reuse != 1, "take reuse: 1, as every step has directions of its own"),
        ):
            if fault:
                section = tree.get(key)
                place = tree.location if section is None else section.location
                message = f"{key}: {follows}: {wish}"
                self._faults.append(RecipeError.at(self.origins.get(key, place), message))

    def _choice(self, tree: Mapping, key: str, kind: str) -> Choice:
        node = self._section(tree, key)
        default = DEFAULTS.get(key)
        if default is None and isinstance(node, Mapping) and not node.entries:
            raise self.missing(Mapping(tree.location, {}), key)
        return self.plugin(node, kind, key, default, options(ReuseSection) if key == "projection" else ())

    def plugin(
        self, node: Node, kind: str, path: str, default: str | None = None, extra: Collection[str] = ()
    ) -> Choice:
        """Return the choice that a section makes: a plugin's name, or a mapping with `use` and parameters."""
        node = as_choice(node)
        if not isinstance(node, Mapping):
            raise RecipeError.at(node.location, f"{path} must be the name of a {kind} or a mapping with 'use'")
        use = node.get("use")
        if use is not None:
            self.origins[f"{path}.use"] = use.location
        elif default is not None:
            use = Scalar(node.location, default, default)
        if not isinstance(use, Scalar) or is_null(use):
            known = ", ".join(self.registry.names(kind))
            hint = f"{path} needs 'use', the name of a {kind}; known: {known}"
            raise RecipeError.at(node.location if use is None else use.location, hint)
        self._kinds[path] = kind
        try:
            plugin = self.registry.find(kind, use.raw)
            part = self.object(node, plugin.factory, path, f"{kind} '{use.raw}'", ("use", *extra))
            inside = {
                name: self._chosen.get(id(inner)) or Choice.of(inner, self.registry)
                for name, inner in plugins_below(part)
            }
        except PluginError as error:
            raise RecipeError.at(use.location, str(error)) from None
        return Choice(use.raw, plugin.signed(), part, inside)

    def inner_plugin(self, node: Node, kind: str, path: str) -> Any:
        """Return the object for a parameter that is a plugin itself."""
        choice = self.plugin(node, kind, path)
        self._chosen[id(choice.part)] = choice
        return choice.part

    def _listing(
        self, tree: Mapping, key: str, cls: type[Any], name: str, kind: str
    ) -> tuple[tuple[Choice, ...], Any]:
        """Return the list of plugins in a section, and the section's own keys."""
        section = self._section(tree, key)
        if not isinstance(section, Mapping):
            raise RecipeError.at(section.location, f"{key} must be a mapping with '{name}'")
        listed = partial(self._list, self._section(section, name), kind, f"{key}.{name}")
        chosen, own = self.every([listed, partial(self.object, section, cls, key, "", [name])])
        return chosen, own

    def _list(self, node: Node, kind: str, path: str) -> tuple[Choice, ...]:
        """Return the choices of a list of plugins; none where the key is left out."""
        if isinstance(node, Mapping) and not node.entries:
            return ()
        if not isinstance(node, Items):
            hint = f" (write [{excerpt(node.raw)}])" if isinstance(node, Scalar) else ""
            raise RecipeError.at(node.location, f"{path} must be a list of {kind}s{hint}")
        items = enumerate(node.items)
        return tuple(self.every(partial(self.plugin, item, kind, f"{path}.{index}") for index, item in items))

    def _reuse(self, tree: Mapping) -> Any:
        section = as_choice(self._section(tree, "projection"))
        if not isinstance(section, Mapping):
            raise RecipeError([])  # `_choice` has said so
        return self.object(section, ReuseSection, "projection", "", section.entries)

    @staticmethod
    def _section(tree: Mapping, key: str) -> Node:
        entry = tree.entries.get(key)
        if entry is None:
            return Mapping(tree.location, {})
        return Mapping(entry.location, {}) if is_null(entry.node) else entry.node

    def near(self, key: str, path: str, known: Collection[str]) -> str:
        """Return where an unknown key would be known, else a guess at what it means."""
        others = self._users(self._kinds[path], key) if path in self._kinds else ""
        return others or ("" if path else self._deeper(key)) or did_you_mean(key, known)

    def _users(self, kind: str, key: str) -> str:
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
        named = " or ".join(f"'{section}.{key}'" for section in sorted(sections))
        return f"; did you mean {named}?" if sections else ""
