"""The flow as a user meets it in Python: parts, stepping, seeds, noise, fixed directions, observers."""

from __future__ import annotations

import itertools
import json
import math

import attrs
import pytest
import torch

import cswf_core
from cswf_core import Flow, Parts, Settings, hookimpl
from cswf_core.errors import PluginError, RunError
from cswf_core.interfaces import Comparison, Dataset, Key, Schedule, Space, Stage
from cswf_core.runs.folder import RunFolder
from cswf_core.runs.record import MetricsLog
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.conftest import random_data, small_flow
from tests.flow.kinds import images


def test_stepping_by_hand_equals_running():
    by_hand = small_flow(schedule=Constant(steps=5, directions=20))
    for state in by_hand:
        if state.step == 2:
            break
    for state in by_hand:
        assert state.total_step >= 3
    assert by_hand.samples().digest() == small_flow(schedule=Constant(steps=5, directions=20)).run().digest()


def test_states_say_where_the_flow_is_and_conditions_never_move():
    flow = small_flow(schedule=Constant(steps=3, directions=20))
    labels = flow.particles.conditions.labels.clone()
    states = list(flow)
    assert [s.step for s in states] == [1, 2, 3]
    assert {s.total_steps for s in states} == {3}
    assert states[-1].distance < states[0].distance
    assert all(s.displacement > 0 for s in states)
    assert torch.equal(flow.samples().conditions.labels, labels)


def test_one_seed_gives_the_same_bits_and_another_gives_others():
    assert small_flow(seed=4).run().digest() == small_flow(seed=4).run().digest()
    assert small_flow(seed=4).run().digest() != small_flow(seed=5).run().digest()


def test_the_first_particles_do_not_depend_on_how_many_there_are():
    few, many = small_flow(count=10), small_flow(count=1500)
    assert torch.equal(few.particles.x, many.particles.x[:, :10])


def test_with_amplifier_0_labels_have_no_influence():
    data = random_data()
    labels = data.conditions.labels
    relabelled = attrs.evolve(data, conditions=attrs.evolve(data.conditions, labels=labels.flip(0)))
    for amplifier in (0.0, 1.0):
        one, other = (small_flow(x, condition=OneHot(amplifier=amplifier)).run() for x in (data, relabelled))
        assert torch.equal(one.x, other.x) == (amplifier == 0)


def test_fixed_directions_are_drawn_once_and_fresh_ones_each_step():
    drawn = []

    @attrs.frozen
    class Spy(Uniform):
        def sample(self, space, count, draw):
            if draw.key.role == "directions":  # others are for the largest eigenvalue
                drawn.append(draw.key.step)
            return super().sample(space, count, draw)

    for reuse, expected in [(1, [0, 1, 2, 3]), (2, [0, 2]), (None, [0])]:
        drawn.clear()
        small_flow(projection=Spy(), schedule=Constant(steps=4, directions=10), reuse=reuse).run()
        assert drawn == [0, 0, *expected]  # the first are drawn twice more, to see that they can be


@attrs.frozen
class Idle(Sorted):
    """Moves nothing, and remembers the data it was shown."""

    seen: list = attrs.field(factory=list)

    def transport(self, p, data):
        self.seen.append(data.ordered)
        return p.clone()


def test_entropic_noise_has_variance_2_lambda_eta_and_is_fresh_each_step():
    entropy, eta = 0.03, 2.0
    schedule = Constant(steps=2, directions=1, step_size=eta, entropy=entropy)
    flow = small_flow(cdf=Idle(), schedule=schedule, count=4000)
    places = [flow.samples().x] + [flow.samples().x for _ in flow]
    first, second = places[1] - places[0], places[2] - places[1]
    for noise in (first, second):
        assert float(noise.std()) == pytest.approx(math.sqrt(2 * entropy * eta), rel=0.03)
        assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert abs(float((first * second).mean())) < 0.1 * entropy * eta


@pytest.mark.parametrize("bin_width", [0.0, 0.5])
def test_dequantisation_is_fresh_each_step(bin_width):
    """Along fixed directions the projected data differ from step to step by the noise, and by nothing else."""
    idle, data = Idle(), attrs.evolve(random_data(), bin_width=bin_width)
    schedule = Constant(steps=3, directions=4)
    small_flow(data, cdf=idle, condition=NoCondition(), schedule=schedule, reuse=None).run()
    equal = [torch.equal(one, other) for one, other in itertools.combinations(idle.seen, 2)]
    assert equal == [bin_width == 0.0] * 3


def test_dequantisation_fills_each_bin_evenly():
    data = Dataset(x=torch.zeros(2, 1000, dtype=torch.float64), space=Space((2,)), bin_width=0.5)
    x = small_flow(data, schedule=Constant(steps=30, directions=50), count=1000).run().x
    assert -0.05 < float(x.min()) < 0.05
    assert 0.45 < float(x.max()) < 0.55
    assert float(x.mean()) == pytest.approx(0.25, abs=0.02)


def test_no_two_draws_share_a_key(monkeypatch):
    keys = []
    opened = Key.open
    monkeypatch.setattr(Key, "open", lambda key, *a, **k: keys.append(key) or opened(key, *a, **k))

    @attrs.frozen
    class TwoStages(Schedule):
        def stages(self, space, projection):
            return [Stage(steps=2, directions=200, step_size=1.0, entropy=0.1)] * 2

    data = attrs.evolve(random_data(n=1100), bin_width=0.1)
    keys.clear()
    small_flow(data, schedule=TwoStages(), count=1100).run()
    again = {(key.role, key.step) for key in keys if keys.count(key) > 1}
    assert again == {("directions", 0), ("theta_y", 0), ("fingerprint", -1)}  # what shows that they can be
    steps = {(key.role, key.stage, key.step) for key in keys}
    for role in ("directions", "theta_y", "dequantise", "entropy"):
        assert {(role, stage, step) for stage in (0, 1) for step in (0, 1)} <= steps


def test_separate_flows_reach_each_class_s_own_data():
    data = random_data(d=2, n=900, seed=3)
    flow = small_flow(data, condition=Separate(), schedule=Constant(steps=20, directions=50), count=900)
    samples = flow.run()
    for c in range(3):
        got = samples.x[:, samples.conditions.labels == c].mean(dim=1)
        expected = data.x[:, data.conditions.labels == c].mean(dim=1)
        torch.testing.assert_close(got, expected, atol=0.02, rtol=0)


def test_observers_are_told_in_order():
    seen = []

    class Watcher:
        @hookimpl
        def before_stage(self, stage):
            seen.append(f"enter {stage.name}")

        @hookimpl
        def after_step(self, flow, state):
            seen.append(f"step {state.step}")

        @hookimpl
        def after_stage(self):
            seen.append("leave")

        @hookimpl
        def after_run(self, flow):
            seen.append(f"{len(flow.samples())} samples")

    small_flow(schedule=Constant(steps=2, directions=5), observers=(Watcher(),)).run()
    assert seen == ["enter constant", "step 1", "step 2", "leave", "30 samples"]


def test_an_observer_that_fails_or_lacks_a_decorator_is_named_with_its_hook():
    class Clumsy:
        @hookimpl
        def after_step(self):
            raise ZeroDivisionError("oops")

    class Undecorated:
        def after_step(self, state):
            pass

    with pytest.raises(PluginError, match=r"after_step raised ZeroDivisionError: oops \(.*test_flow.py:\d+\)"):
        small_flow(observers=(Clumsy(),)).run()
    with pytest.raises(PluginError, match="observer Undecorated: after_step lacks its decorator"):
        small_flow(observers=(Undecorated(),))


def test_numbers_beyond_float32_are_told_and_particles_far_away_are_no_runaway():
    with pytest.raises(RunError, match=r"after step 1 of stage 1 .*numbers are too large for torch\.float32"):
        small_flow(scale=1e20, dtype=torch.float32).run()
    assert torch.isfinite(small_flow(scale=1000.0).run().x).all()


def test_a_schedule_may_leave_a_stage_early_and_its_end_is_logged(tmp_path):
    @attrs.frozen
    class Impatient(Schedule):
        adaptive = True

        def stages(self, space, projection):
            return [Stage(steps=50, directions=10, step_size=1.0)] * 2

        def stop(self, stage, distances):
            return len(distances) == 3

    log = MetricsLog(RunFolder(tmp_path), every=10)
    assert len(list(small_flow(schedule=Impatient(), observers=(log,)))) == 6
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 3, 6]


def test_a_flow_can_be_built_from_a_recipe_in_python():
    overrides = ["schedule.steps=2", "particles.count=20"]
    flow = cswf_core.build_flow("digits", overrides=overrides, device="cpu")
    assert [state.step for state in flow] == [1, 2]
    images = flow.samples().images()
    assert (images.shape, images.dtype) == ((20, 1, 8, 8), torch.uint8)


def test_a_flow_that_runs_away_says_so_and_does_not_blame_a_plugin():
    flow = small_flow(schedule=Constant(steps=500, directions=20, step_size=1e4), dtype=torch.float32)
    with pytest.raises(RunError, match=r"the flow ran away: step \d .* a step size of 10000 is too large"):
        flow.run()
    with pytest.raises(RunError, match="broken off"):
        flow.run()


class Doubling(Flow):
    """Particles that are joined by copies of themselves before each round but the first."""

    def before_entering(self, stage):
        if stage:
            self.add_particles(self.samples().x, self.conditions)


def test_a_subclass_can_add_particles_between_stages():
    parts = small_flow(schedule=Constant(steps=2, directions=20)).parts
    flow = Doubling(random_data(), parts, Settings(count=10, dtype=torch.float64))
    flow.again(1)
    next(iter(flow))
    first = flow.conditions.labels
    flow.run()
    assert flow.cohorts == (10, 20)
    assert torch.equal(flow.samples().conditions.labels, torch.cat([first, first]))


def test_a_recipe_that_is_loaded_takes_no_overrides():
    recipe = cswf_core.load_recipe("digits", ["particles.count=20", "schedule.steps=1"])
    assert cswf_core.build_flow(recipe, device="cpu").count == 20
    with pytest.raises(RunError, match="give them to load_recipe"):
        cswf_core.build_flow(recipe, ["seed=1"])


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
