"""Sampling on a GPU: half precision ends where float32 does, and bits do not depend on how many are drawn."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch

from cswf_core.interfaces import Conditions
from cswf_core.model import load_model
from cswf_core.model.requests import SampleRequest
from cswf_core.model.shards import ShardJob, write_shards
from cswf_core.model.writer import ModelWriter
from cswf_core.recipe import build_flow, load_recipe
from tests.model.conftest import WHITENED

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

PYRAMID = (
    "schedule={use: pyramid, entries: ['(4×4) [3]', '(8×8) [3]', '(16×16) [5]'], steps: 20, directions: 600}"
)
IMAGES = "data={use: synthetic, count: 4000, shape: [3, 16, 16], classes: 5}"
CASES = {
    "no condition": ("condition=none",),
    "labels": ("condition=one-hot",),
    "classes apart": ("condition=separate",),
    "whitened": ("condition=none", *WHITENED),
    "clipped": ("condition=none", "particles.clip=0.9"),
    "entropy": ("condition=none", "schedule={use: constant, steps: 20, directions: 600, entropy: 0.0001}"),
    "many bits": ("condition=none", "model.bits=16"),
    "directions kept": ("condition=none", "projection.reuse=4"),
}


def test_particles_carried_along_and_samples_of_their_model_agree_after_thousands_of_steps(tmp_path):
    """To the bit, as there are whole groups of 4,096 particles."""
    changes = ("schedule.steps=100", "particles.count=4096", "particles.offline=4096", "data={use: synthetic}")
    recipe = load_recipe("cifar10-model", changes)
    flow = build_flow(recipe, device="cuda", observers=[ModelWriter(tmp_path / "model", recipe)])
    start = flow.offline_samples().x
    flow.run()
    model = load_model(tmp_path / "model")
    assert model.header.steps > 2000
    request = SampleRequest(lambda _: Conditions(), 4096, seed=0, start=start)
    sampled = model._samples(request, model.flow(torch.device("cuda")), None)
    assert torch.equal(sampled.x, flow.offline_samples().x)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_half_precision_ends_where_float32_does_and_bits_do_not_depend_on_the_count(case, tmp_path):
    changes = (IMAGES, PYRAMID, "projection=conv-stack", "particles.count=4000", "model.save=true")
    recipe = load_recipe("digits", [*changes, "model.knots=13", *case])
    build_flow(recipe, device="cuda", observers=[ModelWriter(tmp_path / "model", recipe)]).run()
    model = load_model(tmp_path / "model")
    single = attrs.evolve(model.recipe.particles, precision="float32")
    exact = attrs.evolve(model, recipe=attrs.evolve(model.recipe, particles=single))
    one, other = exact.sample(3000, device="cuda"), model.sample(3000, device="cuda")
    assert model.flow(torch.device("cuda")).half
    gap = (one.x - other.x).square().mean().sqrt()
    assert float(gap) < 0.02 * float(one.x.std())
    assert float(other.x.std()) == pytest.approx(float(one.x.std()), rel=1e-3)
    for count in (1, 1025, 2500):
        assert torch.equal(model.sample(count, device="cuda").x, other.x[:, :count])
    many = model.sample(20_000, device="cuda")
    assert torch.equal(many.x[:, :3000], other.x)
    write_shards(model, tmp_path / "shards", ShardJob(count=20_000, device="cuda"))
    shards = [np.load(path)["images"] for path in sorted((tmp_path / "shards").glob("*.npz"))]
    assert (np.concatenate(shards) == many.images().numpy()).all()
