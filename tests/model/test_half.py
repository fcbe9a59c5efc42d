"""Sampling in half precision goes the way of the exact steps: here in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from cswf_core.model import load_model
from cswf_core.model.sampling import SavedFlow
from tests.kernels.interpreted import DEVICE
from tests.marks import slow_if
from tests.model.conftest import WHITENED, saving

pytestmark = pytest.mark.interpreter

SHORT = ("schedule.steps=2", "schedule.directions=40", "particles.count=300")
PYRAMID = "schedule={use: pyramid, entries: ['(4×4) [3]', '(8×8) [3]'], steps: 1, directions: 40}"


def in_half(model, count, *, seed=0, groups=None, **asked):
    """Samples in half precision, whatever the device."""
    flow = model.flow(DEVICE)
    flow.half, flow.size = True, 256
    if groups is not None:
        flow._most_groups = groups
    return model._samples(model.request(count, seed=seed, **asked), flow, None)


CASES = {
    "labels": (),
    "no condition, in a pyramid": ("condition=none", PYRAMID, "projection=conv-stack"),
    "whitened, in a pyramid": ("condition=none", PYRAMID, "projection=conv-stack", *WHITENED),
    "classes apart": ("condition=separate",),
    "directions kept": ("projection.reuse=2",),
    "entropy": ("schedule.entropy=0.001",),
    "clipped": ("particles.clip=0.9",),
    "tables of 16 bits": ("model.bits=16", PYRAMID, "projection=conv-stack"),
}


QUICK = ("whitened, in a pyramid",)
"""Enough for every day; the interpreter takes ten seconds for each."""


@pytest.mark.parametrize("name", slow_if(CASES.keys() - QUICK, CASES))
def test_samples_in_half_precision_are_those_of_float32_to_rounding(name, tmp_path):
    case = CASES[name]
    steps = () if PYRAMID in case else SHORT[:2]
    saving(tmp_path, "digits", *steps, SHORT[2], *case).run()
    model = load_model(tmp_path)
    exact, half = model.sample(300, device="cpu"), in_half(model, 300)
    gap = (exact.x - half.x.cpu()).square().mean().sqrt()
    assert float(gap) < 0.02 * float(exact.x.std())
    assert not torch.equal(exact.x, half.x.cpu())
    # The first of many are those of few, and groups side by side have the bits of single ones.
    assert torch.equal(in_half(model, 20).x, half.x[:, :20])
    assert torch.equal(in_half(model, 300, groups=1).x, half.x)


def test_a_lack_of_memory_lets_fewer_groups_flow_side_by_side_with_the_same_bits(tmp_path, monkeypatch, caplog):
    saving(tmp_path, "digits", *SHORT).run()
    model = load_model(tmp_path)
    expected, run, sizes = in_half(model, 300), SavedFlow.run, []

    def hungry(flow, groups, *rest):
        sizes.append(len(groups))
        if len(groups) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run(flow, groups, *rest)

    monkeypatch.setattr(SavedFlow, "run", hungry)
    assert torch.equal(in_half(model, 300).x, expected.x)
    assert sizes == [2, 1, 1]
    assert "out of memory: going on with 256 particles at a time" in caplog.text
