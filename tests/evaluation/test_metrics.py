"""Metrics say of real images what must be so, and agree with clean-fid."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Space, Workbench
from cswf_core.kernels.frechet import moments
from cswf_plugins.metrics import nearest_neighbours
from cswf_plugins.metrics.class_fid import ClassFid
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.kid import Kid, kernel_distance
from cswf_plugins.metrics.nearest_neighbours import NearestNeighbours
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from tests.evaluation.conftest import compare


def with_features(samples: dict[Dataset, torch.Tensor]) -> Workbench:
    """A bench that has the features of these sets already: the arithmetic behind them is what is tested."""
    bench = Workbench()
    for dataset, rows in samples.items():
        bench.keep(("features", dataset, "legacy_tensorflow", "float32"), lambda rows=rows: rows)
        bench.keep(("moments", dataset, "legacy_tensorflow", "float32"), lambda rows=rows: moments(rows))
    return bench


def images(n: int, seed: int, labels: torch.Tensor | None = None, classes: tuple[str, ...] = ()) -> Dataset:
    x = torch.rand(12, n, generator=torch.Generator().manual_seed(seed)) * 1.9 - 1
    return Dataset(x, Space((3, 2, 2)), Conditions(labels=labels), classes)


def joined(images: Dataset, others: Dataset, which: slice) -> Dataset:
    """The images and some of the others."""
    return attrs.evolve(images, x=torch.cat([images.x, others.x[:, which]], dim=1))


@pytest.fixture(scope="module")
def crowd() -> tuple[Dataset, ...]:
    """Training images, held-out ones, 180 others, and these with 40 copies of training images."""
    training, held_out, fresh = images(400, 0), images(200, 1), images(180, 2)
    return training, held_out, fresh, joined(fresh, training, slice(40))


PIXELS = NearestNeighbours(spaces=("pixels",))


def cloud(n: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)) + shift


@pytest.mark.slow
def test_copies_have_fid_0_and_are_flagged_and_held_out_images_are_not(network, photographs):
    """On 5 real photographs, and 15 held-out ones, through the whole of the network."""
    training = photographs.take(torch.arange(5))
    held_out = photographs.held_out.take(torch.arange(15))
    bench = Workbench()
    for generated, copied in ((training.take(torch.arange(5)), True), (held_out, False)):
        comparison = compare(generated, training, training=training, held_out=held_out, bench=bench)
        found = NearestNeighbours().compute(comparison)
        if copied:  # a FID takes seconds
            assert Fid().compute(comparison).scores["fid"] < 1e-3
        for end in ("l2", "features"):
            assert (found.scores[f"copied_{end}"] == 1.0) == copied
            assert (found.details[f"smallest_{end}"] == 0.0) == copied
        assert bool(found.notes) == copied
        assert all(note.startswith("copying: ") for note in found.notes)
        if not copied:
            assert found.details["closer_l2"] == pytest.approx(0.5)


def test_a_few_copies_among_many_samples_are_flagged(crowd):
    training, held_out, fresh, mixed = crowd
    found = PIXELS.compute(compare(mixed, training, training=training, held_out=held_out))
    assert found.scores["copied_l2"] >= 40 / 220
    assert found.notes[0].startswith("copying: 4")
    clean = PIXELS.compute(compare(fresh, training, training=training, held_out=held_out))
    assert not clean.notes
    assert clean.details["near_l2"] < 0.05


def test_ten_copies_in_a_thousand_samples_are_told():
    """Too few to move any average."""
    training, held_out = images(2000, 0), images(1000, 1)
    mixed = joined(images(990, 2), training, slice(10))
    found = PIXELS.compute(compare(mixed, training, training=training, held_out=held_out))
    assert found.details["near_l2"] < 0.05
    assert len(found.notes) == 1
    assert "of 1,000 samples are nearer to a training image, in pixels, than any of 1,000" in found.notes[0]


@pytest.mark.parametrize("held", [True, False])
def test_a_duplicate_in_the_data_does_not_hide_copies(held, crowd):
    training, held_out, _, mixed = crowd
    held_out = joined(held_out, training, slice(5, 6)) if held else None
    training = joined(training, training, slice(1))
    found = PIXELS.compute(compare(mixed, training, training=training, held_out=held_out))
    assert found.scores["copied_l2"] >= 40 / 220
    assert found.notes[0].startswith("copying: 4")


def turned(images: Dataset, shift: float = 0.0) -> Dataset:
    """The mirror images, a little brighter or not."""
    x = images.x.view(3, 2, 2, -1).flip(2).reshape(images.x.shape)
    return attrs.evolve(images, x=x + shift)


GREY = 2 / 128
"""Two grey levels: far below the distance of different images, and above 0."""


def test_held_out_images_that_are_nearly_mirror_images_do_not_hide_copies(crowd):
    """CIFAR-10 has such: with mirror images among the data, the smallest distance of a real image is near 0."""
    training, held_out, fresh, mixed = crowd
    near, mirror_images = turned(training, GREY), turned(training)
    real = joined(held_out, near, slice(300, 312))

    def measured(generated: Dataset, mirrored: Dataset | None = mirror_images):
        seen = {"training": training, "mirrored": mirrored, "held_out": real}
        return PIXELS.compute(compare(generated, training, **seen))

    clean, copied, mirrored = map(measured, (joined(fresh, near, slice(200, 210)), mixed, turned(mixed)))
    assert clean.details["copied_mirrored_l2_of_real"] == 12 / 212
    assert clean.details["copied_mirrored_l2"] == 10 / 190
    assert not clean.notes  # as many as held-out images have
    assert copied.scores["copied_l2"] >= 40 / 220
    assert copied.notes[0].startswith("copying: 4")
    assert copied.details["copied_mirrored_l2"] < 5 / 220
    assert mirrored.scores["copied_l2"] < 5 / 220
    assert mirrored.details["copied_mirrored_l2"] >= 40 / 220
    assert "mirror image of a training image, in pixels" in mirrored.notes[0]
    assert "of 220 samples, and 12 of 212 held-out images, are nearer to the mirror" in mirrored.notes[0]
    assert mirrored.details["smallest_l2"] == 0
    row = mirrored.figures["nearest-of-all"].rows[0]
    assert torch.equal(row[0], row[1])  # the mirror image itself is shown
    far = [(image.float() - row[0].float()).norm() for image in row]
    assert len(row) == 1 + nearest_neighbours.NEIGHBOURS
    assert far == sorted(far)
    data = joined(training, mirror_images, slice(None))
    every = (data.images().float() - row[0].float()).flatten(1).norm(dim=1).sort().values
    assert torch.equal(torch.stack(far[1:]), every[: nearest_neighbours.NEIGHBOURS])
    plain = measured(mixed, None)
    assert plain.scores["copied_l2"] == copied.scores["copied_l2"]
    assert "copied_mirrored_l2" not in plain.details


def test_an_image_s_own_mirror_image_is_no_other_where_nothing_is_held_out(crowd):
    training, _, fresh, _ = crowd
    symmetric = (training.x + turned(training).x) / 2
    data = attrs.evolve(training, x=torch.where(torch.arange(400) < 120, symmetric, training.x))
    seen = {"training": data, "mirrored": turned(data)}
    found = PIXELS.compute(compare(joined(fresh, data, slice(40)), data, **seen))
    assert found.details["copied_mirrored_l2_of_real"] < 0.01
    assert found.details["copied_mirrored_l2"] < 5 / 220  # copies of symmetric images are counted once
    assert found.scores["copied_l2"] >= 40 / 220
    crowded = PIXELS.compute(compare(joined(fresh, turned(data), slice(200, 240)), data, **seen))
    assert "mirror image of a training image" in crowded.notes[0]


def test_mirror_images_are_counted_apart_by_features_too():
    training, held_out, generated = images(50, 0), images(40, 1), images(30, 2)
    mirrored, rows = turned(training), cloud(50, 2)
    some = {training: cloud(50, 0), mirrored: rows, held_out: cloud(40, 1), generated: rows[15:45] + 1e-4}
    sets = {"training": training, "mirrored": mirrored, "held_out": held_out}
    comparison = compare(generated, held_out, **sets, bench=with_features(some))
    found = NearestNeighbours(spaces=("features",)).compute(comparison)
    assert found.details["copied_mirrored_features"] > 0.9
    assert found.scores["copied_features"] < 0.1
    assert "copied_mirrored_l2" not in found.details


def test_mirror_images_alone_are_no_training_images():
    data = images(1, 0)
    with pytest.raises(DataError, match="needs the training images"):
        PIXELS.compute(compare(images(5, 1), data, training=data, mirrored=images(2, 0)))


def test_the_chance_of_copies_is_that_of_a_binomial():
    chance = nearest_neighbours.chance
    assert chance(0, 0, 10, 20) == 1
    assert chance(7, 0, 100, 100) == pytest.approx(2**-7)
    assert chance(9, 4, 300, 100) == pytest.approx(
        sum(math.comb(13, k) * 0.75**k * 0.25 ** (13 - k) for k in range(9, 14))
    )


def test_where_nothing_is_held_out_training_images_and_their_nearest_others_stand_in():
    training, fresh = images(300, 0), images(100, 1)
    found = PIXELS.compute(compare(fresh, training, training=training))
    assert not found.notes
    assert found.details["closer_l2"] == pytest.approx(0.5, abs=0.1)
    assert "other training images" in found.protocol


def test_the_figures_show_samples_before_their_neighbours():
    training, fresh = images(50, 0), images(7, 1)
    generated = joined(fresh, training, slice(9, 10))
    found = PIXELS.compute(compare(generated, training, training=training))
    figure = found.figures["nearest-of-all"]
    assert len(figure.rows) == 8
    assert figure.rows[0].shape == (1 + nearest_neighbours.NEIGHBOURS, 3, 2, 2)
    assert torch.equal(figure.rows[0][0], training.images()[9])  # the copy is the nearest of all
    assert torch.equal(figure.rows[0][1], training.images()[9])
    uncurated = found.figures["nearest-neighbours"]
    assert torch.equal(uncurated.rows[2][0], generated.images()[2])


def test_kid_is_clean_fid_s_and_unbiased():
    fid = pytest.importorskip("cleanfid.fid")
    p, q = cloud(80, 0).double(), cloud(80, 1, 0.3).double()
    theirs = fid.kernel_distance(p.numpy(), q.numpy(), num_subsets=1, max_subset_size=80)
    assert kernel_distance(p, q) == pytest.approx(theirs, rel=1e-9)
    many = [kernel_distance(cloud(30, 2 * s).double(), cloud(30, 2 * s + 1).double()) for s in range(200)]
    assert abs(np.mean(many)) < 3 * np.std(many) / np.sqrt(200)


def test_precision_recall_density_and_coverage_of_known_clouds():
    near, far = cloud(300, 0), cloud(300, 1, 50.0)
    sets = {images(300, s): rows for s, rows in enumerate((near, cloud(300, 2), far))}
    real, same, away = sets
    bench = with_features(sets)
    for generated, high in ((same, True), (away, False)):
        comparison = compare(generated, real, bench=bench)
        metrics = (PrecisionRecall(), DensityCoverage())
        scores = {k: v for metric in metrics for k, v in metric.compute(comparison).scores.items()}
        for name, value in scores.items():
            assert value > 0.8 if high else value == 0.0, name
    half = images(300, 7)
    bench = with_features({real: near, half: torch.cat([near[:150], far[:150]])})
    found = PrecisionRecall().compute(compare(half, real, bench=bench)).scores
    assert found["precision"] == pytest.approx(0.5, abs=0.01)


def test_sets_of_different_size_are_cut_to_the_smaller():
    real, generated = images(40, 0), images(100, 1)
    bench = with_features({real: cloud(40, 0), generated: cloud(100, 1)})
    result = PrecisionRecall().compute(compare(generated, real, bench=bench))
    assert result.samples == 40
    few = images(3, 2)
    bench = with_features({few: cloud(3, 0), generated: cloud(100, 1)})
    with pytest.raises(DataError, match="needs more images than that, got 3"):
        PrecisionRecall().compute(compare(few, generated, bench=bench))


def test_class_fid_sees_classes_that_were_swapped():
    labels = torch.arange(200) % 2
    real = images(200, 0, labels, ("cat", "dog"))
    right, swapped = images(200, 1, labels, ("cat", "dog")), images(200, 2, 1 - labels, ("cat", "dog"))
    place = labels[:, None] * 10.0
    features = {real: cloud(200, 0), right: cloud(200, 1), swapped: cloud(200, 1)}
    bench = with_features({dataset: rows + place for dataset, rows in features.items()})
    good, bad = (ClassFid().compute(compare(g, real, bench=bench)) for g in (right, swapped))
    assert set(good.details) == {"class_fid.cat", "class_fid.dog"}
    assert good.scores["class_fid"] == pytest.approx(sum(good.details.values()) / 2)
    assert bad.scores["class_fid"] > 100 * good.scores["class_fid"]
    whole = [Fid().compute(compare(g, real, bench=bench)).scores["fid"] for g in (right, swapped)]
    assert whole[0] == pytest.approx(whole[1])


def test_class_fid_goes_by_the_names_of_classes():
    labels = torch.arange(90) % 3
    real = images(90, 0, labels, ("bird", "cat", "dog"))
    some = images(60, 1, torch.arange(60) % 2, ("cat", "dog"))
    places = (1 + torch.arange(60)[:, None] % 2) * 10.0
    bench = with_features({real: cloud(90, 0) + labels[:, None] * 10.0, some: cloud(60, 1) + places})
    assert ClassFid().compute(compare(some, real, bench=bench)).scores["class_fid"] < 3
    other = attrs.evolve(some, classes=("cat", "fish"))
    bench = with_features({real: cloud(90, 0), other: cloud(60, 1)})
    with pytest.raises(DataError, match="have no class 'fish'"):
        ClassFid().compute(compare(other, real, bench=bench))


@pytest.mark.parametrize("metric", [Fid(), Kid()])
def test_one_image_is_too_few(metric):
    with pytest.raises(DataError, match="needs at least two generated images, and there is 1"):
        metric.compute(compare(images(1, 0), images(5, 1)))


@pytest.mark.parametrize("metric", [Fid(), Kid(), PrecisionRecall(), DensityCoverage(), NearestNeighbours()])
def test_points_are_refused_before_the_flow(metric):
    points = Dataset(torch.zeros(2, 9), Space((2,)))
    with pytest.raises(DataError, match="images"):
        metric.check(points, Workbench())
