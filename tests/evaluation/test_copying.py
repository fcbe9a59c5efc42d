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
from cswf_core.evaluation.samples import Generated
from cswf_core.evaluation.task import FLOW_SHARE, PRODUCTS, Task, read_real
from cswf_core.interfaces import BIN, Comparison, Conditions, Dataset, Key, Masked, Result, Space, Workbench
from cswf_core.recipe import choose, load_recipe
from cswf_core.recipe.build import load_data
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


def photo_result(generated: torch.Tensor, photos: tuple[torch.Tensor, ...], held: bool) -> Result:
    """Search for copies among photographs given as bytes, n×3×16×16."""
    sets = (generated, photos[0], photos[1])
    samples, training, held_out = (
        Dataset(each.flatten(1).T.float() * BIN - 1, Space(tuple(each.shape[1:])), bin_width=BIN)
        for each in sets
    )
    return found_in(samples, training, held_out=held_out if held else None)


def found_in(generated: Dataset, training: Dataset, **sets: object) -> Result:
    """Search for copies of training images by pixels."""
    return PIXELS.compute(compare(generated, training, training=training, **sets))


@pytest.fixture(scope="module")
def photos(cifar10: Dataset) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The middle of photographs of CIFAR-10, as bytes: 400 for training, 300 held out, 150 more of these."""
    held_out = cifar10.held_out.take(torch.arange(450))
    training, others = (each.images()[..., 8:24, 8:24].contiguous() for each in (cifar10, held_out))
    return training, others[:300], others[300:]


def blurred(pixels: torch.Tensor, width: float) -> torch.Tensor:
    """Photographs blurred by a Gaussian of so many pixels: n×3×H×W bytes."""
    line = torch.exp(-torch.arange(-4.0, 5.0).square() / (2 * width**2))
    kernel = (line[:, None] * line / line.sum() ** 2).expand(3, 1, 9, 9)
    padded = functional.pad(pixels.float(), (4, 4, 4, 4), mode="reflect")
    return functional.conv2d(padded, kernel, groups=3).round().to(torch.uint8)


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
    measured = photo_result(blurred(photos[2], width) if width else photos[2], photos, held)
    assert not measured.notes
    assert measured.scores["copies_l2"] < 0.02
    assert measured.details["near_copies_l2"] < 0.05
    assert (measured.details["closer_l2"] > 0.6) == (width >= 1)  # they are near, but to no one image


@pytest.mark.parametrize(("width", "held"), [(0.0, False), (0.5, True)])
def test_copies_among_photographs_are_told_also_if_they_are_blurred(width, held, photos):
    copies = blurred(photos[0][:10], width) if width else photos[0][:10]
    measured = photo_result(torch.cat([photos[2][:140], copies]), photos, held)
    assert 10 / 150 <= measured.scores["copies_l2"] < 12 / 150
    assert measured.notes[0].startswith("copying: 1")
    assert ("byte for byte" in measured.notes[0]) == (width == 0)


@pytest.mark.parametrize("held", [True, False])
def test_one_copy_is_counted_and_an_identical_one_is_told(held, photos):
    def with_copy(copy: torch.Tensor) -> Result:
        return photo_result(torch.cat([photos[2][:149], copy]), photos, held)

    measured = with_copy(photos[0][:1])
    assert 1 / 150 <= measured.scores["copies_l2"] < 2.5 / 150
    assert measured.details["smallest_ratio_l2"] == 0
    control = "300 held-out images" if held else "400 other training images"
    assert measured.notes == [
        f"identical: 1 of 150 samples is among the training images, byte for byte; of {control}, none is"
    ]
    noisy = with_copy(photos[0][:1] ^ 3)  # the last two bits of each byte
    assert noisy.scores["copies_l2"] >= 1 / 150
    assert 0 < noisy.details["smallest_ratio_l2"] < 0.1


@pytest.mark.parametrize("held", [True, False])
def test_two_copies_in_a_hundred_are_told(held):
    """Too few to move any average."""
    training, held_out = images(2000, 0), images(1000, 1) if held else None
    mixed = joined(images(980, 2), attrs.evolve(training, x=training.x + GREY), slice(20))
    measured = found_in(mixed, training, held_out=held_out)
    assert measured.details["near_copies_l2"] < 0.05
    assert len(measured.notes) == 2
    assert measured.notes[0].startswith("copying: 2")
    assert "of 1,000 samples are nearer to one of the training images than any of" in measured.notes[0]
    assert "of as many real images, " in measured.notes[0]
    assert measured.notes[1] == ADVICE


def test_held_out_images_are_no_control_where_they_are_few_or_of_the_first_data_only():
    """A tenth of a folder of 300 pictures: 30 of them cannot tell 35 copies from chance."""
    training, held_out, fresh = images(270, 0), images(30, 1), images(265, 2)
    for generated, first in ((joined(fresh, training, slice(35)), "copying: 35 of 300"), (fresh, "")):
        measured = found_in(generated, training, held_out=held_out)
        assert "".join(measured.notes[:1]).startswith(first)
        assert bool(measured.notes) == bool(first)
        assert "270 other training images" in measured.protocol
    later = attrs.evolve(images(400, 0), partly_held_out=True)
    assert "400 other training images" in found_in(fresh, later, held_out=images(300, 1)).protocol


def test_repeated_samples_count_once_and_copies_of_three_training_images_are_told():
    repeated = images(30, 2).take(torch.arange(30).repeat(10))
    assert found_in(repeated, images(400, 0), held_out=images(300, 1)).samples == 30
    three = images(3, 0)
    noise = 0.01 * torch.randn(12, 300, generator=torch.Generator().manual_seed(1))
    copied = attrs.evolve(three, x=three.x.repeat(1, 100) + noise)
    assert found_in(copied, three).notes[0].startswith("copying: ")


def test_real_images_are_copies_as_often_as_expected_where_training_images_are_the_control():
    found = [found_in(images(200, 2 * seed + 1), images(100, 2 * seed)) for seed in range(60)]
    expected = found[0].meanings["copies_l2"].expected
    assert expected == 1 / 51
    assert np.mean([each.scores["copies_l2"] for each in found]) == pytest.approx(expected, rel=0.5)


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
    control = joined(held_out, training, slice(5, 6)) if held else None
    measured = found_in(mixed, joined(training, training, slice(3)), held_out=control)
    assert measured.scores["copies_l2"] >= 40 / 220
    assert measured.notes[0].startswith("copying: 40 of 220 samples are among the training images")


def test_identical_images_are_no_sign_where_the_control_has_as_many(crowd):
    training, held_out, fresh, _ = crowd
    control, generated = (joined(each, training, slice(20)) for each in (held_out, fresh))
    assert found_in(generated, training, held_out=control).notes == [
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
    near = turned(training, GREY)
    sets = {"held_out": joined(held_out, near, slice(300, 312)), "mirrored": turned(training)}
    clean = found_in(joined(fresh, near, slice(200, 210)), training, **sets)
    assert clean.details["copies_mirrored_l2_of_real"] == pytest.approx(12 / 212, abs=2 / 212)
    assert clean.details["copies_mirrored_l2"] == pytest.approx(10 / 190, abs=2 / 190)
    assert not clean.notes  # as many as held-out images have
    copied = found_in(mixed, training, **sets)
    assert copied.scores["copies_l2"] >= 40 / 220
    assert copied.notes[0].startswith("copying: 4")
    assert copied.details["copies_mirrored_l2"] < 5 / 220
    plain = found_in(mixed, training, held_out=sets["held_out"])
    assert plain.scores["copies_l2"] == copied.scores["copies_l2"]
    assert "copies_mirrored_l2" not in plain.details


def test_copies_of_mirror_images_are_counted_told_and_shown_apart(crowd):
    training, held_out, _, mixed = crowd
    measured = found_in(turned(mixed), training, mirrored=turned(training), held_out=held_out)
    assert measured.scores["copies_l2"] < 5 / 220
    assert measured.details["copies_mirrored_l2"] >= 40 / 220
    assert "are nearer to a mirror image of the training images than any of the latter" in measured.notes[0]
    assert measured.details["smallest_l2"] == 0
    row = measured.figures["nearest-of-all"].rows[0]
    assert torch.equal(row[0], row[1])  # the mirror image itself is shown
    data = joined(training, turned(training), slice(None))
    every = (data.images().float() - row[0].float()).flatten(1).norm(dim=1).sort().values
    far = torch.stack([(image.float() - row[0].float()).norm() for image in row[1:]])
    assert torch.equal(far, every[:SHOWN])


def test_an_image_s_own_mirror_image_is_no_other_where_nothing_is_held_out(crowd):
    training, _, fresh, _ = crowd
    symmetric = (training.x + turned(training).x) / 2
    data = attrs.evolve(training, x=torch.where(torch.arange(400) < 120, symmetric, training.x))
    measured = found_in(joined(fresh, data, slice(40)), data, mirrored=turned(data))
    assert measured.details["copies_mirrored_l2_of_real"] < 0.02
    assert measured.details["copies_mirrored_l2"] < 5 / 220  # copies of symmetric images are counted once
    assert measured.scores["copies_l2"] >= 40 / 220
    assert measured.details["nearest_l2_of_real"] > 0.3
    crowded = found_in(joined(fresh, turned(data), slice(200, 240)), data, mirrored=turned(data))
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


def test_two_training_images_are_enough_and_one_with_its_mirror_image_is_not():
    two, one = images(2, 0), images(1, 0)
    for held_out in (images(3, 2), None):
        assert not found_in(images(5, 1), two, mirrored=turned(two), held_out=held_out).notes
    with pytest.raises(DataError, match="needs two training images or more"):
        found_in(images(5, 1), one, mirrored=images(2, 0))


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
    comparison = compare(fresh, training, training=training)
    measured = PIXELS.compute(comparison)
    assert not measured.notes
    assert measured.details["closer_l2"] == pytest.approx(0.5, abs=0.1)
    rows, ours = (each.images().flatten(1).double() for each in (training, fresh))
    for name, distances in (
        ("nearest_l2", torch.cdist(ours, rows)),
        ("nearest_l2_of_real", torch.cdist(rows, rows).fill_diagonal_(math.inf)),
    ):
        median = distances.amin(dim=1).quantile(0.5) * BIN  # of an even number, the mean of the middle two
        assert measured.details[name] == pytest.approx(float(median), rel=1e-5)
    assert "other training images" in measured.protocol
    assert "each of the training images is compared with all others" in measured.protocol
    again = PIXELS.compute(attrs.evolve(comparison, draw=Key(5, "other").open()))
    assert (again.scores, again.details) == (measured.scores, measured.details)  # nothing is drawn at random


def test_every_score_says_what_it_means_and_shares_how_sure_they_are(crowd):
    training, held_out, _, mixed = crowd
    measured = found_in(mixed, training, mirrored=turned(training), held_out=held_out)
    assert set(measured.meanings) == {*measured.scores, *measured.details}
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
    figures = found_in(generated, training).figures
    figure = figures["nearest-of-all"]
    assert len(figure.rows) == 8
    assert figure.rows[0].shape == (1 + SHOWN, 3, 2, 2)
    assert torch.equal(figure.rows[0][0], training.images()[9])  # the copy is the nearest of all
    assert torch.equal(figure.rows[0][1], training.images()[9])
    assert figure.captions[0][:2] == ["0.00", "0"]
    assert [len(row) for row in figure.captions] == [1 + SHOWN] * 8
    assert figure.lead.startswith("The samples with the smallest relative distances")
    uncurated = figures["nearest-neighbours"]
    assert torch.equal(uncurated.rows[2][0], generated.images()[2])
    assert not uncurated.left


@pytest.mark.parametrize(("classes", "rows"), [(2, 10), (3, 9), (10, 10), (40, 10)])
def test_the_figure_has_samples_of_all_classes_or_of_ten(classes, rows):
    names = tuple(f"class {number}" for number in range(classes))
    generated = images(200, 1, torch.arange(200) * classes // 200, names)
    figure = found_in(generated, images(50, 0)).figures["nearest-neighbours"]
    assert len(figure.rows) == len(figure.left) == rows
    assert len(set(figure.left)) == min(classes, 10)
    shown = map(bytes, generated.images().numpy())
    of_class = dict(zip(shown, generated.conditions.labels.tolist(), strict=True))
    assert [names[of_class[bytes(row[0].numpy())]] for row in figure.rows] == list(figure.left)


def test_a_cpu_spends_no_more_products_than_it_may(crowd):
    training, held_out, _, mixed = crowd
    enough = 400 * 12 * 100
    some = found_in(mixed, training, held_out=held_out, products=enough)
    assert some.samples == 50
    assert "to 50 of 220 samples and to 50 held-out images" in some.protocol
    assert some.notes[-1].startswith("copies are looked for among 50 of 220 samples to save")
    few = found_in(mixed.take(slice(30)), training, held_out=held_out, products=enough)
    assert "to 30 samples and to 70 held-out images" in few.protocol
    assert found_in(mixed, training, held_out=held_out, products=1).samples == 20
    every = found_in(mixed, training, held_out=held_out, products=10**9)
    assert not any("save time" in note for note in every.notes)


def test_the_search_for_copies_that_nobody_asked_for_takes_a_share_of_the_flow(registry):
    small = ("particles.count=100", "schedule.steps=10", "schedule.directions=32", "projection=uniform")
    recipe = load_recipe("digits", small, registry=registry)
    data = load_data(recipe)
    task = Task.of_recipe(recipe, data)
    assert task.products == 10 * 32 * 64 * (2 * 100 + 1797) // FLOW_SHARE
    later = load_recipe("digits", [*small, "online={steps: 5, arrivals: [digits]}"], registry=registry)
    assert Task.of_recipe(later, data).products == task.products // 2
    fewest = evaluate(Generated(data.take(slice(90))), task, device=torch.device("cpu")).document
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
    measured = found_in(dequantised, data)
    assert measured.details["smallest_l2"] == 0
    assert measured.scores["copies_l2"] == 1
    assert "1,797 of 1,797 samples are among the training images, byte for byte" in measured.notes[0]


def completions(hidden: slice, copied: int) -> Comparison:
    """200 training images of which a part is generated: fresh, or in `copied` of them that of another one."""
    training, held_out, fresh = images(400, 0), images(300, 1), images(200, 2)
    x = training.x[:, :200].clone()
    x[hidden] = fresh.x[hidden]
    x[hidden, :copied] = training.x[hidden, 200 : 200 + copied]
    generated = attrs.evolve(training, x=x, conditions=Conditions(origin=torch.arange(200)))
    mask = torch.ones(12, dtype=torch.bool)
    mask[hidden] = False
    sets = {"training": training, "held_out": held_out, "originals": training.x[:, :200]}
    return compare(generated, training, observation=Masked(mask), **sets)


def test_completions_of_training_images_are_no_copies_unless_what_was_generated_is():
    hidden = slice(9, 12)  # little is generated: whole images are near to those that were given
    comparison = completions(hidden, 0)
    clean, copied = (PIXELS.compute(each) for each in (comparison, completions(hidden, 30)))
    assert not clean.notes
    assert clean.details["closer_l2"] == pytest.approx(0.5, abs=0.1)
    assert PIXELS.compute(attrs.evolve(comparison, originals=None, observation=None)).notes
    assert copied.notes[0].startswith("copying: 30 of 200 samples are among the training images")
    assert "what was generated of samples, one for each image that is completed" in copied.protocol
    fours = attrs.evolve(comparison.generated, conditions=Conditions(origin=torch.arange(200) // 4))
    assert PIXELS.compute(attrs.evolve(comparison, generated=fours)).samples == 50


def test_the_image_that_a_sample_completes_is_left_out_also_if_it_is_a_mirror_image():
    training = images(60, 0)
    mirrored = turned(training)
    origin = Conditions(origin=torch.arange(60))
    for originals in (training, mirrored):
        generated = attrs.evolve(originals, x=originals.x + GREY, conditions=origin)
        sets = {"originals": originals.x, "mirrored": mirrored, "held_out": images(60, 1)}
        measured = found_in(generated, training, **sets)
        assert not measured.notes
        assert measured.details["smallest_l2"] > 0.2


def test_scores_against_images_of_which_samples_contain_parts_say_so(registry):
    skip_without("mnist")
    small = ("data.count=60", "data.download=false", "particles.count=40", "condition.held_out=5")
    small += ("evaluate.metrics=[{use: sliced-wasserstein, directions: 20}]",)
    recipe = load_recipe("mnist-inpainting", small, registry=registry)
    data = load_data(recipe)
    data = attrs.evolve(data, held_out=data.held_out.take(torch.arange(100)))
    origin = torch.cat([-1 - torch.arange(10), torch.arange(30)])
    conditions = Conditions(origin=origin)
    generated = attrs.evolve(data.take(origin.clamp(min=0)), conditions=conditions, bin_width=0.0)
    document = evaluate(Generated(generated), Task.of_recipe(recipe, data), device=torch.device("cpu")).document
    told = [note for note in document["notes"] if "too good" in note]
    assert "sliced_wasserstein: too good, as 30 of 40 samples complete images of mnist:train" in told[0]
    assert "sliced_wasserstein_test: too good, as 10 of 40 samples complete images of mnist:test" in told[1]
    (score,) = (score for score in document["scores"] if score["name"] == "copies_l2")
    assert "what was generated of samples" in score["protocol"]


def test_images_of_a_folder_or_file_are_not_called_training_images(tmp_path, registry, crowd):
    np.savez(tmp_path / "mine.npz", images=crowd[0].images().numpy())
    real = read_real(str(tmp_path / "mine.npz"), registry)
    sliced = choose(registry, "metric", "{use: sliced-wasserstein, directions: 20}")
    task = Task.of_images([real], [sliced], registry).with_copying(registry)
    document = evaluate(Generated(crowd[3]), task, device=torch.device("cpu")).document
    (score,) = (score for score in document["scores"] if score["name"] == "copies_l2")
    assert "of 400 images of mine.npz to 220 samples and to 400 other images of mine.npz" in score["protocol"]
    assert "copying: 40 of 220 samples are among the images of mine.npz, byte for byte" in score["notes"][0]
    assert "training" not in score["protocol"] + "".join(score["notes"])
