"""Copies are told, and real images, blurred ones and chance are not taken for them."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
import torch
from torch.nn import functional

from cswf_core.errors import DataError
from cswf_core.evaluation.evaluate import evaluate
from cswf_core.evaluation.samples import read_real
from cswf_core.evaluation.task import FLOW_SHARE, PRODUCTS, Task
from cswf_core.interfaces import BIN, Comparison, Conditions, Dataset, Key, Masked, Result, Space, Workbench
from cswf_core.recipe import choose, load_recipe
from cswf_core.recipe.build import load_data
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.metrics.copies import (
    ADVICE,
    SHOWN,
    Copies,
    allowed_chance,
    chance_before,
    chance_of_at_least,
    relative_distances,
)
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.nearest_neighbours import NearestNeighbours
from tests.conftest import skip_without
from tests.evaluation.conftest import cloud, compare, images, joined, with_features

PIXELS = NearestNeighbours(spaces=("pixels",))


@pytest.fixture(scope="module")
def crowd() -> tuple[Dataset, ...]:
    """Training images, held-out ones, 180 others, and these with 40 copies of training images."""
    training, held_out, fresh = images(400, 0), images(200, 1), images(180, 2)
    return training, held_out, fresh, joined(fresh, training, slice(40))


def of_bytes(pixels: torch.Tensor) -> Dataset:
    """Images (n×C×H×W bytes) as samples."""
    x = pixels.flatten(1).T.float() * BIN - 1
    return Dataset(x, Space(tuple(pixels.shape[1:])), bin_width=BIN)


@pytest.fixture(scope="module")
def photos() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Photographs of CIFAR-10 as bytes: 800 training images, 600 held-out ones, and 300 more of these."""
    skip_without("cifar10")
    data = Cifar10(count=800, dequantise="none", download=False).load(Key(3, "data").open())
    assert data.held_out is not None
    others = data.held_out.take(torch.arange(900)).images()
    return data.images(), others[:600], others[600:]


def blurred(pixels: torch.Tensor, width: float) -> torch.Tensor:
    """Photographs blurred by a Gaussian of so many pixels: n×3×H×W bytes."""
    line = torch.exp(-torch.arange(-4.0, 5.0).square() / (2 * width**2))
    kernel = (line[:, None] * line / line.sum() ** 2).expand(3, 1, 9, 9)
    padded = functional.pad(pixels.float(), (4, 4, 4, 4), mode="reflect")
    return functional.conv2d(padded, kernel, groups=3).round().to(torch.uint8)


def photo_result(generated: torch.Tensor, photos: tuple[torch.Tensor, ...], held: bool) -> Result:
    training, held_out = of_bytes(photos[0]), of_bytes(photos[1]) if held else None
    return PIXELS.compute(compare(of_bytes(generated), training, training=training, held_out=held_out))


@pytest.mark.slow
def test_copies_have_fid_0_and_are_flagged_and_held_out_images_are_not(network, photographs):
    """On 5 real photographs, and 15 held-out ones, through the whole of the network."""
    training = photographs.take(torch.arange(5))
    held_out = photographs.held_out.take(torch.arange(15))
    bench = Workbench()
    for generated, copied in ((training.take(torch.arange(5)), True), (held_out, False)):
        comparison = compare(generated, training, training=training, held_out=held_out, bench=bench)
        measured = NearestNeighbours().compute(comparison)
        if copied:  # a FID takes seconds
            assert Fid().compute(comparison).scores["fid"] < 1e-3
        for end in ("l2", "features"):
            assert (measured.scores[f"copies_{end}"] == 1.0) == copied
            assert (measured.details[f"smallest_{end}"] == 0.0) == copied
        assert bool(measured.notes) == copied
        assert all(note.startswith("copying: ") for note in measured.notes)
        if not copied:
            assert measured.details["closer_l2"] == pytest.approx(0.5)


@pytest.mark.parametrize(("width", "held"), [(0.0, True), (1.0, False)])
def test_real_images_are_no_copies_nor_are_blurred_ones(width, held, photos):
    generated = blurred(photos[2], width) if width else photos[2]
    measured = photo_result(generated, photos, held)
    assert not measured.notes
    assert measured.scores["copies_l2"] < 0.02
    assert measured.details["near_copies_l2"] < 0.05
    assert (measured.details["closer_l2"] > 0.6) == (width >= 1)  # they are near, but to no one image


@pytest.mark.parametrize(("width", "held"), [(0.0, False), (0.5, True)])
def test_copies_among_photographs_are_told_also_if_they_are_blurred(width, held, photos):
    copies = blurred(photos[0][:20], width) if width else photos[0][:20]
    measured = photo_result(torch.cat([photos[2][:280], copies]), photos, held)
    assert 20 / 300 <= measured.scores["copies_l2"] < 24 / 300
    assert measured.notes[0].startswith("copying: 2")
    assert ("byte for byte" in measured.notes[0]) == (width == 0)


@pytest.mark.parametrize("held", [True, False])
def test_one_copy_is_counted_and_an_identical_one_is_told(held, photos):
    measured = photo_result(torch.cat([photos[2][:299], photos[0][:1]]), photos, held)
    assert 1 / 300 <= measured.scores["copies_l2"] < 5 / 300
    assert measured.details["smallest_ratio_l2"] == 0
    control = "600 held-out images" if held else "800 other training images"
    assert measured.notes == [
        f"identical: 1 of 300 samples is among the training images, byte for byte; of {control}, none is"
    ]
    noisy = photos[0][:1] ^ 3  # the last two bits of each byte
    measured = photo_result(torch.cat([photos[2][:299], noisy]), photos, held)
    assert measured.scores["copies_l2"] >= 1 / 300
    assert 0 < measured.details["smallest_ratio_l2"] < 0.1


@pytest.mark.parametrize("held", [True, False])
def test_two_copies_in_a_hundred_are_told(held):
    """Too few to move any average."""
    training, held_out = images(2000, 0), images(1000, 1) if held else None
    mixed = joined(images(980, 2), attrs.evolve(training, x=training.x + GREY), slice(20))
    measured = PIXELS.compute(compare(mixed, training, training=training, held_out=held_out))
    assert measured.details["near_copies_l2"] < 0.05
    assert len(measured.notes) == 2
    assert measured.notes[0].startswith("copying: 2")
    assert "of 1,000 samples are nearer to one of the training images than any of" in measured.notes[0]
    assert "of as many real images, " in measured.notes[0]
    assert measured.notes[1] == ADVICE


def test_copies_of_few_data_are_told_although_few_are_held_out():
    """A tenth of a folder of 300 pictures: 30 of them cannot tell 35 copies from chance."""
    training, held_out, fresh = images(270, 0), images(30, 1), images(265, 2)
    for generated, first in ((joined(fresh, training, slice(35)), "copying: 35 of 300"), (fresh, "")):
        measured = PIXELS.compute(compare(generated, training, training=training, held_out=held_out))
        assert "".join(measured.notes[:1]).startswith(first)
        assert bool(measured.notes) == bool(first)
        assert "270 other training images" in measured.protocol


def test_where_only_the_first_data_hold_images_out_these_are_no_control():
    training, held_out, fresh = images(400, 0), images(300, 1), images(100, 2)
    later = attrs.evolve(training, partly_held_out=True)
    measured = PIXELS.compute(compare(fresh, later, training=later, held_out=held_out))
    assert "400 other training images" in measured.protocol


def test_repeated_samples_count_once():
    training, held_out, fresh = images(400, 0), images(300, 1), images(30, 2)
    repeated = fresh.take(torch.arange(30).repeat(10))
    measured = PIXELS.compute(compare(repeated, training, training=training, held_out=held_out))
    assert measured.samples == 30


def test_copies_of_three_training_images_are_told():
    training = images(3, 0)
    noise = 0.01 * torch.randn(12, 300, generator=torch.Generator().manual_seed(1))
    copied = attrs.evolve(training, x=training.x.repeat(1, 100) + noise)
    measured = PIXELS.compute(compare(copied, training, training=training))
    assert measured.notes[0].startswith("copying: ")


def test_real_images_are_copies_as_often_as_expected_where_training_images_are_the_control():
    shares = []
    for seed in range(60):
        training, fresh = images(100, 2 * seed), images(200, 2 * seed + 1)
        measured = PIXELS.compute(compare(fresh, training, training=training))
        shares.append(measured.scores["copies_l2"])
    expected = measured.meanings["copies_l2"].expected
    assert expected == 1 / 51
    assert np.mean(shares) == pytest.approx(expected, rel=0.5)


def test_many_samples_that_are_somewhat_near_are_told():
    """None nearer than the nearest control image: they are too many."""
    control = torch.linspace(0.2, 1, 1000)
    middle = torch.linspace(0.201, 0.206, 60)
    copies = Copies(torch.cat([middle, torch.linspace(0.3, 1, 440)]), control)
    assert int(copies.copies.sum()) == 0
    assert int(copies.near.sum()) == 60
    assert copies.broken(allowed_chance([copies])) == {"near"}
    fewer = attrs.evolve(copies, samples=torch.cat([middle[:20], torch.linspace(0.3, 1, 480)]))
    assert fewer.broken(allowed_chance([fewer])) == set()  # beyond chance, but less than one in twenty


@pytest.mark.parametrize("held", [True, False])
def test_a_duplicate_in_the_data_does_not_hide_copies(held, crowd):
    training, held_out, _, mixed = crowd
    held_out = joined(held_out, training, slice(5, 6)) if held else None
    training = joined(training, training, slice(3))
    measured = PIXELS.compute(compare(mixed, training, training=training, held_out=held_out))
    assert measured.scores["copies_l2"] >= 40 / 220
    assert measured.notes[0].startswith("copying: 40 of 220 samples are among the training images")


def test_identical_images_are_no_sign_where_the_control_has_as_many(crowd):
    training, held_out, fresh, _ = crowd
    held_out, generated = (joined(each, training, slice(20)) for each in (held_out, fresh))
    measured = PIXELS.compute(compare(generated, training, training=training, held_out=held_out))
    assert measured.notes == [
        "identical: 20 of 200 samples are among the training images, byte for byte; "
        "of 220 held-out images, 20 are"
    ]


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

    def measured(generated: Dataset, mirrored: Dataset | None = mirror_images) -> Result:
        seen = {"training": training, "mirrored": mirrored, "held_out": real}
        return PIXELS.compute(compare(generated, training, **seen))

    clean, copied, mirrored = map(measured, (joined(fresh, near, slice(200, 210)), mixed, turned(mixed)))
    assert clean.details["copies_mirrored_l2_of_real"] == pytest.approx(12 / 212, abs=2 / 212)
    assert clean.details["copies_mirrored_l2"] == pytest.approx(10 / 190, abs=2 / 190)
    assert not clean.notes  # as many as held-out images have
    assert copied.scores["copies_l2"] >= 40 / 220
    assert copied.notes[0].startswith("copying: 4")
    assert copied.details["copies_mirrored_l2"] < 5 / 220
    assert mirrored.scores["copies_l2"] < 5 / 220
    assert mirrored.details["copies_mirrored_l2"] >= 40 / 220
    assert "are nearer to a mirror image of the training images than any of the latter" in mirrored.notes[0]
    assert mirrored.details["smallest_l2"] == 0
    row = mirrored.figures["nearest-of-all"].rows[0]
    assert torch.equal(row[0], row[1])  # the mirror image itself is shown
    far = [(image.float() - row[0].float()).norm() for image in row]
    assert len(row) == 1 + SHOWN
    assert far == sorted(far)
    data = joined(training, mirror_images, slice(None))
    every = (data.images().float() - row[0].float()).flatten(1).norm(dim=1).sort().values
    assert torch.equal(torch.stack(far[1:]), every[:SHOWN])
    plain = measured(mixed, None)
    assert plain.scores["copies_l2"] == copied.scores["copies_l2"]
    assert "copies_mirrored_l2" not in plain.details


def test_an_image_s_own_mirror_image_is_no_other_where_nothing_is_held_out(crowd):
    training, _, fresh, _ = crowd
    symmetric = (training.x + turned(training).x) / 2
    data = attrs.evolve(training, x=torch.where(torch.arange(400) < 120, symmetric, training.x))
    seen = {"training": data, "mirrored": turned(data)}
    measured = PIXELS.compute(compare(joined(fresh, data, slice(40)), data, **seen))
    assert measured.details["copies_mirrored_l2_of_real"] < 0.02
    assert measured.details["copies_mirrored_l2"] < 5 / 220  # copies of symmetric images are counted once
    assert measured.scores["copies_l2"] >= 40 / 220
    assert measured.details["nearest_l2_of_real"] > 0.3
    crowded = PIXELS.compute(compare(joined(fresh, turned(data), slice(200, 240)), data, **seen))
    assert "a mirror image of the training images" in crowded.notes[0]


def test_mirror_images_are_counted_apart_by_features_too():
    training, held_out, generated = images(50, 0), images(40, 1), images(30, 2)
    mirrored, rows = turned(training), cloud(50, 2)
    some = {training: cloud(50, 0), mirrored: rows, held_out: cloud(40, 1), generated: rows[15:45] + 1e-4}
    sets = {"training": training, "mirrored": mirrored, "held_out": held_out}
    comparison = compare(generated, held_out, **sets, bench=with_features(some))
    measured = NearestNeighbours(spaces=("features",)).compute(comparison)
    assert measured.details["copies_mirrored_features"] > 0.9
    assert measured.scores["copies_features"] < 0.1
    assert "copies_mirrored_l2" not in measured.details


def test_mirror_images_alone_are_no_training_images():
    data = images(1, 0)
    with pytest.raises(DataError, match="needs two training images or more"):
        PIXELS.compute(compare(images(5, 1), data, training=data, mirrored=images(2, 0)))


def test_two_training_images_are_enough_to_compute():
    data = images(2, 0)
    for held_out in (images(3, 2), None):
        mirrored = {"mirrored": turned(data), "held_out": held_out}
        measured = PIXELS.compute(compare(images(5, 1), data, training=data, **mirrored))
        assert not measured.notes


def test_the_chance_that_samples_come_first_is_that_of_drawing_without_putting_back():
    hypergeom = pytest.importorskip("scipy.stats").hypergeom
    for ours, drawn, n, m in ((0, 5, 10, 20), (3, 5, 10, 20), (7, 7, 100, 100), (40, 90, 300, 5000)):
        assert chance_of_at_least(ours, drawn, n, m) == pytest.approx(hypergeom.sf(ours - 1, n + m, n, drawn))
    assert chance_of_at_least(3, 5, 4, 2) == 1  # there are only two others
    orders = np.random.default_rng(0).random((20_000, 30)).argsort(axis=1)
    ranks = orders[:, :20].copy()  # where 20 samples come among 30, and then 10 real ones
    third = np.sort(orders[:, 20:], axis=1)[:, 2]
    share = ((ranks < third[:, None]).sum(axis=1) >= 9).mean()
    assert chance_before(9, 3, 20, 10) == pytest.approx(share, abs=4 * math.sqrt(share / 20_000))


def test_a_relative_distance_is_0_for_the_same_image_and_1_where_all_are_as_far():
    distances = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0], [3.0, 3.0, 3.0], [1.0, 2.0, 3.0]])
    assert relative_distances(distances).tolist() == [0, 0, 1, 0.5]
    assert relative_distances(torch.full((2, 1), math.inf)).tolist() == [1, 1]


def test_where_nothing_is_held_out_training_images_are_compared_with_all_others():
    training, fresh = images(300, 0), images(100, 1)
    measured = PIXELS.compute(compare(fresh, training, training=training))
    assert not measured.notes
    assert measured.details["closer_l2"] == pytest.approx(0.5, abs=0.1)
    others = torch.cdist(training.images().flatten(1).double(), training.images().flatten(1).double()) * BIN
    nearest_other = others.fill_diagonal_(math.inf).amin(dim=1)
    assert measured.details["nearest_l2_of_real"] == pytest.approx(float(nearest_other.quantile(0.5)), rel=1e-5)
    assert "other training images" in measured.protocol
    assert "each of the training images is compared with all others" in measured.protocol
    again = PIXELS.compute(
        attrs.evolve(compare(fresh, training, training=training), draw=Key(5, "other").open())
    )
    assert (again.scores, again.details) == (measured.scores, measured.details)  # nothing is drawn at random


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two():
    training, fresh = images(30, 0), images(4, 1)
    measured = PIXELS.compute(compare(fresh, training, training=training, held_out=images(9, 2)))
    far = (
        torch.cdist(fresh.images().flatten(1).double(), training.images().flatten(1).double()).amin(dim=1) * BIN
    )
    assert measured.details["nearest_l2"] == pytest.approx(float(np.median(far.numpy())), rel=1e-5)


def test_every_score_says_what_it_means_and_shares_how_sure_they_are(crowd):
    training, held_out, _, mixed = crowd
    seen = {"training": training, "mirrored": turned(training), "held_out": held_out}
    measured = PIXELS.compute(compare(mixed, training, **seen))
    values = {**measured.scores, **measured.details}
    assert set(measured.meanings) == set(values)
    assert all(meaning.sentence.endswith(".") for meaning in measured.meanings.values())
    assert {meaning.aspect for meaning in measured.meanings.values()} == {"copying"}
    of_real = {name for name, meaning in measured.meanings.items() if not meaning.of_samples}
    assert of_real == {"nearest_l2_of_real", "copies_mirrored_l2_of_real"}
    assert measured.counts == dict.fromkeys(of_real, 200)
    share = measured.scores["copies_l2"]
    smoothed = (share * 220 + 1) / 222  # so that a share of 0 is not taken for certain
    binomial = math.sqrt(smoothed * (1 - smoothed) / 220)
    assert binomial <= measured.spreads["copies_l2"].error < 2 * binomial  # with that of the control images
    assert measured.meanings["copies_l2"].expected == 1 / 201
    assert measured.meanings["near_copies_l2"].expected == 2 / 201


def test_the_figures_show_samples_before_their_neighbours():
    training, fresh = images(50, 0), images(7, 1)
    generated = joined(fresh, training, slice(9, 10))
    measured = PIXELS.compute(compare(generated, training, training=training))
    figure = measured.figures["nearest-of-all"]
    assert len(figure.rows) == 8
    assert figure.rows[0].shape == (1 + SHOWN, 3, 2, 2)
    assert torch.equal(figure.rows[0][0], training.images()[9])  # the copy is the nearest of all
    assert torch.equal(figure.rows[0][1], training.images()[9])
    assert figure.captions[0][:2] == ["0.00", "0"]
    assert [len(row) for row in figure.captions] == [1 + SHOWN] * 8
    assert figure.lead.startswith("The samples with the smallest relative distances")
    uncurated = measured.figures["nearest-neighbours"]
    assert torch.equal(uncurated.rows[2][0], generated.images()[2])
    assert not uncurated.left


@pytest.mark.parametrize(("classes", "rows"), [(2, 10), (3, 9), (10, 10), (40, 10)])
def test_the_figure_has_samples_of_all_classes_or_of_ten(classes, rows):
    names = tuple(f"class {number}" for number in range(classes))
    generated = images(200, 1, torch.arange(200) * classes // 200, names)
    training = images(50, 0)
    figure = PIXELS.compute(compare(generated, training, training=training)).figures["nearest-neighbours"]
    assert len(figure.rows) == len(figure.left) == rows
    assert len(set(figure.left)) == min(classes, 10)
    of_class = dict(
        zip(map(bytes, generated.images().numpy()), generated.conditions.labels.tolist(), strict=True)
    )
    assert [names[of_class[bytes(row[0].numpy())]] for row in figure.rows] == list(figure.left)


def test_a_cpu_spends_no_more_products_than_it_may(crowd):
    training, held_out, _, mixed = crowd

    def measured(generated: Dataset, products: int) -> Result:
        return PIXELS.compute(
            compare(generated, training, training=training, held_out=held_out, products=products)
        )

    enough = 400 * 12 * 100
    assert measured(mixed, enough).samples == 50
    assert "to 50 of 220 samples and to 50 held-out images" in measured(mixed, enough).protocol
    assert "to 30 samples and to 70 held-out images" in measured(mixed.take(slice(30)), enough).protocol
    assert measured(mixed, 1).samples == 20
    assert measured(mixed, enough).notes[-1].startswith("copies are looked for among 50 of 220 samples to save")
    assert not any("save time" in note for note in measured(mixed, 10**9).notes)


def test_the_search_for_copies_that_nobody_asked_for_takes_a_share_of_the_flow(registry):
    small = ("particles.count=100", "schedule.steps=10", "schedule.directions=32", "projection=uniform")
    recipe = load_recipe("digits", small, registry=registry)
    data = load_data(recipe)
    task = Task.of_recipe(recipe, data)
    assert task.products == 10 * 32 * 64 * (2 * 100 + 1797) // FLOW_SHARE
    later = load_recipe("digits", [*small, "online={steps: 5, arrivals: [digits]}"], registry=registry)
    assert Task.of_recipe(later, data).products == task.products // 2
    fewest = evaluate(data.take(slice(90)), task, source="", device=torch.device("cpu")).document
    assert {score["samples"] for score in fewest["scores"] if score["name"] == "copies_l2"} == {20}
    real = read_real("digits", registry)
    assert Task.of_images([real], recipe.metrics, registry).with_copying(registry).products == PRODUCTS
    asked = choose(registry, "metric", "{use: nearest-neighbours, spaces: [pixels]}")
    assert Task.of_images([real], [asked], registry).with_copying(registry).products is None


def test_samples_are_compared_in_the_grey_levels_of_the_data(registry):
    """Noise in grey levels, which samples of a flow have, does not hide copies: 17 levels, 16 bytes each."""
    data = load_data(load_recipe("digits", registry=registry))
    noise = torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0))
    dequantised = attrs.evolve(data, x=data.x + noise * data.bin_width * 0.93, bin_width=0.0)
    for generated in (data, dequantised):
        measured = PIXELS.compute(compare(generated, data, training=data))
        assert measured.details["smallest_l2"] == 0
        assert measured.scores["copies_l2"] == 1
        assert "1,797 of 1,797 samples are among the training images, byte for byte" in measured.notes[0]


def completions(hidden: slice, copied: int, seed: int = 0) -> Comparison:
    """200 training images of which a part is generated: fresh, or in `copied` of them that of another one."""
    training, held_out, fresh = images(400, seed), images(300, seed + 1), images(200, seed + 2)
    x = training.x[:, :200].clone()
    x[hidden] = fresh.x[hidden]
    x[hidden, :copied] = training.x[hidden, 200 : 200 + copied]
    generated = attrs.evolve(training, x=x, conditions=Conditions(origin=torch.arange(200)))
    mask = torch.ones(12, dtype=torch.bool)
    mask[hidden] = False
    return compare(
        generated,
        training,
        training=training,
        held_out=held_out,
        originals=training.x[:, :200],
        observation=Masked(mask),
    )


def test_completions_of_training_images_are_no_copies_unless_what_was_generated_is():
    hidden = slice(9, 12)  # little is generated: whole images are near to those that were given
    clean, copied = (PIXELS.compute(completions(hidden, count)) for count in (0, 30))
    assert not clean.notes
    assert clean.details["closer_l2"] == pytest.approx(0.5, abs=0.1)
    whole = attrs.evolve(completions(hidden, 0), originals=None, observation=None)
    assert PIXELS.compute(whole).notes
    assert copied.notes[0].startswith("copying: 30 of 200 samples are among the training images")
    assert "what was generated of samples, one for each image that is completed" in copied.protocol


def test_of_several_completions_of_one_image_one_is_looked_at():
    comparison = completions(slice(9, 12), 0)
    origin = torch.arange(200) // 4
    generated = attrs.evolve(comparison.generated, conditions=Conditions(origin=origin))
    measured = PIXELS.compute(attrs.evolve(comparison, generated=generated))
    assert measured.samples == 50


def test_the_image_that_a_sample_completes_is_left_out_also_if_it_is_a_mirror_image():
    training = images(60, 0)
    mirrored = turned(training)
    for originals in (training, mirrored):
        generated = attrs.evolve(
            originals, x=originals.x + GREY, conditions=Conditions(origin=torch.arange(60))
        )
        seen = {"training": training, "mirrored": mirrored, "held_out": images(60, 1)}
        measured = PIXELS.compute(compare(generated, training, originals=originals.x, **seen))
        assert not measured.notes
        assert measured.details["smallest_l2"] > 0.2


def test_scores_against_images_of_which_samples_contain_parts_say_so(registry):
    skip_without("mnist")
    small = ("data.count=60", "data.download=false", "particles.count=40", "condition.held_out=5")
    recipe = load_recipe("mnist-inpainting", small, registry=registry)
    data = load_data(recipe)
    origin = torch.cat([-1 - torch.arange(10), torch.arange(30)])
    conditions = Conditions(origin=origin)
    generated = attrs.evolve(data.take(origin.clamp(min=0)), conditions=conditions, bin_width=0.0)
    document = evaluate(generated, Task.of_recipe(recipe, data), source="", device=torch.device("cpu")).document
    told = [note for note in document["notes"] if "too good" in note]
    assert "sliced_wasserstein: too good, as 30 of 40 samples complete images of mnist:train" in told[0]
    assert "sliced_wasserstein_test: too good, as 10 of 40 samples complete images of mnist:test" in told[1]
    (score,) = (score for score in document["scores"] if score["name"] == "copies_l2")
    assert "what was generated of samples" in score["protocol"]


def test_images_of_a_folder_or_file_are_not_called_training_images(tmp_path, registry, crowd):
    np.savez(tmp_path / "mine.npz", images=crowd[0].images().numpy())
    real = read_real(str(tmp_path / "mine.npz"), registry)
    sliced = choose(registry, "metric", "sliced-wasserstein")
    task = Task.of_images([real], [sliced], registry).with_copying(registry)
    document = evaluate(crowd[3], task, source="", device=torch.device("cpu")).document
    (score,) = (score for score in document["scores"] if score["name"] == "copies_l2")
    assert "of 400 images of mine.npz to 220 samples and to 400 other images of mine.npz" in score["protocol"]
    assert "copying: 40 of 220 samples are among the images of mine.npz, byte for byte" in score["notes"][0]
    assert "training" not in score["protocol"] + "".join(score["notes"])
