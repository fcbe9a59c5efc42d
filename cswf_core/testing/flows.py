"""Short flows around a plugin: that they come nearer to the data, go on to the bit, and can be sampled from."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch

from cswf_core.checks import ADAPTERS, Adapter
from cswf_core.flow.flow import Flow
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import Dataset, Owner
from cswf_core.model import Model
from cswf_core.model.format import ModelHeader
from cswf_core.model.model import header_file
from cswf_core.model.writer import ModelWriter
from cswf_core.plugins import KINDS, Plugin, Registry
from cswf_core.plugins.registry import LOAD_ONLY, NAME, PluginRegister
from cswf_core.recipe import Choice, Recipe, build_flow, choose, load_recipe
from cswf_core.recipe.citations import references_of
from cswf_core.testing.outcome import FaultError, SkipError, Subject
from cswf_core.testing.samples import Held, distance_by_condition

STEPS = 8
DIRECTIONS = 192
"""K and H of a short flow."""

NEARER = 0.9
"""A short flow leaves at most this share of the distance to the data."""

RETRACED = 0.1
"""How far particles of a saved model may be from those of the run, in parts of how far these have moved."""

LIKE = 0.86
"""How alike a name and a misspelling of it are at least: `encode` and `encod` are 0.91."""

ENDINGS = ("s", "es", "d", "ed", "r", "er")
"""What a name may have more than one of the contract, or less, and be another word: `weight`, `conditions`."""

KEYS = {"dataset": "data", "observer": "observers"}
"""Kinds whose plugins have another name in a recipe."""

LISTS = ("observer",)
"""Kinds of which a recipe has several."""


@cache
def built_ins() -> Registry:
    """Return the built-in plugins, which come through the entry-point door: a kit knows them by name only."""
    return Registry.discover(environment={LOAD_ONLY: ""})


def built_in(kind: str, text: str) -> Any:
    """Return a built-in plugin as a recipe writes it: `uniform`, or `{use: constant, steps: 3}`."""
    return choose(built_ins(), kind, text, "the kit").part


def choice_of(kind: str, plugin: Any) -> Choice:
    """Return a plugin as a recipe's choice; parameters that are plugins themselves are choices inside it."""
    part = plugin.plugin if isinstance(plugin, Adapter) else plugin
    own = plugin.owner if isinstance(plugin, Adapter) else _owner(kind, part)
    inner = {}
    for field in attrs.fields(type(part)):
        value = getattr(part, field.name)
        for other, contract, _ in ADAPTERS:
            if field.init and isinstance(value, contract):
                inner[field.name] = choice_of(other, value)
    return Choice(own.name, Plugin(own, type(part)), part, inner)


def _owner(kind: str, part: object) -> Owner:
    same = (plugin.owner for plugin in built_ins().plugins if plugin.factory is type(part))
    return next(same, Owner.of(kind, part))


def registry_with(*choices: Choice) -> Registry:
    """Return the built-in plugins together with chosen ones and those inside them."""
    registry = Registry()
    registry.plugins = list(built_ins().plugins)
    registry.distributions = dict(built_ins().distributions)
    known = {plugin.factory for plugin in registry.plugins}
    for choice in choices:
        others = (each.plugin for each in choice.by_path("").values())
        registry.plugins += [plugin for plugin in others if plugin.factory not in known]
    return registry


def recipe_with(kind: str, plugin: Any, data: Dataset, **sections: Any) -> Recipe:
    """Return the recipe of a short flow to `data` with one plugin in its place, or none for a kind ''."""
    chosen: dict[str, Any] = {"data": choice_of("dataset", Held(data))}
    if kind:
        choice = choice_of(kind, plugin)
        chosen[KEYS.get(kind, kind)] = (choice,) if kind in LISTS else choice
    whole: dict[str, Any] = {
        "data": "digits",  # in whose place the data are put
        "particles": {"count": len(data)},
        "cdf": "sorted",
        "schedule": {"use": "constant", "steps": STEPS, "directions": DIRECTIONS},
        "outputs": {"frames": 0, "checkpoint_every": "never"},
        "model": {"knots": 64, "dtype": "float32"},
        **sections,
    }
    if whole["schedule"]["use"] != "constant":
        whole.setdefault("projection", "conv-stack")  # one with patches, until the plugin takes its place
    return attrs.evolve(load_recipe(whole, registry=built_ins()), **chosen)


def flow_of(recipe: Recipe, *observers: object) -> Flow:
    """Return a recipe's flow on the CPU."""
    return build_flow(recipe, device="cpu", observers=observers)


def require_nearer(recipe: Recipe) -> str:
    """Raise `FaultError` unless the flow comes nearer to the data; return by how much, in words."""
    flow = flow_of(recipe)
    before = distance_by_condition(flow.samples(), flow.balanced_data)
    end = flow.run()
    after = distance_by_condition(end, flow.balanced_data)
    steps = flow.position.total
    if not after <= NEARER * before:
        raise FaultError(
            f"a flow of {steps} steps that leaves at most {NEARER:.0%} of the sliced distance to the data",
            f"{after:.3g} after {before:.3g}",
        )
    return f"sliced distance {before:.3g}, after {steps} steps {after:.3g}"


def require_resumed(recipe: Recipe) -> None:
    """Raise `FaultError` unless a flow that is stopped half-way goes on, built anew, to the same bits."""
    whole = flow_of(recipe)
    states = sum(1 for _ in whole)
    first, second = flow_of(recipe), flow_of(recipe)
    for _ in islice(first, states // 2):
        pass
    stopped = first.snapshot()
    facts = json.loads(json.dumps(stopped.facts()))
    second.restore(Snapshot.of({k: t.clone() for k, t in stopped.tensors().items()}, facts))
    expected, got = whole.samples().x, second.run().x
    if not torch.equal(expected, got):
        apart = float((expected - got).abs().max())
        raise FaultError(
            f"the same bits from a flow that was stopped after {states // 2} of {states} steps and built anew",
            f"values up to {apart:.3g} apart",
        )


@contextmanager
def saved_model(recipe: Recipe) -> Iterator[tuple[Model, Dataset, Dataset]]:
    """Run a flow that saves its model; yield that, where particles began and where they ended."""
    recipe = attrs.evolve(recipe, model=attrs.evolve(recipe.model, save=True))
    with tempfile.TemporaryDirectory(prefix="cswf-kit-") as folder:
        place = Path(folder) / "model"
        flow = flow_of(recipe, ModelWriter(place, recipe))
        begin = flow.samples()
        end = flow.run()
        file = header_file(place)
        yield Model(file.parent, ModelHeader.read(file), recipe), begin, end


def require_retraced(recipe: Recipe) -> None:
    """Raise `FaultError` unless a saved model takes the run's particles where the run took them."""
    with saved_model(recipe) as (model, begin, end):
        again = model.retrace(device="cpu")
    moved, apart = ((end.x - other.x).square().mean().sqrt() for other in (begin, again))
    if not float(apart) <= RETRACED * float(moved):
        raise FaultError(
            "a saved model that draws the run's directions again, and takes its particles to the same places",
            f"particles {float(apart):.3g} apart that have moved by {float(moved):.3g}",
        )


def _registered(subject: Subject) -> str:
    """Return a name for the class: its own, or any if it has none that recipes could write."""
    return subject.owner.name if NAME.fullmatch(subject.owner.name) else "plugin"


def the_registry_takes_the_class(subject: Subject) -> None:
    """A `register_…` hook can offer it: it is a class of its contract, made by attrs, with typed parameters."""
    register = PluginRegister(subject.owner, KINDS[subject.kind][1])
    register(_registered(subject), type(getattr(subject.checked, "plugin", subject.plugin)))


def parameters_come_back_from_yaml(subject: Subject) -> None:
    """A run's record and a saved model have the plugin as text, and make it again from that."""
    choice = choice_of(subject.kind, subject.plugin)
    text = json.dumps(choice.plain(), ensure_ascii=False)
    again = choose(registry_with(choice), subject.kind, text, "its parameters").plain()
    if again != choice.plain():
        raise FaultError(f"the parameters {text} to be read as they were written", f"{again}")


def references_are_bibtex_entries(subject: Subject) -> None:
    """`cswf cite` can print the works that the plugin names, if it names any."""
    references_of(choice_of(subject.kind, subject.plugin))


def no_name_is_a_misspelling(subject: Subject) -> None:
    """No method or flag is named nearly as one of the contract's that the class leaves alone."""
    cls = type(getattr(subject.checked, "plugin", subject.plugin))
    ours = [base for base in cls.__mro__ if base.__module__.startswith("cswf_core.interfaces.")]
    theirs = [base for base in cls.__mro__ if base not in ours and base.__module__ not in ("abc", "builtins")]
    known, own = ({name for base in bases for name in vars(base) if name[0] != "_"} for bases in (ours, theirs))
    for name in sorted(own - known - {field.name for field in attrs.fields(cls)}):
        for meant in difflib.get_close_matches(name, sorted(known - own), n=1, cutoff=LIKE):
            short, long = sorted((name, meant), key=len)
            if long.removeprefix(short) not in ENDINGS:
                expected = f"`{meant}`, which the engine asks for"
                raise FaultError(expected, f"`{name}`, which it does not: rename it, or excuse this in a test")


SHARED = (
    the_registry_takes_the_class,
    parameters_come_back_from_yaml,
    references_are_bibtex_entries,
    no_name_is_a_misspelling,
)
"""Checks of every kind."""


class InFlows(Protocol):
    """A subject that is a part of flows."""

    def recipe(self) -> Recipe:
        """Return the recipe of a short flow with it."""


def a_short_flow_comes_nearer_to_the_data(subject: InFlows) -> str:
    """The plugin works in a flow: particles come nearer to the data in a few steps."""
    return require_nearer(subject.recipe())


def a_resumed_flow_has_the_same_bits(subject: InFlows) -> None:
    """A flow that was stopped in the middle and built anew ends with the bits of one that was not stopped."""
    require_resumed(subject.recipe())


def a_saved_model_retraces_the_flow(subject: InFlows) -> None:
    """A model saved during the flow needs nothing but keys to draw the same directions again."""
    recipe = subject.recipe()
    if recipe.projection.checked.adapts:
        raise SkipError("its directions follow the particles, which a model has not: runs refuse to save one")
    require_retraced(recipe)


IN_A_FLOW = (
    a_short_flow_comes_nearer_to_the_data,
    a_resumed_flow_has_the_same_bits,
    a_saved_model_retraces_the_flow,
)
"""Checks of every kind that is a part of flows."""
