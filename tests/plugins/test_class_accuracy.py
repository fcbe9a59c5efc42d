"""The metric `class-accuracy`: it knows the classes, says how well, and leaves nothing behind."""

from __future__ import annotations

import attrs
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Conditions, Dataset, Key, Space, Workbench
from cswf_plugins.datasets.digits import Digits
from cswf_plugins.metrics.class_accuracy import ClassAccuracy, Variation
from tests.conftest import random_data


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits().load(Key(0, "data").open())


def compare(training: Dataset | None, generated: Dataset, **others: object) -> Comparison:
    draw = Key(0, "metric").open()
    return Comparison(generated, training or generated, draw, training=training, **others)


def stripes(shape: tuple[int, int, int], count: int = 24) -> Dataset:
    """Images of two classes, striped along or across, with noise."""
    along = (torch.arange(shape[1]) // 2 % 2).float()[:, None].expand(shape[1:])
    across = (torch.arange(shape[2]) // 2 % 2).float()[None, :].expand(shape[1:])
    labels = torch.arange(count) % 2
    clean = torch.stack([along, across])[labels][:, None].expand(-1, *shape).reshape(count, -1).T - 0.5
    x = clean + 0.2 * Key(1, "stripes").open().normal(*clean.shape)
    return Dataset(x.clamp(-1, 0.99), Space(shape), Conditions(labels=labels), ("along", "across"))


def test_real_digits_are_recognised_and_permuted_labels_are_not(digits):
    metric, bench = ClassAccuracy(steps=100), Workbench()
    real = digits.take(torch.arange(300))
    result = metric.compute(compare(digits, real, bench=bench))
    assert result.scores["class_accuracy"] > 0.95
    assert result.scores["class_accuracy_real"] > 0.95
    assert set(result.spreads) == set(result.meanings) == set(result.scores)
    assert f"accuracy on {result.counts['class_accuracy_real']:,} " in result.protocol
    assert "1,618 real images in 100 steps of 256; class_accuracy_real: its accuracy on 179" in result.protocol
    assert result.notes == []
    wrong = attrs.evolve(real, conditions=Conditions(labels=(real.conditions.labels + 1) % 10))
    scores = metric.compute(compare(digits, wrong, bench=bench)).scores
    assert scores["class_accuracy"] < 0.05
    noise = attrs.evolve(real, x=Key(2, "noise").open().uniform(*real.x.shape) * 2 - 1)
    assert metric.compute(compare(digits, noise, bench=bench)).scores["class_accuracy"] < 0.3


def test_held_out_images_are_the_ceiling_where_there_are_any(digits):
    seen, unseen = digits.take(torch.arange(500)), digits.take(torch.arange(500, 600))
    wrong = attrs.evolve(unseen, conditions=Conditions(labels=(unseen.conditions.labels + 1) % 10))
    result = ClassAccuracy(steps=50, batch=64).compute(compare(seen, unseen, held_out=wrong))
    assert result.scores["class_accuracy"] + result.scores["class_accuracy_real"] <= 1
    assert "trained on 500 real images in 50 steps of 64" in result.protocol
    assert "its accuracy on 100 held-out ones" in result.protocol
    assert "right about only" in result.notes[0]


def test_the_same_draw_gives_the_same_network_and_another_gives_another(digits):
    some, metric = digits.take(torch.arange(400)), ClassAccuracy(steps=8, batch=50)

    def learnt(seed: int, before: int = 0) -> tuple[dict[str, float], list[torch.Tensor]]:
        """Scores and weights, after whatever else has been drawn."""
        torch.manual_seed(before)
        comparison = attrs.evolve(compare(some, some), draw=Key(seed, "metric").open())
        comparison.draw.normal(1 + before)
        comparison.draw.host.normal(size=1 + before)
        network, *_ = metric._trained(comparison, some)
        return metric.compute(comparison).scores, list(network.parts.state_dict().values())

    scores, weights = learnt(0)
    again, same = learnt(0, before=3)
    assert scores == again
    assert all(map(torch.equal, weights, same))
    _, others = learnt(1)
    assert not any(torch.equal(w, o) for w, o in zip(weights, others, strict=True) if w.ndim > 1)


def test_nothing_global_is_changed_or_depended_on(digits):
    some = digits.take(torch.arange(60))
    cudnn = torch.backends.cudnn

    def state() -> tuple[object, ...]:
        flags = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
        return (*flags, *modes, torch.get_rng_state().tolist())

    def scores() -> dict[str, float]:
        before = state()
        found = ClassAccuracy(steps=3).compute(compare(some, some)).scores
        assert state() == before
        return found

    usual = scores()
    with torch.no_grad():
        assert scores() == usual
    with torch.inference_mode():
        assert scores() == usual
    torch.set_default_dtype(torch.float64)
    try:
        assert scores() == usual
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 4, 4),
        (3, 5, 9),
        (2, 28, 20),
        (3, 32, 32),
        (1, 70, 64),
    ],
)
def test_images_of_any_size_can_be_learnt(shape):
    data = stripes(shape)
    told: list[tuple[str, int, int]] = []
    bench = Workbench(tell=lambda *said: told.append(said))
    result = ClassAccuracy(steps=12, batch=12).compute(compare(data, data, held_out=data, bench=bench))
    scores = result.scores
    assert not result.meanings["class_accuracy_real"].of_samples
    assert scores["class_accuracy"] == scores["class_accuracy_real"] > 0.8
    assert told == [("training a classifier", done, 12) for done in range(1, 13)]
    some = data.take(torch.arange(3))
    ClassAccuracy(steps=12, batch=12).compute(compare(data, some, held_out=data, bench=bench))
    assert len(told) == 12  # the network is trained once for an evaluation


def test_small_sets_are_shown_no_more_often_than_helps_and_mirror_images_are_not_kept_apart():
    data = stripes((1, 4, 4))
    protocol = ClassAccuracy().compute(compare(data, data, held_out=data)).protocol
    assert "trained on 24 real images in 30 steps of 24" in protocol
    augmented = attrs.evolve(data, augmented=4)
    seen = compare(augmented.genuine(), data, mirrored=augmented.made())
    protocol = ClassAccuracy(steps=1).compute(seen).protocol
    assert "trained on 18 real images in 1 steps of 18; class_accuracy_real: its accuracy on 2 that" in protocol


def test_photographs_are_moved_and_mirrored_and_digits_are_not(digits):
    photographs = stripes((3, 16, 24))
    assert Variation.of(digits, mirrored=False) == Variation()
    assert Variation.of(digits, mirrored=True) == Variation(mirrored=True)
    assert Variation.of(photographs, mirrored=False) == Variation(2, 3, mirrored=True)
    images = photographs.images().float()
    draw = Key(0, "variation").open()
    assert Variation().apply(images, draw) is images
    mirrored = Variation(mirrored=True).apply(images, draw)
    kinds = [(torch.equal(a, b), torch.equal(a, b.flip(-1))) for a, b in zip(mirrored, images, strict=True)]
    assert set(kinds) == {(True, False), (False, True)}
    moved = Variation(2, 3).apply(images, draw)
    assert moved.shape == images.shape
    found = {(y, x) for y in range(-2, 3) for x in range(-3, 4) if _shifted(images[0], moved[0], y, x)}
    assert len(found) == 1


def _shifted(image: torch.Tensor, moved: torch.Tensor, y: int, x: int) -> bool:
    rolled = image.roll((y, x), dims=(1, 2))
    return torch.equal(rolled[:, 2:-2, 3:-3], moved[:, 2:-2, 3:-3])


def test_what_cannot_be_learnt_is_one_sentence_before_the_flow_where_that_can_be():
    data = stripes((1, 4, 4))
    unlabelled = attrs.evolve(data, conditions=Conditions())
    for wrong, complaint in (
        (random_data(), "needs images, and these data are points in 5 dimensions"),
        (unlabelled, "needs labels, and the data have none"),
        (stripes((1, 4, 3)), "needs images of 4 pixels, got 1×4×3"),
    ):
        with pytest.raises(DataError, match=complaint):
            ClassAccuracy().check(wrong, Workbench())
    for training, generated, complaint in (
        (data, unlabelled, "needs labels, and the generated samples have none"),
        (None, data, "needs the training images, and they are not known"),
        (data.take(torch.tensor([0])), data, "needs at least two training images"),
    ):
        with pytest.raises(DataError, match=complaint):
            ClassAccuracy().compute(compare(training, generated))
