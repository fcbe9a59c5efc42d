"""Learning as data come: nothing is forgotten, particles keep pace, and a planned arrival is one by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from cswf_core.errors import DataError, RoomError, RunError
from cswf_core.flow.settings import Parts, Settings
from cswf_core.interfaces import Conditions, Dataset, Key
from cswf_core.online import Counts, OnlineFlow
from cswf_plugins.cdfs.histogram import Histogram
from cswf_plugins.conditions.continuous import Continuous
from cswf_plugins.conditions.none import NoCondition
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.coordinates.whitened import Whitened
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.projections.uniform import Uniform
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import random_data, small_flow

ENTRIES = tuple(map(Entry.from_text, ("(2×2) [2]", "(8×8) [5, 3]")))


def digits(*classes: int) -> Dataset:
    return Digits(classes=classes).load(Key(0, "data").open())


def learner(data=None, **parts):
    """A small flow that keeps counts."""
    parts = {"schedule": Constant(steps=4, directions=30), "cdf": Histogram(bins=32), "sets": 3, **parts}
    return small_flow(data, **parts)


def digits_flow(data: Dataset, condition: object, steps: int = 150) -> OnlineFlow:
    """Digits as in the recipe `digits`, with counts along 64 sets of half as many directions."""
    parts = Parts(condition, Uniform(), Histogram(bins=128), Constant(steps=steps, directions=128))
    return OnlineFlow(data, parts, Settings(count=len(data) // 2, half=True), sets=64)


def right(samples: Dataset, real: Dataset) -> tuple[float, float]:
    """The share of samples 0–4, and of the others, that are what was asked for, by five nearest digits."""
    nearest = KNeighborsClassifier(5).fit(real.x.T.numpy() + real.bin_width / 2, real.conditions.labels.numpy())
    asked = np.array([real.classes.index(name) for name in samples.classes])[samples.conditions.labels.numpy()]
    found = nearest.predict(samples.x.T.numpy()) == asked
    return float(found[asked < 5].mean()), float(found[asked >= 5].mean()) if (asked >= 5).any() else 0.0


def test_digits_0_to_4_are_not_forgotten_when_5_to_9_come():
    whole = digits()
    flow = digits_flow(digits(0, 1, 2, 3, 4), OneHot(amplifier=10.0, labels="balanced", room=10))
    before, _ = right(flow.run(), whole)
    flow.insert(digits(5, 6, 7, 8, 9))
    flow.again(100)
    old, new = right(flow.run(), whole)
    assert before > 0.97
    assert old > before - 0.03
    assert new > 0.95
    first = len(digits(0, 1, 2, 3, 4))
    assert len(flow.particles) == round(first // 2 * len(whole) / first)


def test_without_classes_particles_go_to_what_all_data_are_together():
    whole, first = digits(), digits(0, 1, 2, 3, 4)
    flow = digits_flow(first, NoCondition())
    flow.run()
    flow.insert(digits(5, 6, 7, 8, 9))
    flow.again(100)
    states = list(flow)
    assert states[-1].distance < 0.2 * states[0].distance
    at_once = digits_flow(whole, NoCondition(), steps=100)
    assert states[-1].distance < 1.2 * list(at_once)[-1].distance


@pytest.mark.parametrize(("coordinates", "apart"), [(None, 0.1), (Whitened(), 0.15)], ids=["plain", "whitened"])
def test_a_flow_along_counts_arrives_where_one_along_the_data_does(coordinates, apart):
    data = random_data(n=400) if coordinates is None else digits(0, 1, 2)
    same = {"schedule": Constant(steps=30, directions=60), "cdf": Histogram(bins=32), "count": 300}
    same["coordinates"] = coordinates
    ends = [list(flow)[-1].distance for flow in (learner(data, sets=30, **same), small_flow(data, **same))]
    assert ends[0] == pytest.approx(ends[1], rel=apart)


def grown(kind: str) -> tuple[Dataset, Dataset, dict[str, object]]:
    """Data, those that arrive, and the parts of a flow that has room for them."""
    parts = {"condition": OneHot(amplifier=3.0, room=5)}
    if kind == "points":
        return random_data(), random_data(seed=8, classes=5), parts
    schedule = Pyramid(entries=(*ENTRIES[:1], Entry.from_text("(8×8) [3]")), steps=2, directions=30)
    parts |= {"projection": ConvStack(), "schedule": schedule}
    if kind == "whitened":
        parts |= {"coordinates": Whitened(), "dtype": torch.float32, "gaussian": True}
    return digits(0, 1), digits(1, 2), parts


GROWN = ("points", "pyramid", "whitened")


@pytest.mark.parametrize("kind", GROWN)
def test_a_planned_arrival_is_one_by_hand(kind):
    data, new, parts = grown(kind)
    planned, by_hand = (learner(data, **parts) for _ in range(2))
    planned.again(2, arriving=new)
    by_hand.run()
    fitted = by_hand.setup.W.tensors()["variances"].clone() if kind == "whitened" else None
    by_hand.insert(new)
    by_hand.again(2)
    assert planned.run().digest() == by_hand.run().digest()
    assert planned.samples().classes == tuple(sorted({*data.classes, *new.classes}))
    assert planned.data.digest() == by_hand.data.digest()
    if fitted is not None:  # other coordinates stay those of the first data
        assert torch.equal(by_hand.setup.W.tensors()["variances"], fitted)


@pytest.mark.parametrize("kind", GROWN)
@pytest.mark.parametrize("stopped", [2, 5])
def test_a_flow_that_goes_on_after_an_arrival_is_the_one_that_never_stopped(kind, stopped):
    data, new, parts = grown(kind)
    whole, broken, later = (learner(data, **parts) for _ in range(3))
    for flow in (whole, broken, later):
        flow.again(2, arriving=new)
    next(state for state in broken if state.total_step == stopped)
    later.restore(broken.snapshot())
    assert later.run().digest() == whole.run().digest()


def test_particles_of_new_data_begin_as_a_gaussian_of_these_if_the_first_did():
    data = random_data(n=400)
    new = attrs.evolve(random_data(n=400, seed=8), x=random_data(n=400, seed=8).x * 0.1 + 7)
    flow, noise = (learner(data, gaussian=gaussian, count=400) for gaussian in (True, False))
    for each in (flow, noise):
        each.insert(new)
    came = flow.particles.x[:, 400:]
    torch.testing.assert_close(came.mean(dim=1), new.x.mean(dim=1), atol=0.05, rtol=0)
    torch.testing.assert_close(came.cov(), new.x.cov(), atol=0.02, rtol=0)
    assert noise.particles.x[:, 400:].mean().abs() < 0.2
    flow.insert(new.take(torch.tensor([0])))  # alone: as the first
    assert (flow.particles.x[:, 800:] - data.x.mean(dim=1)[:, None]).abs().max() < 6
    assert torch.isfinite(flow.run().x).all()


def test_counts_that_were_kept_are_not_counted_again(monkeypatch):
    data, new = random_data(), random_data(seed=8)
    flow, planned = learner(data), learner(data)
    planned.again(2, arriving=new)
    flow.run()
    kept = flow.counts()
    tensors = {name: tensor.clone() for name, tensor in kept.tensors().items()}
    counts = Counts.of_tensors(tensors, kept.facts())
    later = OnlineFlow(data, flow.parts, flow.settings, sets=kept.sets, counts=counts)
    counted, insert = [], Counts.insert
    monkeypatch.setattr(
        Counts, "insert", lambda self, data, *more: counted.append(data) or insert(self, data, *more)
    )
    later.again(2, arriving=new)
    later.restore(flow.snapshot())
    end = later.run().digest()
    assert [part.digest() for part in counted] == [new.digest()]
    assert end == planned.run().digest()


@pytest.mark.parametrize("inside", ["points", "a coarse grid"])
def test_data_can_come_between_any_two_steps(inside):
    data, new, parts = random_data(), random_data(seed=9), {}
    if inside == "a coarse grid":
        parts = {"schedule": Pyramid(entries=ENTRIES, steps=3, directions=30), "projection": ConvStack()}
        data, new = digits(0, 1), digits(1, 0)
    flow = learner(data, **parts)
    steps = iter(flow)
    next(steps)
    before, labels = flow.samples(), flow.particles.conditions.labels.clone()
    flow.insert(new)
    after = flow.samples()
    torch.testing.assert_close(after.x[:, : len(before)], before.x, atol=1e-6, rtol=0)
    assert torch.equal(flow.particles.conditions.labels[: len(labels)], labels)
    assert flow.counts().samples == len(data) + len(new)
    assert len(flow.run()) == len(after) == round(30 * (len(data) + len(new)) / len(data))


def test_particles_keep_pace_with_samples_that_come_one_by_one():
    data = random_data(n=40)
    flow = learner(data, count=30)
    for number in range(20):
        flow.insert(data.take(torch.tensor([number])))
    assert len(flow.particles) == round(30 * 60 / 40)


def test_images_come_as_bytes_as_numbers_and_as_a_data_set_with_channels_first():
    levels = Key(4, "images").open().integers(256, 6, 1, 8, 8).to(torch.uint8)
    first = Dataset(
        x=levels.reshape(6, 64).T.float() / 128 - 1,
        space=digits().space,
        conditions=Conditions(labels=torch.arange(6) % 2),
        classes=("a", "b"),
        bin_width=1 / 128,
    )
    names, numbers = ["a", "b", "a", "b", "a", "b"], np.arange(6) % 2
    ends = set()
    forms = [(levels, names), (levels.numpy()[:, 0], numbers), (levels.float() / 128 - 1, numbers.tolist())]
    for samples, labels in [(first, None), *forms]:
        flow = learner(first)
        flow.insert(samples, labels)
        ends.add(flow.run().digest())
    assert len(ends) == 1
    with pytest.raises(DataError, match="must be n×1×8×8, got 2×8×8×1"):
        flow.insert(np.zeros((2, 8, 8, 1)), [0, 1])


def test_numbers_of_classes_come_in_any_kind():
    x, ends = torch.zeros(3, 5), set()
    numbers = ([0, 2, 1], np.array([0, 2, 1]), torch.tensor([0, 2, 1]), [np.int64(0), torch.tensor(2), 1])
    for labels in (*numbers, np.array(["0", "2", "1"])):
        flow = learner()
        flow.insert(x.numpy(), labels)
        ends.add(flow.data.digest())
    assert len(ends) == 1


def test_classes_are_matched_by_name():
    known = digits(3, 5, 7)
    new = digits(2, 3, 7).with_classes(known.classes)
    assert new.classes == ("3", "5", "7", "2")
    both = known.joined(new)
    for c, name in enumerate(both.classes):
        alone = len(digits(int(name)))
        assert int((both.conditions.labels == c).sum()) == (alone if name in "25" else 2 * alone)


def test_data_that_join_keep_what_they_are():
    known, new = digits(1), attrs.evolve(digits(1), bin_width=0.0)
    both = known.joined(new)
    assert both.bin_width == 0
    torch.testing.assert_close(both.x[:, : len(known)], known.x + known.bin_width / 2)
    mirrored = attrs.evolve(known, augmented=3, held_out=digits(1))
    both = mirrored.joined(mirrored)
    assert both.augmented == 6
    assert torch.equal(both.genuine().x[:, -1], known.x[:, -4])
    assert len(both.held_out) == 2 * len(known)


REFUSED = {
    "no room": (random_data(classes=5), None, "bring class '3', and there is room for 3"),
    "another space": (random_data(d=4), None, "new data are 4, and the flow's are 5"),
    "another shape": (torch.zeros(3, 7), None, "must be n×5, got 3×7"),
    "too few labels": (torch.zeros(3, 5), ["0"], "3 new samples and 1 labels"),
    "an unknown number": (torch.zeros(1, 5), [3], "a new class needs its name"),
    "no labels": (torch.zeros(1, 5), None, "needs labelled data"),
    "none at all": ([], None, "there are no new samples"),
    "no images": (np.zeros((0, 5)), [], "there are no new samples"),
    "a text": ("hello", None, "must be n×5 numbers, got str"),
    "nothing": (None, None, "must be n×5 numbers, got NoneType"),
    "rows of several lengths": ([[1.0, 2.0], [3.0]], None, "must be n×5 numbers, got list"),
    "one number": (7, None, "must be n×5, got one number"),
    "complex numbers": (torch.zeros(1, 5, dtype=torch.complex64), ["0"], "got complex64"),
    "one label": (torch.zeros(3, 5), 7, "a list with one for each new sample, got 7"),
    "one name": (torch.zeros(3, 5), "012", "a list with one for each new sample, got '012'"),
    "a bool": (torch.zeros(1, 5), [True], "label True is neither"),
    "bools": (torch.zeros(1, 5), np.array([True]), "label True is neither"),
    "labels twice": (random_data(), ["0"], "has its labels in it"),
    "NaN": (torch.full((1, 5), float("nan")), ["0"], "NaN"),
}


@pytest.mark.parametrize(("samples", "labels", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_data_that_do_not_fit_are_refused_and_change_nothing(samples, labels, sentence):
    flow, untouched = learner(), learner()
    with pytest.raises(DataError, match=sentence):
        flow.insert(samples, labels)
    assert flow.run().digest() == untouched.run().digest()


def test_too_little_room_is_told_alike_whether_it_was_given_or_not():
    with pytest.raises(RoomError, match=r"condition\.room is 2, and the data have 3 classes: give it 3 or mo"):
        learner(condition=OneHot(room=2))
    for room in (None, 3, 4):
        with pytest.raises(RoomError) as refused:
            learner(condition=OneHot(room=room)).insert(random_data(classes=5))
        assert refused.value.needed == 5


def test_a_step_size_that_falls_falls_over_as_many_steps_as_there_are():
    schedule = Pyramid(entries=ENTRIES, steps=4, directions=200, decay=0.5)
    flow = learner(digits(0, 1), schedule=schedule, projection=ConvStack())
    flow.again(10)
    flow.again([0, 3, 3])
    first, second, third = (flow.stages[i : i + 3] for i in (0, 3, 6))
    assert [stage.steps for stage in flow.stages] == [4, 4, 4, 10, 10, 10, 0, 3, 3]
    for before, after in [*zip(first, second, strict=True), *zip(first[1:], third[1:], strict=True)]:
        etas = [after.eta(step) for step in range(after.steps)]
        assert etas[0] == before.eta(0)
        assert all(eta > 0 for eta in etas)
        assert set(etas) <= {before.eta(step) for step in range(4)}
    assert list(flow)[-1].total_step == 12 + 30 + 6
    with pytest.raises(RunError, match=r"a round has 3 stages, and the steps given are \[1, 2\]"):
        flow.again([1, 2])


def test_vectors_join_vectors():
    data = random_data()
    data = attrs.evolve(data, conditions=Conditions(vectors=data.x[:2] * 0.5), classes=())
    flow = learner(data, condition=Continuous(amplifier=2.0))
    flow.run()
    flow.insert(data)
    flow.again()
    assert flow.run().conditions.vectors.shape == (2, 60)
