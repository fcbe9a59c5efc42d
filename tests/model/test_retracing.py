"""The saved maps have moved the run's particles: taken through them again, these end where they did."""

from __future__ import annotations

import pytest
import torch

import cswf_core.flow.gaussian
from cswf_core.interfaces import Conditions
from cswf_core.model import load_model
from cswf_core.model.format import FITTED
from cswf_core.model.requests import SampleRequest
from cswf_core.runs.durable import read_tensors
from tests.marks import slow_if
from tests.model.conftest import WHITENED, saving

GRIDS = "schedule={use: pyramid, entries: ['(2×2) [2]', '(8×8) [5, 3]'], steps: 2, directions: 40}"
LOCAL = "projection={use: locally-connected, patch: 3}"
PATCHES = (GRIDS, LOCAL)

KINDS = {
    "classes": ("digits",),
    "no condition": ("digits", "condition=none"),
    "grids and patches": ("digits", *PATCHES),
    "a flow for each class": ("digits", "condition=separate", "particles.count=512", *PATCHES),
    "a mask": ("digits", "condition={use: mask, hidden: bottom}", *PATCHES),
    "a mask for each": ("digits", "condition={use: mask, hidden: boxes, masks: each}", *PATCHES),
    "an amplified mask": ("digits", "condition={use: mask, amplifier: 2.0}", *PATCHES),
    "a small version": ("digits", "condition={use: super-resolution, size: 4}", *PATCHES),
    "directions used again": ("digits", "projection.reuse=3"),
    "directions kept for all steps": ("digits", "projection.reuse=all", "schedule.step_size=32"),
    "float64": ("digits", "particles.precision=float64"),
    "directions of the data": ("digits", "projection=data-covariance"),
    "uneven directions": ("digits", "projection={use: high-pass, of: {use: locally-connected, patch: 3}}"),
    "a schedule that stops": (
        "digits",
        "schedule={use: adaptive, entries: ['(8×8) [5, 3]'], steps: 9, directions: 40, shortest: 2, window: 2}",
        LOCAL,
    ),
    "points": ("toy-joint",),
    "vectors": ("toy-cswf",),
    "sorted values": ("digits", "cdf=sorted"),
    "clipped particles": ("digits", "particles.clip=0.9", *PATCHES),
    "particles carried along": ("digits", "particles.offline=20"),
    "halves in turns": ("digits", "particles.offline=20", "model.turn=3"),
    "whitened": ("digits", *WHITENED),
    "whitened, grids and low rank": ("digits", *WHITENED, GRIDS, "projection=low-rank"),
    "whitened and a mask": ("digits", *WHITENED, "condition={use: mask, hidden: bottom}", *PATCHES),
    "whitened and clipped": ("digits", *WHITENED, "particles.clip=0.9", *PATCHES),
    "whitened, and directions of the data": ("digits", *WHITENED, "projection=data-covariance"),
    "whitened, and pieces of the data": (
        "digits",
        *WHITENED,
        GRIDS,
        "projection={use: exemplars, of: low-rank}",
    ),
    "from a Gaussian": ("digits", "particles.start=gaussian"),
    "straight tails": ("digits", "cdf.tail=0.05"),
    "straight tails, a flow for each class": ("digits", "cdf.tail=0.05", "condition=separate"),
    "maps of a part": ("digits", "cdf.particles={share: 0.5}", "cdf.data={share: 0.5}"),
}

ALIKE = (
    "a mask",
    "an amplified mask",
    "directions kept for all steps",
    "directions of the data",
    "float64",
    "clipped particles",
    "particles carried along",
    "whitened",
    "whitened and clipped",
    "whitened, and directions of the data",
    "from a Gaussian",
    "straight tails",
    "straight tails, a flow for each class",
)
"""Kinds that go the ways of others: they are for `make test-all`."""


@pytest.mark.parametrize("kind", slow_if(ALIKE, KINDS))
def test_retraced_particles_end_where_the_run_s_did(kind, tmp_path):
    recipe, *overrides = KINDS[kind]
    flow = saving(tmp_path, recipe, "particles.count=256", *overrides)
    samples = flow.run()
    again = load_model(tmp_path).retrace(device="cpu")
    gap = float((again.x - samples.x).abs().max())
    assert gap <= (1e-6 if kind == "a small version" else 0)  # what is seen is a product of other columns there
    for name in ("labels", "vectors", "origin"):
        mine, theirs = getattr(again.conditions, name), getattr(samples.conditions, name)
        assert (mine is None and theirs is None) or torch.equal(mine, theirs)


def test_a_gaussian_too_large_for_a_matrix_is_made_by_the_coordinates_again(tmp_path, monkeypatch):
    monkeypatch.setattr(cswf_core.flow.gaussian, "LARGEST_COVARIANCE", 63)
    samples = saving(tmp_path, "digits", "particles.count=100", *WHITENED).run()
    model = load_model(tmp_path)
    assert "gaussian/root" not in read_tensors(tmp_path / FITTED)[0]
    assert torch.equal(model.retrace(device="cpu").x, samples.x)
    assert torch.isfinite(model.sample(3, device="cpu").x).all()


@pytest.mark.parametrize("steps", [200, pytest.param(3000, marks=pytest.mark.slow)])
def test_particles_carried_along_and_samples_of_their_model_agree_to_the_bit(steps, tmp_path):
    changes = (
        "condition=none",
        "projection={use: exemplars, of: low-rank, patch: 5}",
        *WHITENED,
        f"schedule.steps={steps}",
        "schedule.directions=16",
        "schedule.step_size=8",
        "particles.count=256",
        "particles.offline=256",
    )
    flow = saving(tmp_path, "digits", *changes)
    start = flow.offline_samples().x
    flow.run()
    model = load_model(tmp_path)
    request = SampleRequest(lambda _: Conditions(), 256, seed=0, start=start)
    sampled = model._samples(request, model.flow(torch.device("cpu")), None)
    carried = flow.offline_samples().x
    assert float((carried - start).abs().max()) > 1
    assert torch.equal(sampled.x, carried)
