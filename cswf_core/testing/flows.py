"""Tiny data, and short flows to them around a plugin, with the checks that all kinds of plugins share."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Sequence
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor

from cswf_core.checks import ADAPTERS, Adapter
from cswf_core.flow.flow import Flow
from cswf_core.flow.state import Snapshot
from cswf_core.interfaces import Conditions, Dataset, DatasetSource, Draw, Key, Owner, Space
from cswf_core.model import Model
from cswf_core.model.format import ModelHeader
from cswf_core.model.model import header_file
from cswf_core.model.writer import ModelWriter
from cswf_core.plugins import KINDS, Plugin, Registry
from cswf_core.plugins.registry import LOAD_ONLY, NAME, PluginRegister
from cswf_core.recipe import Choice, Recipe, build_flow, choose, load_recipe
from cswf_core.recipe.citations import references_of
from cswf_core.testing.outcome import A, Check, FaultError, SkipError, Subject, require, takeable

GREY = Space((1, 8, 8))
COLOUR = Space((3, 8, 8))
POINTS = Space((6,))
"""The spaces that most checks look at."""


CLASSES = ("a", "b", "c")
"""Those of samples that have labels."""


def samples(space: Space, count: int = 48) -> Dataset:
    """Return samples with all that a condition may ask for: labels, vectors of length 2, held-out ones.

    Each class has a mean of its own, and x follows the vectors too. Values lie within (−1, 1).
    """
    return attrs.evolve(_some(space, count, "samples"), held_out=_some(space, 12, "held-out samples"))


def _some(space: Space, count: int, role: str) -> Dataset:
    x, labels, vectors = (numbers.clone() for numbers in _numbers(space, count, role))
    return Dataset(x, space, Conditions(labels, vectors, torch.arange(count)), CLASSES)


@cache
def _numbers(space: Space, count: int, role: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, labels and vectors of samples, drawn once, as most checks want them; a plugin gets copies."""
    draw = Key(0, role).open(dtype=torch.float64)
    patterns = Key(0, "patterns").open(dtype=torch.float64).normal(space.dimension, len(CLASSES) + 2)
    labels = torch.arange(count) % len(CLASSES)
    vectors = draw.uniform(2, count) - 0.5
    mean = 0.25 * patterns[:, labels] + 0.25 * patterns[:, len(CLASSES) :] @ vectors
    x = (mean + 0.2 * draw.normal(space.dimension, count)).tanh().float()
    return x, labels, vectors.float()


def bare(data: Dataset) -> Dataset:
    """Return the samples without labels, vectors and held-out ones."""
    return attrs.evolve(data, conditions=Conditions(), classes=(), held_out=None)


@attrs.define(init=False, eq=False, slots=False)
class Held(DatasetSource):
    """A source of data that are there already."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def load(self, draw: Draw) -> Dataset:
        """Return the data in the draw's numbers."""
        held_out = self.data.held_out
        if held_out is not None:
            held_out = attrs.evolve(held_out, x=held_out.x.to(draw.dtype))
        return attrs.evolve(self.data, x=self.data.x.to(draw.dtype), held_out=held_out)


def distance(x: Tensor, y: Tensor) -> float:
    """Return the sliced distance SW₂ between two sets of samples (d×n and d×m), in float64."""
    theta = Key(0, "sliced distance").open(dtype=torch.float64).sphere(200, len(x))
    levels = (torch.arange(64, dtype=torch.float64) + 0.5) / 64  # of the quantiles that are compared
    p, q = (torch.quantile(theta @ each.double(), levels, dim=1) for each in (x, y))
    return float((p - q).square().mean().sqrt())


def distance_by_condition(generated: Dataset, real: Dataset) -> float:
    """Return SW₂ of samples beside their conditions, or the mean over classes where they have labels."""
    mine = generated.conditions
    theirs = real.conditions
    if mine.labels is not None and theirs.labels is not None:
        each = [
            distance(generated.x[:, mine.labels == label], real.x[:, theirs.labels == label])
            for label in torch.unique(mine.labels).tolist()
        ]
        return sum(each) / len(each)
    if mine.vectors is not None and theirs.vectors is not None:
        joint = [torch.cat([s.x.double(), s.conditions.vectors.double()]) for s in (generated, real)]  # type: ignore[union-attr]
        return distance(*joint)
    return distance(generated.x, real.x)


@cache
def built_ins() -> Registry:
    """Return the built-in plugins, which come through the entry-point door: a kit knows them by name only."""
    return Registry.discover(environment={LOAD_ONLY: ""})


def choice_of(kind: str, plugin: Any) -> Choice:
    """Return a plugin as a recipe's choice; parameters that are plugins themselves are choices inside it."""
    part = plugin.plugin if isinstance(plugin, Adapter) else plugin
    if isinstance(plugin, Adapter):
        own = plugin.owner
    else:
        same = (each.owner for each in built_ins().plugins if each.factory is type(part))
        own = next(same, Owner.of(kind, part))
    inner = {}
    for field in attrs.fields(type(part)):
        value = getattr(part, field.name)
        for other, contract, _ in ADAPTERS:
            if field.init and isinstance(value, contract):
                inner[field.name] = choice_of(other, value)
    return Choice(own.name, Plugin(own, type(part)), part, inner)


def recipe_with(kind: str, plugin: Any, data: Dataset, **sections: Any) -> Recipe:
    """Return the recipe of a short flow to `data` with one plugin in its place, or none for a kind ''."""
    chosen: dict[str, Any] = {"data": choice_of("dataset", Held(data))}
    if kind:
        choice = choice_of(kind, plugin)
        chosen |= {"observers": (choice,)} if kind == "observer" else {kind: choice}
    whole: dict[str, Any] = {
        "data": "digits",  # in whose place the data are put
        "particles": {"count": len(data)},
        "cdf": "sorted",
        "schedule": constant(192),
        "outputs": {"frames": 0, "checkpoint_every": "never"},
        "model": {"knots": 65, "bits": 16},
        **sections,
    }
    if whole["schedule"]["use"] != "constant":
        whole.setdefault("projection", "conv-stack")  # one with patches, until the plugin takes its place
    return attrs.evolve(load_recipe(whole, registry=built_ins()), **chosen)


def constant(directions: int) -> dict[str, Any]:
    """Return the schedule of a short flow."""
    return {"use": "constant", "steps": 5, "directions": directions}


def flow_of(recipe: Recipe, *observers: object) -> Flow:
    """Return a recipe's flow on the CPU."""
    return build_flow(recipe, device="cpu", observers=observers)


def flowed(recipe: Recipe) -> tuple[Dataset, Flow]:
    """Return where a recipe's particles begin, and its flow after the last step."""
    flow = flow_of(recipe)
    begin = flow.samples()
    flow.run()
    return begin, flow


def require_nearer(begin: Dataset, flow: Flow) -> str:
    """Raise `FaultError` unless a flow has come nearer to the data; return by how much, in words."""
    before = distance_by_condition(begin, flow.balanced_data)
    after = distance_by_condition(flow.samples(), flow.balanced_data)
    steps = flow.position.total
    nearer = 0.9
    require(
        after <= nearer * before,
        f"a flow of {steps} steps that leaves at most {nearer:.0%} of the sliced distance to the data",
        f"{after:.3g} after {before:.3g}",
    )
    return f"sliced distance {before:.3g}, after {steps} steps {after:.3g}"


def the_registry_takes_the_class(subject: Subject[Any]) -> None:
    """A `register_…` hook can offer it: it is a class of its contract, made by attrs, with typed parameters."""
    register = PluginRegister(subject.owner, KINDS[subject.kind][1])
    name = subject.owner.name if NAME.fullmatch(subject.owner.name) else "plugin"
    register(name, type(subject.checked.plugin))


def parameters_come_back_from_yaml(subject: Subject[Any]) -> None:
    """A run's record and a saved model have the plugin as text, and make it again from that."""
    choice = choice_of(subject.kind, subject.plugin)
    text = json.dumps(choice.plain(), ensure_ascii=False)
    registry = Registry()
    registry.plugins = list(built_ins().plugins)
    registry.distributions = dict(built_ins().distributions)
    known = {plugin.factory for plugin in registry.plugins}
    inside = (each.plugin for each in choice.by_path("").values())
    registry.plugins += [plugin for plugin in inside if plugin.factory not in known]
    again = choose(registry, subject.kind, text, "its parameters").plain()
    require(again == choice.plain(), f"the parameters {text} to be read as they were written", again)


def references_are_bibtex_entries(subject: Subject[Any]) -> None:
    """`cswf cite` can print the works that the plugin names, if it names any."""
    references_of(choice_of(subject.kind, subject.plugin))


def no_name_is_a_misspelling(subject: Subject[Any]) -> None:
    """No method or flag is named nearly as one of the contract's that the class leaves alone."""
    cls = type(subject.checked.plugin)
    ours = [base for base in cls.__mro__ if base.__module__.startswith("cswf_core.interfaces.")]
    theirs = [base for base in cls.__mro__ if base not in ours and base.__module__ not in ("abc", "builtins")]
    known, own = ({name for base in bases for name in vars(base) if name[0] != "_"} for bases in (ours, theirs))
    for name in sorted(own - known - {field.name for field in attrs.fields(cls)}):
        # `encode` and `encod` are alike by 0.91; a word with another ending, as `weight`, is one of its own.
        for meant in difflib.get_close_matches(name, sorted(known - own), n=1, cutoff=0.86):
            short, long = sorted((name, meant), key=len)
            require(
                long.removeprefix(short) in ("s", "es", "d", "ed", "r", "er"),
                f"`{meant}`, which the engine asks for",
                f"`{name}`, which it does not: rename it, or excuse this in a test",
            )


SHARED = (
    the_registry_takes_the_class,
    parameters_come_back_from_yaml,
    references_are_bibtex_entries,
    no_name_is_a_misspelling,
)
"""Checks of every kind."""


def a_short_flow_comes_nearer_to_the_data(subject: FlowSubject[Any]) -> str:
    """The plugin works in a flow: particles come nearer to the data in a few steps."""
    return require_nearer(*subject.flowed)


def a_resumed_flow_has_the_same_bits(subject: FlowSubject[Any]) -> None:
    """A flow that was stopped in the middle and built anew ends with the bits of one that was not stopped."""
    _, whole = subject.flowed
    steps = whole.position.total
    first = flow_of(subject.recipe())
    for _ in islice(first, steps // 2):
        pass
    stopped = first.snapshot()
    facts = json.loads(json.dumps(stopped.facts()))
    second = flow_of(subject.recipe())
    second.restore(Snapshot.of({k: t.clone() for k, t in stopped.tensors().items()}, facts))
    expected = whole.samples().x
    got = second.run().x
    require(
        torch.equal(expected, got),
        f"the same bits from a flow that was stopped after {steps // 2} of {steps} steps and built anew",
        f"values up to {float((expected - got).abs().max()):.3g} apart",
    )


def a_saved_model_retraces_the_flow(subject: FlowSubject[Any]) -> None:
    """A model saved during the flow needs nothing but keys to draw the same directions again."""
    recipe = subject.recipe()
    if recipe.projection.checked.adapts:
        raise SkipError("its directions follow the particles, which a model has not: runs refuse to save one")
    if recipe.projection.checked.lacking is not None:
        raise SkipError("it has no `of_tensors`, so models cannot be saved with it")
    recipe = attrs.evolve(recipe, model=attrs.evolve(recipe.model, save=True))
    with tempfile.TemporaryDirectory(prefix="cswf-kit-") as folder:
        place = Path(folder) / "model"
        flow = flow_of(recipe, ModelWriter(place, recipe))
        begin = flow.samples()
        end = flow.run()
        file = header_file(place)
        again = Model(file.parent, ModelHeader.read(file), recipe).retrace(device="cpu")
    moved, apart = (float((end.x - other.x).square().mean().sqrt()) for other in (begin, again))
    require(
        apart <= 0.1 * moved,  # a model's tables are rounded, and have few knots
        "a saved model that draws the run's directions again, and takes its particles to the same places",
        f"particles {apart:.3g} apart that have moved by {moved:.3g}",
    )


class FlowSubject(Subject[A]):
    """A plugin that is a part of flows."""

    in_flows: ClassVar[Sequence[Check]] = (
        a_short_flow_comes_nearer_to_the_data,
        a_resumed_flow_has_the_same_bits,
        a_saved_model_retraces_the_flow,
    )

    def recipe(self) -> Recipe:
        """Return the recipe of a short flow with the plugin."""
        raise NotImplementedError

    @cached_property
    def flowed(self) -> tuple[Dataset, Flow]:
        """Where the particles of this flow begin, and the flow after its last step."""
        return flowed(self.recipe())


class SpaceSubject(FlowSubject[A]):
    """A plugin that is tried in several spaces, or in those that the test names."""

    spaces: Sequence[Space] = (GREY, COLOUR, POINTS)
    wanted: ClassVar[str]
    """What there has to be in one of them, in words."""

    def __init__(self, plugin: Any, spaces: Sequence[Space] | None = None) -> None:
        super().__init__(plugin)
        self.chosen = spaces is not None
        if spaces is not None:
            self.spaces = tuple(spaces)

    def attempt(self, space: Space) -> object:
        """Use the plugin in a space; raise `DataError` if it refuses that."""
        raise NotImplementedError

    @cached_property
    def usable(self) -> list[Space]:
        """The spaces that the plugin takes."""
        wanted = f"{self.wanted} one of {', '.join(map(str, self.spaces))}"
        return list(takeable(self.spaces, self.attempt, partial(FaultError, wanted)))
