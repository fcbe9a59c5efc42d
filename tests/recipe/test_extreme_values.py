"""Extreme values of every number that a recipe has: a sentence, or finite samples in a short time."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cswf_core.errors import CswfError
from cswf_core.fields import options
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.recipe.build import build_flow
from cswf_core.recipe.render import to_yaml
from cswf_core.recipe.sections import CHOICES, SECTIONS

WHOLE = (0, 3000, 2**62)
NUMBERS = (-0.0, 1e-320, 1e10, 1e308)

LONG = {"steps", "directions", "scale", "shortest", "per_dimension"}
"""Parameters of which a large value is a long run, as it should be."""

FEW = {"steps": 2, "directions": 5}
RECIPE: dict[str, Any] = {
    "data": {"use": "synthetic", "count": 12, "shape": [3, 8, 8], "classes": 3},
    "particles": {"count": 9},
    "condition": "one-hot",
    "projection": "conv-stack",
    "cdf": {"use": "histogram", "bins": 16},
    "schedule": {"use": "pyramid", "entries": ["(4×4) [3]", "(8×8) [3]"], **FEW},
    "outputs": {"frames": 3},
}
REQUIRED = {"of": "locally-connected", "size": 4, "entries": ["(4×4) [3]"], "target": [{"mean": [0, 0]}], **FEW}


def values(kind: Any, most: float) -> Iterator[Any]:
    """Yield extreme values of a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in (int, float):
        yield from (value for value in (WHOLE if kind is int else NUMBERS) if value <= most)
    elif origin in (typing.Union, types.UnionType):
        for member in arguments:
            yield from values(member, most)
    elif origin is tuple:
        length = 3 if Ellipsis in arguments else len(arguments)
        yield from ([value] * length for value in values(arguments[0], most))


def recipes(registry: Registry) -> Iterator[dict[str, Any]]:
    """Yield small recipes, each with an extreme value of one parameter."""
    sections = {kind: key for key, kind in CHOICES.items()}
    for plugin in registry.plugins:
        kind, name = plugin.owner.kind, plugin.owner.name
        known = options(plugin.factory)
        if kind not in sections or "path" in known or "download" in known or "crop" in known:
            continue
        needed = {key: REQUIRED[key] for key, option in known.items() if option.required}
        needed |= FEW if kind == "schedule" else {}
        needed |= {"count": 12} if kind == "dataset" and "count" in known else {}
        for key, option in known.items():
            for value in values(option.type, 100 if key in LONG else np.inf):
                plain = {"projection": "uniform", "condition": "none", "schedule": {"use": "constant", **FEW}}
                others = plain if kind == "dataset" else {}
                yield {**RECIPE, sections[kind]: {"use": name, **needed, key: value}, **others}
    for section, cls in SECTIONS.items():
        for key, option in options(cls).items():
            for value in values(option.type, np.inf):
                chosen = {"save": True} if section == "model" else {}
                yield {**RECIPE, section: {**RECIPE.get(section, {}), **chosen, key: value}}


@pytest.mark.parametrize(
    "change",
    [
        "particles.clip=1e200",
        "particles.scale=1e-320",
        "particles.scale=1e308",
        "projection.dilation=50",
        "projection.dilation=1048577",
        "projection={use: locally-connected, patch: 1023, covering: placed}",
        "projection={use: conv-stack, patch: 1025, covering: placed}",
        "projection={use: conv-stack, width: 1000000}",
        "projection={use: conv-stack, power: 1e308}",
        "projection={use: max-sliced, rounds: 4611686018427387904}",
        "condition.room=2147483648",
        "condition.prior=[1e-320, 1e-320, 1e-320]",
        "condition.prior=[1e308, 1e308, 1e308]",
        "condition.amplifier=1e308",
        "schedule.scale=1e-308",
        "schedule.scale=1e308",
        "schedule.factor=1e-320",
        "schedule.factor=1e308",
        "schedule.step_size=1e-308",
        "schedule.step_size=1e308",
        "schedule.directions={per_dimension: 1e308}",
        "schedule.entries=['(4×4) [3] dilation=4611686018427387904']",
        "schedule.entries=['(4×4) [4611686018427387904]']",
        "coordinates={use: whitened, floor: 1e-320}",
        "coordinates={use: whitened, floor: 1e308}",
    ],
)
def test_an_extreme_value_is_refused_in_a_sentence_or_gives_finite_samples(registry, change):
    try:
        samples = build_flow(load_recipe(RECIPE, [change], registry=registry), device="cpu").run()
    except CswfError as error:
        sentence = str(error)
        assert "raised" not in sentence
        assert len(sentence) < 700
    else:
        assert bool(torch.isfinite(samples.x).all())


@pytest.mark.slow
def test_no_extreme_value_of_any_parameter_hangs_or_ends_in_a_traceback(apart, registry, tmp_path):
    wrong = [(fault_of(apart, recipe, tmp_path), recipe) for recipe in recipes(registry)]
    assert [(fault, recipe) for fault, recipe in wrong if fault] == []


def fault_of(apart, recipe: dict[str, Any], folder: Path) -> str:
    """Run a recipe for 20 seconds at most; return what is wrong with how it ends."""
    file = folder / "extreme.yaml"
    file.write_text(to_yaml(recipe), encoding="utf-8")
    options = ("--device", "cpu", "--quiet", "--force", "--out", folder / "run")
    done = apart.completed("run", file, *options, timeout=20)
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr or "unexpected" in done.stderr:
        return f"{done.returncode}: {done.stderr[-300:]}"
    if done.returncode:
        return ""
    with np.load(folder / "run/samples.npz") as arrays:
        finite = all(np.isfinite(array).all() for array in arrays.values())
    return "" if finite else "samples that are not finite"
