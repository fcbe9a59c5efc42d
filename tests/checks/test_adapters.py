"""What a plugin returns is checked, and the error names plugin, distribution, version, expected and got."""

from __future__ import annotations

import sys

import attrs
import pytest
import torch

from cswf_core import checks
from cswf_core.errors import DataError, PluginError, RunError
from cswf_core.flow.settings import Parts
from cswf_core.interfaces import (
    BIN,
    ConditionEncoder,
    Conditions,
    Dataset,
    Figure,
    Masked,
    Observation,
    Result,
    Space,
    Stage,
    StoredImages,
)
from cswf_plugins.cdfs.sorted import Sorted
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.separate import Separate
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.metrics.sliced_wasserstein import SlicedWasserstein
from cswf_plugins.projections.high_pass import HighPass
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from tests.checks.parts import OWNERS, Spied, named, refused, variant
from tests.conftest import random_data, small_flow


class Oblique(Observation):
    """A projection, but along a slope."""

    def seen(self, x):
        return torch.cat([x[:1] + 5 * x[1:2], torch.zeros_like(x[1:])])


class Misshown(Masked):
    """Drawn in another shape than it has."""

    def shown(self, x):
        return x[:2]


class Halved(Observation):
    """No projection: what it has seen it sees smaller the next time."""

    def seen(self, x):
        return x / 2


def sampler(change):
    """A projection whose directions are changed."""
    return variant(Uniform, sample=lambda *arguments: change(Uniform.sample(*arguments)))()


def preparing(**members):
    return variant(Uniform, sees_data="fitted" in members, **members)()


def cdf(change):
    """An estimator whose images are changed."""
    return variant(Sorted, transport=lambda *arguments: change(Sorted.transport(*arguments)))()


def condition(**members):
    return variant(OneHot, **members)(amplifier=1.0)


def observing(observation):
    return condition(observation=lambda *a: observation)


def planning(stages, **members):
    return variant(Constant, stages=lambda *a: stages, **members)(steps=1, directions=1)


FAULTY = {
    "projection": [
        (sampler(lambda t: t * 2), "directions of unit length, got length 2 in row"),
        (sampler(lambda t: t[:, :-1]), r"a 300×5 tensor of float64 on cpu, got 300×4 of float64 on cpu"),
        (sampler(lambda t: t.float()), r"tensor of float64 on cpu, got 300×5 of float32"),
        (sampler(lambda t: t / 0), "finite numbers, got 1500 of 1500 that are NaN or infinite"),
        (sampler(lambda t: t.tolist()), "a tensor or a Projection, got list"),
        (sampler(lambda t: Spied(t[:3])), r"a 300×5 operator, got shape \(3, 5\)"),
        (sampler(lambda t: t.requires_grad_()), "sample must return .* without gradients, got one that req"),
        (sampler(lambda t: sys.exit(5)), r"sample raised SystemExit: 5 \(.*test_adapters.py:\d+\)"),
        (sampler(lambda t: 1 / 0), r"sample raised ZeroDivisionError: division by zero \(.*test_ad.*:\d+\)"),
        (preparing(together=lambda *a: 0), "together must return a whole number, 1 or more, got 0"),
        (preparing(fitted=lambda *a: None), "fitted must return a ProjectionSampler, got NoneType"),
        (preparing(fitted=lambda self, space, z: z / 0 / None), "fitted raised TypeError"),
    ],
    "cdf": [
        (cdf(lambda image: image[:, 1:]), "transport must return a 300×30 tensor"),
        (cdf(lambda image: image * float("nan")), "finite numbers"),
        (cdf(lambda image: None), "got NoneType"),
    ],
    "condition": [
        (condition(project=lambda *a: torch.zeros(2, 2)), "project must return a 300×30 tensor"),
        (
            condition(directions=lambda self, width, n, draw: draw.normal(n, width)),
            "must return directions of unit",
        ),
        (condition(weights=lambda *a: torch.full((300,), 2.0).double()), r"lengths in \[0, 1\], got 2.0"),
        (condition(draw=lambda *a: 7), "draw must return Conditions, got int"),
        (
            condition(draw=lambda *a: Conditions(torch.tensor([9] * 30))),
            r"labels from 0 to 2, .*, got 9",
        ),
        (condition(project=lambda self, t, y: t[:, y.labels] / 0), "project must return finite numbers"),
        (condition(project=lambda: 0), r"project raised TypeError: .* but 3 were given, at step 1 of stage 1"),
        (observing(torch.ones(4).bool()), "None or an Observation, got Tensor"),
        (observing(Masked(torch.ones(4).bool())), "observation raised RuntimeError: The size"),
        (observing(Halved()), "an orthogonal projection, got one that changes what it has"),
        (observing(Masked(torch.ones(5).bool())), "the origin of every particle's observation"),
        (observing(Oblique()), "orthogonal projection, got one whose two parts are not at right"),
        (observing(Misshown(torch.ones(5).bool())), "observation must return a 5×64 tensor"),
        (
            condition(balance=lambda *a: torch.tensor([0.5])),
            r"indices of .* got \(1,\) of float32",
        ),
        (condition(balance=lambda *a: torch.tensor([40])), "indices from 0 to 39, got 40"),
        (condition(strata=lambda *a: [(torch.arange(3),) * 2]), "each of 30 particles exactly once"),
        (variant(ConditionEncoder, amplifier=None)(), "amplifier must return a finite number ξ, got None"),
    ],
    "schedule": [
        (planning(None), "stages must return"),
        (planning([]), "stages must return"),
        (planning([1]), "stages must return"),
        (planning([Stage(steps=1, directions=0, step_size=1.0)]), "stages must return"),
        (planning([Stage(steps=2.5, directions=1, step_size=1.0)]), "stages must return"),
        (planning([Stage(steps=1, directions=1, step_size="x")]), "stages must return"),
        (
            planning([Stage(steps=2, directions=5, step_size=1.0)], stop=lambda *a: 1 / 0, adaptive=True),
            "stop raised ZeroDivisionError",
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "plugin", "complaint"), [(kind, *case) for kind, cases in FAULTY.items() for case in cases]
)
def test_a_faulty_answer_is_named(kind, plugin, complaint):
    refused(complaint, **{kind: plugin})


def points(x, d=5):
    return Dataset(x=x, space=Space((d,)))


def held_out(other):
    return attrs.evolve(random_data(), held_out=other)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (points(torch.zeros(5, 0)), "the data set is empty"),
        (points(torch.full((5, 3), float("nan"))), "3 of 3 samples have NaN or infinite values"),
        (points(torch.zeros(4, 3)), "x with d = 5 rows"),
        (points(torch.zeros(5, 3, dtype=torch.int64)), "floating-point numbers, got 5×3 of int64"),
        (held_out(points(torch.zeros(4, 3), 4)), "held-out samples of the same kind, 5 with 3 classes"),
        (held_out(attrs.evolve(random_data(), x=random_data().x / 0)), "samples have NaN or infinite values"),
    ],
)
def test_unusable_data_are_one_sentence(data, complaint):
    with pytest.raises((DataError, PluginError), match=complaint):
        small_flow(data)


@pytest.mark.parametrize("start", [7, points(torch.zeros(4, 3), 4), points(torch.full((5, 3), float("nan")))])
def test_a_faulty_start_is_named(start):
    with pytest.raises(PluginError, match="start must return"):
        small_flow(start=start)


@attrs.frozen(eq=False, kw_only=True)
class Zeros(StoredImages):
    """Black images."""

    count: int = 3
    space: Space = Space((1, 2, 2))
    bin_width: float = BIN

    def fill(self, first, out):
        out.zero_()


def opened(images: object) -> StoredImages:
    source = variant(Digits, open=lambda *a: images, opens=True)()
    return checks.checked(source, OWNERS["dataset"]).open(None)


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (torch.zeros(3), "open must return StoredImages, got Tensor"),
        (Zeros(space=Space((4,))), "open must return images of C×H×W, got points in 4 dimensions"),
        (Zeros(count=0), "the data set is empty"),
        (Zeros(bin_width=0.0), "open must return a bin_width above 0, got 0.0"),
        (Zeros(labels=torch.tensor([0, 1, 2]), classes=("a", "b")), "open must return labels from 0 to 1"),
        (Zeros(held_out=Zeros(space=Space((1, 1, 2)))), "open must return held-out images of the same kind"),
    ],
)
def test_faulty_images_to_be_read_by_blocks_are_named(images, complaint):
    with pytest.raises((DataError, PluginError), match=complaint) as error:
        opened(images)
    named(error, "dataset")


def test_images_that_cannot_be_read_name_their_plugin():
    class Unreadable(Zeros):
        def fill(self, first, out):
            raise ZeroDivisionError

    assert opened(Zeros(held_out=Zeros(count=1))).held_out.block(0, 1).sum() == 0
    with pytest.raises(PluginError, match=r"dataset 'mine' .*: fill raised ZeroDivisionError"):
        opened(Unreadable()).block(0, 1)


def test_particles_must_begin_with_finite_numbers():
    with pytest.raises(RunError, match=r"lower the scale, which is 1e\+39"):
        small_flow(scale=1e39, dtype=torch.float32)


def test_a_class_that_no_datum_has_cannot_flow_separately():
    data = random_data()
    start = Dataset(x=torch.zeros(5, 2), space=data.space, conditions=Conditions(torch.tensor([0, 1])))
    lacking = attrs.evolve(data, conditions=Conditions(torch.zeros(len(data), dtype=torch.int64)))
    with pytest.raises(DataError, match="ask for a condition that no data have"):
        small_flow(lacking, condition=Separate(), start=start)


def transported(image):
    """What comes back through the door if a CDF plugin transports p to `image`."""
    mine = variant(Sorted, transport=lambda *a: image)
    return checks.checked(mine(), OWNERS["cdf"]).transport(torch.zeros_like(image), None)


@pytest.mark.parametrize("bad", [[torch.nan], [torch.inf], [-torch.inf, torch.inf], [torch.nan, torch.inf]])
def test_any_number_that_is_none_is_found(bad):
    value = torch.ones(10, 10)
    assert transported(value) is value
    value[3, : len(bad)] = torch.tensor(bad)
    with pytest.raises(PluginError, match=f"{len(bad)} of 100 that are NaN or infinite"):
        transported(value)


def test_numbers_may_be_large_though_their_sum_is_not_finite():
    value = torch.full((10, 10), 1e38)
    assert not torch.isfinite(value.sum())
    assert transported(value) is value


@pytest.mark.parametrize(
    ("contract", "method", "capability"),
    [
        (Uniform, "fitted", "sees_data"),
        (Uniform, "adapted", "adapts"),
        (Sorted, "displace", "displaces"),
        (Sorted, "between", "displaces"),
        (Constant, "stop", "adaptive"),
        (Digits, "start", "starts"),
        (Digits, "open", "opens"),
    ],
)
def test_a_method_that_nobody_would_call_is_told(contract, method, capability):
    """A plugin that defines it has to declare it, so that nobody wonders why it has no effect."""
    silent = variant(contract, **{method: lambda *a: None})
    assert checks.undeclared(silent) == (
        f"Mine defines {method} and does not declare it: write {capability} = True in the class"
    )
    declared = variant(contract, **{method: lambda *a: None, capability: True})
    assert checks.undeclared(declared) == ""


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"fitted": 0}, "Mine defines fitted and does not declare it: write sees_data = True in the class"),
        ({"adapts": True, "adapt": lambda *a: None}, "Mine declares adapts and does not define adapted"),
    ],
)
def test_a_flag_and_its_method_come_together_also_of_a_plugin_within_a_plugin(members, complaint):
    plugin = variant(Uniform, **members)()
    for projection in (plugin, HighPass(of=plugin)):
        refused(complaint, projection=projection)


def test_something_else_than_a_plugin_is_named():
    with pytest.raises(PluginError, match=r"Uniform'> is no projection \(a class: write the parentheses\)"):
        Parts(
            condition=NoCondition(), projection=Uniform, cdf=Sorted(), schedule=Constant(steps=1, directions=1)
        )
    both = variant(Sorted, stages=Constant.stages, steps=1)
    assert isinstance(checks.checked(both(), kind="cdf"), checks.CheckedCDF)


@attrs.frozen(eq=False)
class Marked(Stage):
    """A stage with something of its own, which nobody else may remake."""

    mark: str = attrs.field(default="", init=False)


def test_stages_stay_the_schedule_s_own_also_in_another_round():
    own = Marked(steps=2, directions=50, step_size=1.0)
    object.__setattr__(own, "mark", "mine")
    seen = []

    def stop(self, stage, distances):
        seen.append(stage.mark)
        return False

    members = {"stages": lambda *a: [own], "stop": stop, "adaptive": True}
    flow = small_flow(schedule=variant(Constant, **members)(steps=1, directions=1))
    assert flow.stages == (own,)
    flow.again(3)
    flow.run()
    assert set(seen) == {"mine"}


def test_a_condition_may_have_y_itself():
    """Then conditions have nothing to be counted by."""
    held = variant(
        OneHot,
        length=lambda *a: 2,
        draw=lambda *a: Conditions(),
        project=lambda self, theta_y, conditions: theta_y[:, :1].expand(-1, self.many).contiguous(),
        many=30,
    )
    data = attrs.evolve(random_data(n=30), conditions=Conditions(), classes=())
    assert torch.isfinite(small_flow(data, condition=held(amplifier=1.0)).run().x).all()


@pytest.mark.parametrize("wrong", [{"notes": None}, {"figures": ["a"]}, {"figures": {"a": Figure([7])}}])
def test_a_result_that_is_none_is_named(wrong):
    metric = variant(SlicedWasserstein, compute=lambda *a: attrs.evolve(Result({"a": 1.0}), **wrong))
    with pytest.raises(PluginError, match=r"metric 'mine' \(acme-plugins 1\.2\): compute"):
        checks.checked(metric(), OWNERS["metric"]).compute(None)


def test_inverses_of_another_shape_are_told_in_the_plugins_name():
    checked, fitted = checks.checked(Sorted(), OWNERS["cdf"]), Sorted().fit(torch.rand(3, 5))
    assert checked.inverse(fitted, torch.zeros(3, 2)).shape == (3, 2)
    with pytest.raises(PluginError, match=r"^cdf 'mine' \(acme-plugins 1.2\): icdf raised RuntimeError"):
        checked.inverse(fitted, torch.zeros(4, 2))
