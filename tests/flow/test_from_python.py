"""Flows from Python without a recipe: plugins as objects, by name, or left out."""

from __future__ import annotations

import pytest
import torch

import cswf_core
from cswf_core import Dataset, Flow, Parts, Settings
from cswf_core.errors import PluginError, RunError
from cswf_core.interfaces import Comparison, Key, Space
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data
from tests.flow.kinds import images

FEW = Settings(count=20)
SCHEDULE = Constant(steps=2, directions=40)


def names(flow: Flow) -> dict[str, str]:
    kinds = ("condition", "projection", "cdf", "schedule", "coordinates")
    return {kind: getattr(flow.parts, kind).owner.name for kind in kinds}


def test_a_flow_needs_data_and_a_schedule_and_has_the_defaults_of_recipes():
    flow = Flow(images(), Parts.of(schedule=SCHEDULE), FEW)
    chosen = names(flow)
    del chosen["schedule"]
    assert chosen == {"condition": "none", "projection": "uniform", "cdf": "histogram", "coordinates": "plain"}
    assert flow.run().x.shape == (64, 20)
    assert Flow(images(), Parts.of(schedule=SCHEDULE)).count == len(images())


def test_a_name_and_an_object_are_the_same_flow():
    names = Parts.of(projection="conv-stack", condition="one-hot", cdf="sorted", schedule=SCHEDULE)
    objects = Parts.of(projection=ConvStack(), condition=OneHot(), cdf=Sorted(), schedule=SCHEDULE)
    by_name, by_object = (Flow(images(), parts, FEW) for parts in (names, objects))
    assert by_name.run().digest() == by_object.run().digest()
    assert str(by_name.parts.projection.owner).startswith("projection 'conv-stack' (cswf ")


def test_without_a_schedule_there_is_a_sentence_with_those_that_are_known():
    with pytest.raises(
        PluginError, match=r"a flow needs a schedule: Parts.of\(schedule=…\), an object or one of"
    ):
        Parts.of(projection="conv-stack")
    with pytest.raises(PluginError, match="a flow needs a schedule"):
        Flow(images())


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ({"schedule": "constant"}, "schedule 'constant' .* cannot be had by its name alone: .*steps"),
        ({"projection": "high-pass"}, "projection 'high-pass' .* cannot be had by its name alone: .*of"),
        ({"projection": "conv-stak"}, "conv-stak.*conv-stack"),
        ({"cdf": "nothing-like-it"}, "nothing-like-it"),
        ({"projection": ConvStack}, r"is no projection \(a class: write the parentheses\)"),
        ({"cdf": ConvStack()}, "is no cdf"),
        ({"projection": 7}, "7 is no projection"),
    ],
    ids=["parameters", "inner", "typo", "unknown", "class", "kind", "number"],
)
def test_what_is_no_plugin_or_needs_more_than_a_name_gets_a_sentence(choice, complaint):
    with pytest.raises(PluginError, match=complaint):
        Parts.of(**{"schedule": SCHEDULE, **choice})


def test_what_programs_need_is_at_the_top_and_nothing_else_is():
    assert {"Dataset", "Settings", "Flow", "Parts", "build_flow"} <= set(dir(cswf_core))
    with pytest.raises(AttributeError, match="has no attribute 'Flows'"):
        _ = cswf_core.Flows


def compared(generated: Dataset, real: Dataset) -> Comparison:
    return Comparison(generated, real, Key(0, "scores").open(dtype=torch.float32))


def test_generated_and_real_samples_are_alike_when_grey_levels_are_filled():
    coarse = Dataset((torch.arange(4000) % 4).view(1, -1) / 2.0 - 1, Space((1,)), bin_width=0.5)
    smooth = Dataset(Key(1, "smooth").open(dtype=torch.float64).uniform(1, 3000) * 2 - 1, Space((1,)))
    generated, real = compared(smooth, coarse).alike()
    assert generated.dtype == real.dtype == torch.float32
    assert (generated.shape, real.shape) == ((1, 3000), (1, 4000))
    torch.testing.assert_close(generated, smooth.x.float())
    assert ((real - coarse.x) >= 0).all()
    assert ((real - coarse.x) < 0.5).all()
    assert float(real.mean()) == pytest.approx(0, abs=0.04)  # and not −0.25, as the lower edges have it
    assert len(real.unique()) > 3000


def test_alike_fills_both_sides_by_numbers_of_the_draw_alone():
    data = images(20)
    first, again = (compared(data, data).alike() for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert (first[0] - first[1]).abs().max() < data.bin_width


@pytest.mark.parametrize("wrong", [{"count": 0}, {"reuse": 0}, {"offline": -1}])
def test_numbers_that_no_flow_can_have_are_refused(wrong):
    with pytest.raises(RunError, match=f"{next(iter(wrong))} must be"):
        Settings(**wrong)


def test_an_unknown_device_is_one_sentence():
    with pytest.raises(RunError, match="there is no device 'cdua'"):
        Flow(random_data(), Parts.of(schedule=Constant(steps=1, directions=5)), device="cdua")
