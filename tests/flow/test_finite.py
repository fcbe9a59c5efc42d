"""Particles that are not finite end a flow at that step, and the sentence names step, stage and plugin."""

from __future__ import annotations

import math

import attrs
import pytest
import torch

from cswf_core.errors import NotFiniteError, PluginError
from cswf_core.flow import finite
from cswf_core.flow.flow import Flow
from cswf_core.flow.stepper import ExactStepper
from cswf_core.interfaces import LinearMap, Owner, Projection, Stage
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.projections.locally_connected import LocallyConnected
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import small_flow
from tests.flow.kinds import images

KINDS = ("projection", "cdf", "condition", "schedule", "coordinates")
OWNERS = {kind: Owner(kind, "mine", "acme-plugins", "1.2") for kind in KINDS}
STEPS = Constant(steps=9, directions=40)
BROKEN = {"now": False}
"""Whether plugins of this file return numbers that are none."""


def bad(values):
    """Numbers of a plugin, which are none while it is broken."""
    return values * math.nan if BROKEN["now"] else values


def sentence(flow: Flow, *, good: int = 3) -> str:
    """What a flow says that is broken after so many steps; it must be said at the very next one."""
    BROKEN["now"], steps = False, iter(flow)
    for _ in range(good):
        next(steps)
    BROKEN["now"] = True
    try:
        with pytest.raises((NotFiniteError, PluginError)) as error:
            next(steps)
    finally:
        BROKEN["now"] = False
    assert flow.position.total in (good, good + 1)
    return str(error.value)


def broken(kind: type, method: str, **parameters):
    """A plugin of a kind, one method of which returns numbers that are none while it is broken."""

    def spoiled(self, *arguments):
        return bad(getattr(kind, method)(self, *arguments))

    return attrs.frozen(type(f"Bad{kind.__name__}", (kind,), {method: spoiled}))(**parameters)


BAD_TRANSPORT = broken(Sorted, "transport")


class Operator(Projection):
    """Directions whose products break."""

    def __init__(self, theta, broken):
        self.theta, self.broken = theta, broken

    @property
    def shape(self):
        return tuple(self.theta.shape)

    def project(self, x):
        return bad(self.theta @ x) if self.broken == "project" else self.theta @ x

    def adjoint(self, a):
        return bad(self.theta.T @ a) if self.broken == "adjoint" else self.theta.T @ a

    def dense(self):
        return self.theta


@attrs.frozen
class BadOperator(Uniform):
    broken: str = "project"

    def sample(self, space, count, draw):
        return Operator(Uniform.sample(self, space, count, draw), self.broken)


@attrs.frozen
class BadSums(Histogram):
    """Displaces wrongly, and says nothing of it in its sums."""

    def displace(self, rows, data):
        squares = Histogram.displace(self, rows, data)
        rows.values.copy_(bad(rows.values))
        return squares


@attrs.frozen(eq=False)
class BadStage(Stage):
    def eta(self, step):
        return bad(self.step_size)


@attrs.frozen
class BadSteps(Constant):
    def stages(self, space, projection):
        return [BadStage(steps=9, directions=40, step_size=0.1, name="own")]


class BadMap(LinearMap):
    """The identity, for a while."""

    def enter(self, x):
        return bad(x + 0)

    def leave(self, w):
        return w + 0

    def adjoint(self, theta):
        return theta + 0

    def tensors(self):
        return {}


@attrs.frozen
class BadCoordinates(Whitened):
    def fit(self, space, x):
        return BadMap()


AT_STEP_4 = "step 4 of stage 1 '"


@pytest.mark.parametrize(
    ("kind", "plugin", "words"),
    [
        ("projection", broken(Uniform, "sample"), "sample must return finite numbers"),
        ("projection", BadOperator("project"), "projected particles to numbers that are not finite"),
        ("projection", BadOperator("adjoint"), "back-projected to numbers that are not finite"),
        ("cdf", BAD_TRANSPORT, "moved particles by amounts that are not finite"),
        ("cdf", BadSums(), "moved particles by amounts that are not finite, which its sums of squares hide"),
        ("condition", broken(OneHot, "directions"), "directions must return finite numbers"),
        ("condition", broken(OneHot, "project"), "project must return finite numbers"),
        (
            "schedule",
            BadSteps(steps=9, directions=40),
            "eta must return a finite number of 0 or more, got nan for step 3",
        ),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_plugin_that_makes_numbers_that_are_none_is_named_at_that_step(kind, plugin, words, dtype):
    parts = {"schedule": STEPS, "condition": OneHot(), kind: plugin}
    said = sentence(small_flow(**parts, owners=OWNERS, dtype=dtype))
    assert AT_STEP_4 in said
    assert f"{kind} 'mine' (acme-plugins 1.2)" in said
    assert words in said


def test_coordinates_that_make_numbers_that_are_none_are_named_at_that_step():
    parts = {"schedule": STEPS, "coordinates": BadCoordinates(), "cdf": Histogram()}
    said = sentence(small_flow(images(), **parts, owners=OWNERS, dtype=torch.float32))
    assert said.startswith(f"particles are not finite after {AT_STEP_4}")
    assert "coordinates 'mine' (acme-plugins 1.2) brought data to numbers that are not finite" in said


def test_a_stage_is_named_as_logs_name_it():
    entries = tuple(map(Entry.from_text, ("(4×4) [2]", "(8×8) [5]")))
    schedule = Pyramid(entries=entries, steps=4, directions=40)
    local = LocallyConnected(patch=2)
    said = sentence(
        small_flow(images(), schedule=schedule, projection=local, cdf=BAD_TRANSPORT, owners=OWNERS), good=6
    )
    assert said.startswith("particles are not finite after step 3 of stage 2 '(8×8) [5]': cdf 'mine'")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize(
    "kind",
    [
        {"condition": OneHot()},
        {"condition": OneHot(), "clip": 0.7},
        {"coordinates": Whitened()},
        {
            "schedule": Pyramid(entries=(Entry.from_text("(4×4) [2]"),), steps=9, directions=40),
            "projection": LocallyConnected(patch=2),
        },
    ],
    ids=["plain", "clip", "whitened", "pyramid"],
)
def test_one_number_of_one_particle_is_enough(kind, value):
    flow = small_flow(images(), **{"schedule": STEPS, "cdf": Histogram(), **kind})
    steps = iter(flow)
    next(steps)
    [*flow.particles.stored[0].parts.values()][-1][3, -1] = value
    with pytest.raises(NotFiniteError, match="particles are not finite after step 2 of stage 1"):
        next(steps)


def test_data_that_are_none_are_told():
    flow = small_flow(schedule=STEPS, cdf=Histogram())
    steps = iter(flow)
    next(steps)
    flow._stepper._entered[0, 0] = math.nan
    with pytest.raises(NotFiniteError, match=r"after step 2 of stage 1 .*: data are not finite"):
        next(steps)


class UnseenPlan(ExactStepper):
    """Steps as on CUDA: nothing of them is seen while they are taken."""

    def __init__(self, setup):
        super().__init__(setup)
        self.inspects = False


@pytest.mark.parametrize(
    ("kind", "plugin", "words"),
    [
        ("projection", BadOperator("adjoint"), "adjoint must return"),
        ("cdf", BAD_TRANSPORT, "moved particles by amounts that are not finite"),
    ],
)
def test_a_device_is_read_every_50_steps_and_the_step_at_fault_is_named(kind, plugin, words, monkeypatch):
    monkeypatch.setattr(finite, "READ_EVERY", 50)
    parts = {"schedule": Constant(steps=200, directions=10, step_size=0.1), kind: plugin}
    flow, done = small_flow(**parts, owners=OWNERS, plan=UnseenPlan), 0
    BROKEN["now"], error = False, None
    try:
        for state in flow:
            done, BROKEN["now"] = state.step, state.step >= 70
    except NotFiniteError as raised:
        error = str(raised)
    finally:
        BROKEN["now"] = False
    said = f"particles are not finite after step 71 of stage 1 'constant': {kind} 'mine' (acme-plugins 1.2)"
    assert error is not None
    assert error.startswith(said)
    assert words in error
    assert done == 100


def test_particles_that_are_none_are_never_written():
    """Whatever is written asks before: steps that a device has not shown yet are read then."""
    flow = small_flow(schedule=STEPS, plan=UnseenPlan)
    steps = iter(flow)
    for _ in range(3):
        next(steps)
    flow.require_finite()
    flow.particles.stored[0].x[0, 0] = math.nan
    next(steps)
    for read in (flow.samples, flow.require_finite):
        with pytest.raises(NotFiniteError, match="not finite after step 4"):
            read()
