"""Every key that a recipe may have besides the plugins' own parameters, and the JSON Schema of recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import attrs

from cswf_core.fields import object_schema
from cswf_core.flow.settings import DEFAULTS
from cswf_core.interfaces import parameter
from cswf_core.interfaces.contract import Interval
from cswf_core.plugins import Registry

CHOICES = {
    "data": "dataset",
    "condition": "condition",
    "projection": "projection",
    "cdf": "cdf",
    "schedule": "schedule",
    "coordinates": "coordinates",
}
"""Top-level keys that choose a plugin → the plugin's kind."""

KEYS = (
    *("name", "description", "extends", "seed", "data", "particles", "condition", "projection", "cdf"),
    *("schedule", "coordinates", "outputs", "observers", "model", "online", "evaluate", "variants"),
)
"""Top-level keys."""


@attrs.frozen(kw_only=True)
class HeadSection:
    """The top-level keys `name`, `description` and `seed`."""

    name: str = parameter("what the recipe is called; the file's name if left out", default="")
    description: str = parameter("what it is for, in a sentence", default="")
    seed: int = parameter("where all randomness comes from", default=0, at_least=0, at_most=2**63 - 1)


@attrs.frozen(kw_only=True)
class ParticlesSection:
    """The keys of `particles:`."""

    count: int | None = parameter(
        "M; as many as there are data if left out", default=None, at_least=1, at_most=2**40
    )
    offline: int = parameter(
        "particles besides those M that are carried along and take no part in F_p: the paper's offline samples",
        default=0,
        at_least=0,
        at_most=2**40,
    )
    scale: float = parameter(
        "with start: noise, particles begin as N(0, scale² I); the released code has 0.1",
        default=1.0,
        above=0,
    )
    start: Literal["noise", "gaussian"] = parameter(
        "what particles begin as: 'noise' of that scale, or a 'gaussian' with the data's mean and covariance; "
        "where they have labels, with the mean of their class",
        default="noise",
    )
    clip: float | None = parameter(
        "coordinates are kept in [−clip, clip] after every step; the released code has 1 for CelebA",
        default=None,
        above=0,
        at_most=1e30,
    )
    precision: Literal["auto", "fast", "float32", "float64"] = parameter(
        "numbers to compute in: float32, float64, or 'fast', which on CUDA has products in half precision with "
        "float32 sums and is float32 elsewhere; 'auto' is fast",
        default="auto",
    )


@attrs.frozen(kw_only=True)
class ReuseSection:
    """The key of `projection:` besides the plugin's own parameters."""

    reuse: int | Literal["all"] = parameter(
        "for how many steps a set of directions is kept; 'all' keeps one for a whole stage",
        default=1,
        at_least=1,
    )


@attrs.frozen(kw_only=True)
class OutputsSection:
    """The keys of `outputs:`."""

    log_every: int = parameter("steps between two rows of metrics.jsonl", default=10, at_least=1)
    columns: int = parameter("samples in a row of samples.png", default=10, at_least=1, at_most=100)
    snapshots: tuple[int, ...] = parameter(
        "steps at which flow.png shows the particles; 0 is the start", default=()
    )
    frames: int = parameter(
        "moments of the flow that frames.npz, flow.gif and the report show; 0 for none",
        default=24,
        at_least=0,
        at_most=1000,
    )
    checkpoint_every: Interval = parameter(
        "when the run is saved so that it can go on after a kill: every 500 steps, every 10min, or never; also "
        "where stages end, unless that took more than a twentieth of the time",
        default=Interval.from_text("10min"),
    )


@attrs.frozen(kw_only=True)
class EvaluateSection:
    """The keys of `evaluate:` besides its list of metrics."""

    against: tuple[Literal["train", "test"], ...] = parameter(
        "real samples to compare with: those the flow saw, held-out ones (their scores end in _test), or both",
        default=("train",),
    )
    samples: int = parameter(
        "how many of the generated samples are scored, at most; drawn at random if there are more",
        default=50000,
        at_least=1,
    )
    weights: Path | None = parameter(
        "the feature network's file; where it is looked for otherwise, see the docs", default=None
    )
    download: bool = parameter("fetch the feature network if it is not there, and say so", default=True)
    seed: int = parameter(
        "seed of the evaluation's own choices: random subsets, directions, classifiers. It is not that of the "
        "flow, so that runs with other seeds are measured alike",
        default=0,
        at_least=0,
        at_most=2**63 - 1,
    )
    copying: bool = parameter(
        "look for copies of training images, whichever metrics are listed; of data other than images never",
        default=True,
    )


def _odd(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value % 2 == 0:
        raise ValueError(f"{attribute.name} must be an odd number, such as {value + 1}, got {value}")


@attrs.frozen(kw_only=True)
class ModelSection:
    """The keys of `model:`, the transport maps of all steps, from which samples can be drawn later."""

    save: bool = parameter("whether the run writes a model, as it goes", default=False)
    knots: int = parameter(
        "K, odd: at how many places each direction's map is kept; for each class, if there are classes",
        default=13,
        at_least=3,
        at_most=1025,
        validator=_odd,
    )
    bits: Literal[4, 8, 16] = parameter("bits of each of these values", default=4)
    turn: int | None = parameter(
        "steps after which the other half of the particles takes over in F_p, so that new samples "
        "drift less; without it all particles take part at every step",
        default=None,
        at_least=1,
    )


@attrs.frozen(kw_only=True)
class OnlineSection:
    """The keys of `online:` besides its list of arrivals."""

    sets: int = parameter(
        "sets of directions in each stage, used in turn; the data are counted along these and no others",
        default=64,
        at_least=1,
        at_most=4096,
    )
    steps: int | tuple[int | tuple[int, ...] | None, ...] | None = parameter(
        "K of each stage after data have arrived: a number, or a list with one for each arrival, perhaps a "
        "list itself, with one for each stage; the schedule's own if left out",
        default=None,
        at_least=1,
    )

    def steps_after(self, arrival: int) -> int | tuple[int, ...] | None:
        """Return K of all stages, or of each, after an arrival; a list's last holds for all that follow."""
        if isinstance(self.steps, tuple):
            return self.steps[min(arrival, len(self.steps) - 1)] if self.steps else None
        return self.steps


SECTIONS = {"particles": ParticlesSection, "outputs": OutputsSection, "model": ModelSection}
"""Top-level keys that have no plugin below them → the keys there."""


def recipe_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON Schema of recipes, for editors, with all plugins that are loaded.

    Nothing is required: a recipe may extend another.
    """
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    sections = {
        **object_schema(HeadSection)["properties"],
        "extends": {**names, "description": "a recipe's name or path, or a list of them, to build on"},
        "observers": _optional({"type": "array", "items": {"$ref": "#/$defs/observer"}}),
        "online": _listing(OnlineSection, "arrivals", "dataset"),
        "evaluate": _listing(EvaluateSection, "metrics", "metric"),
        "variants": {
            "type": "object",
            "description": "changes to this recipe by label, run side by side by `cswf sweep`",
            "additionalProperties": {"type": "object"},
        },
        **{key: _optional(object_schema(cls)) for key, cls in SECTIONS.items()},
        **{key: {"$ref": f"#/$defs/{kind}"} for key, kind in CHOICES.items()},
    }
    for key, name in DEFAULTS.items():
        sections[key] = {**sections[key], "default": name}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
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
    extra = object_schema(ReuseSection)["properties"] if kind == "projection" else {}
    names = []
    mappings = []
    for plugin in registry.plugins:
        owner = plugin.owner
        if owner.kind == kind:
            own = list(dict.fromkeys((registry.name_of(owner), f"{owner.distribution}:{owner.name}")))
            described = object_schema(plugin.factory, registry.written)
            properties = {"use": {"enum": own}, **described["properties"], **extra}
            names += own
            mappings.append(
                described | {"properties": properties, "required": [], "description": plugin.summary}
            )
    return {"anyOf": [{"enum": names}, *mappings, {"type": "null"}]}


def _optional(described: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [described, {"type": "null"}]}
