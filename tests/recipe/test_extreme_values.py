"""Extreme values of every number that a recipe has: a sentence, or finite samples in a short time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cswf_core.errors import CswfError
from cswf_core.recipe import load_recipe
from cswf_core.recipe.build import build_flow

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
