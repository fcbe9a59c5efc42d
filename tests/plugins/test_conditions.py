"""Conditions: what is seen stays, what is asked for comes."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.errors import DataError
from cswf_core.interfaces import Conditions, Dataset, Draw, Key, Masked, Space
from cswf_plugins.conditions.colorize import LUMINANCE, Colorize, Luminance
from cswf_plugins.conditions.mask import Mask
from cswf_plugins.conditions.one_hot import OneHot
from cswf_plugins.conditions.super_resolution import BlockMeans, SuperResolution
from cswf_plugins.projections.conv_stack import ConvStack
from cswf_plugins.schedules.constant import Constant
from cswf_plugins.schedules.pyramid import Entry, Pyramid
from tests.conftest import small_flow

GREY, COLOUR = Space((1, 8, 6)), Space((3, 8, 6))


def draw(seed: int = 0) -> Draw:
    return Key(seed, "test").open(dtype=torch.float64)


def bytes_as_images(space: Space, n: int, seed: int = 1, held_out: int = 0) -> Dataset:
    """Random 8-bit images, perhaps with others held out."""
    levels = draw(seed).integers(256, space.dimension, n).double()
    other = bytes_as_images(space, held_out, seed + 1) if held_out else None
    return Dataset(x=levels / 128 - 1, space=space, bin_width=1 / 128, held_out=other)


def mask_of(condition: Mask, count: int = 1, seed: int = 0) -> torch.Tensor:
    """Which pixels are hidden, in the first channel: count × H × W."""
    data = bytes_as_images(COLOUR, 5)
    seen = condition.observation(data, Conditions(origin=torch.zeros(count, dtype=torch.int64)), draw(seed))
    assert isinstance(seen, Masked)
    images = ~seen.mask.T.reshape(-1, *COLOUR.shape)
    assert (images == images[:, :1]).all(), "all channels of a pixel are hidden, or none"
    return images[:, 0]


@pytest.mark.parametrize(
    ("hidden", "share", "rows", "columns"),
    [
        ("top", 0.5, slice(0, 4), slice(None)),
        ("bottom", 0.25, slice(6, 8), slice(None)),
        ("left", 0.5, slice(None), slice(0, 3)),
        ("right", 0.5, slice(None), slice(3, 6)),
        ("centre", 0.5, slice(2, 6), slice(1, 4)),
    ],
)
def test_a_part_of_the_image_is_hidden(hidden, share, rows, columns):
    expected = torch.zeros(8, 6, dtype=torch.bool)
    expected[rows, columns] = True
    assert torch.equal(mask_of(Mask(hidden=hidden, share=share))[0], expected)


def test_random_pixels_are_a_share_of_all_and_differ_between_seeds_and_particles():
    condition = Mask(hidden="pixels", share=0.25)
    assert int(mask_of(condition).sum()) == 12
    assert not torch.equal(mask_of(condition), mask_of(condition, seed=1))
    each = mask_of(Mask(hidden="pixels", share=0.25, masks="each"), count=20)
    assert each.shape == (20, 8, 6)
    assert (each.sum(dim=(1, 2)) == 12).all()
    assert len({tuple(m.flatten().tolist()) for m in each}) > 15


def test_random_boxes_are_boxes():
    for hidden in mask_of(Mask(hidden="boxes", share=0.5, masks="each"), count=30):
        assert int(hidden.sum()) == 12
        assert int(hidden.any(dim=1).sum()) == 4
        assert int(hidden.any(dim=0).sum()) == 3
    assert mask_of(Mask(hidden="boxes", share=0.5, boxes=3)).sum() > 12


def test_a_picture_says_what_is_hidden(tmp_path):
    pixels = np.full((8, 6), 255, np.uint8)
    pixels[2, 3] = pixels[5] = 0
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    hidden = mask_of(Mask(hidden="picture", picture=tmp_path / "mask.png"))[0]
    assert torch.equal(hidden, torch.from_numpy(pixels == 0))


MANY, STRETCHED = Mask(held_out=8), Mask(hidden="pixels", masks="each", amplifier=2.0)


@pytest.mark.parametrize(
    ("space", "condition", "complaint"),
    [
        (COLOUR, Mask(hidden="picture"), "`hidden: picture` and `picture: FILE` go together"),
        (COLOUR, Mask(hidden="top", masks="each"), "`masks: each` needs hidden to be random: boxes or pixels"),
        (COLOUR, Mask(hidden="top", share=1.0), "hides everything of a 8×6 image"),
        (COLOUR, Mask(hidden="pixels", share=0.001), "hides nothing of a 8×6 image"),
        (COLOUR, Mask(held_out=13), "condition.held_out asks for 13 images, and only 8 are held out"),
        (GREY, MANY, "8 held-out images with 5 completions each need 40 particles, and there are 30"),
        (GREY, STRETCHED, "an amplifier other than 1 needs one observation for all particles"),
        (GREY, SuperResolution(size=5), r"size 5 must be a proper divisor of the images' sides, 8×6"),
        (GREY, Colorize(), "needs images with 3 channels, and these have 1"),
    ],
)
def test_a_condition_that_cannot_be_is_one_sentence(space, condition, complaint):
    with pytest.raises(DataError, match=complaint):
        small_flow(bytes_as_images(space, 20, held_out=8), condition=condition)


def test_a_picture_that_cannot_be_used_is_one_sentence(tmp_path):
    Image.new("L", (5, 5)).save(tmp_path / "small.png")
    (tmp_path / "text.png").write_text("no picture")
    size = "has 5×5 pixels, and the images have 6×8"
    for name, complaint in (("small", size), ("text", "cannot be read"), ("no", "does not exist")):
        with pytest.raises(DataError, match=complaint):
            mask_of(Mask(hidden="picture", picture=tmp_path / f"{name}.png"))


FLOW = {
    "projection": ConvStack(),
    "schedule": Pyramid(
        entries=tuple(map(Entry.from_text, ("(1×1) [1]", "(4×3) [3]", "(8×6) [5, 3]"))), steps=2, directions=60
    ),
    "count": 60,
    "dtype": torch.float32,
}


@pytest.mark.parametrize(
    "parameters",
    [
        {"hidden": "centre"},
        {"hidden": "centre", "amplifier": 3.0},
        {"hidden": "centre", "amplifier": 0.0},
        {"hidden": "pixels", "masks": "each"},
    ],
)
def test_inpainting_never_changes_an_observed_pixel(parameters):
    data = bytes_as_images(COLOUR, 100, held_out=4)
    condition = Mask(**parameters, held_out=4, completions=3)
    flow = small_flow(data, condition=condition, **FLOW)
    samples = flow.run()
    originals = Dataset(x=data.originals(samples.conditions), space=COLOUR).images()
    seen = flow.observation.mask.T.reshape(-1, *COLOUR.shape).expand(60, *COLOUR.shape)
    assert torch.equal(samples.images()[seen], originals[seen])
    assert (samples.images()[~seen] != originals[~seen]).double().mean() > 0.9


@pytest.mark.parametrize("condition", [Mask(), SuperResolution(size=2), Colorize()])
def test_completions_differ_between_particles_and_between_seeds(condition):
    data = bytes_as_images(COLOUR, 100, held_out=2)
    condition = attrs.evolve(condition, held_out=2, completions=3)
    first, second = (small_flow(data, condition=condition, **FLOW, seed=seed).run() for seed in (0, 1))
    assert first.conditions.origin[:6].tolist() == [-1, -1, -1, -2, -2, -2]
    assert (first.conditions.origin[6:] >= 0).all()
    assert not torch.allclose(first.x[:, 0], first.x[:, 1], atol=0.1)
    assert not torch.allclose(first.x[:, 0], second.x[:, 0], atol=0.1)


def test_completions_of_an_image_share_its_random_mask():
    data = bytes_as_images(GREY, 100, held_out=3)
    condition = Mask(hidden="boxes", masks="each", held_out=3, completions=4)
    mask = small_flow(data, condition=condition, **FLOW).observation.mask
    for first in (0, 4, 8):
        assert (mask[:, first : first + 4] == mask[:, first : first + 1]).all()
    assert not (mask[:, 0] == mask[:, 4]).all()


def test_block_means_are_those_of_pooling():
    observation = BlockMeans(COLOUR, 2)
    x = draw().normal(COLOUR.dimension, 5)
    images = x.T.reshape(5, *COLOUR.shape)
    means = torch.nn.functional.avg_pool2d(images, (4, 3))
    expected = means.repeat_interleave(4, dim=2).repeat_interleave(3, dim=3)
    torch.testing.assert_close(observation.seen(x).T.reshape(5, *COLOUR.shape), expected)


def test_luminance_is_kept():
    flow = small_flow(bytes_as_images(COLOUR, 100), condition=Colorize(), **FLOW)
    weights = torch.tensor(LUMINANCE)[:, None, None]
    grey = [(weights * x.reshape(3, -1, 60)).sum(dim=0) for x in (flow.run().x, flow.originals())]
    torch.testing.assert_close(*grey, atol=1e-5, rtol=0)
    shown = Luminance().shown(flow.originals()).reshape(3, -1, 60)
    torch.testing.assert_close(shown, grey[1].expand_as(shown))


def imbalanced() -> Dataset:
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    x = draw().normal(4, 100) + 5 * labels
    return Dataset(x=x, space=Space((4,)), conditions=Conditions(labels=labels), classes=("a", "b", "c"))


@pytest.mark.parametrize(("labels", "tolerance"), [("drawn", 0.05), ("balanced", 1e-6)])
def test_labels_follow_imbalanced_data(labels, tolerance):
    found = OneHot(labels=labels).draw(imbalanced(), 1000, draw()).labels
    shares = torch.bincount(found, minlength=3) / 1000
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1]), atol=tolerance, rtol=0)
    assert len(OneHot(labels=labels).draw(imbalanced(), 13, draw()).labels) == 13


@pytest.mark.parametrize("labels", ["drawn", "balanced"])
def test_a_given_prior_holds_for_particles_and_data_alike(labels):
    condition, data = OneHot(labels=labels, prior=(1.0, 1.0, 2.0)), imbalanced()
    found = condition.draw(data, 1000, draw()).labels
    shares = torch.bincount(found, minlength=3) / 1000
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.25, 0.5]), atol=0.05, rtol=0)
    chosen = condition.balance(data, draw())
    counts = torch.bincount(data.conditions.labels[chosen])
    assert counts.tolist() == [25, 25, 50]
    copies = torch.bincount(chosen, minlength=100)
    assert set(copies[:60].tolist()) == {0, 1}  # 25 of 60, none twice
    assert copies[90:].tolist() == [5] * 10  # 50 of 10: all of them, five times
    assert OneHot().balance(data, draw()) is None


def test_a_prior_may_leave_the_data_as_they_are():
    condition = OneHot(labels="balanced", prior=(1.0, 1.0, 1.0), resample=False)
    flow = small_flow(imbalanced(), condition=condition)
    assert flow.balanced_data is flow.data
    assert torch.bincount(flow.samples().conditions.labels).tolist() == [10, 10, 10]
    assert torch.bincount(flow.data.conditions.labels).tolist() == [60, 30, 10]


def test_labels_may_get_the_noise_that_pixels_get_unless_they_are_ignored():
    data = attrs.evolve(imbalanced(), bin_width=0.5)
    flows = [small_flow(data, condition=OneHot(amplifier=2.0, dequantise=noisy)) for noisy in (True, False)]
    assert len({flow.run().digest() for flow in flows}) == 2
    with pytest.raises(ValueError, match="needs an amplifier above 0, since 0 ignores the labels"):
        OneHot(amplifier=0.0, dequantise=True)


def test_samples_of_a_given_prior_land_on_their_classes():
    condition, schedule = OneHot(prior=(0.0, 1.0, 1.0), labels="balanced"), Constant(steps=30, directions=60)
    samples = small_flow(imbalanced(), condition=condition, schedule=schedule, count=100).run()
    for c in (1, 2):
        mean = samples.x[:, samples.conditions.labels == c].mean()
        assert float(mean) == pytest.approx(5 * c, abs=0.7)


@pytest.mark.parametrize("prior", [(1.0, 1.0), (0.0, 0.0, 1.0, 1.0)])
def test_a_prior_of_the_wrong_length_is_one_sentence(prior):
    with pytest.raises(DataError, match=f"has {len(prior)} shares, and the data have 3 classes: a, b, c"):
        small_flow(imbalanced(), condition=OneHot(prior=prior))


@pytest.mark.parametrize("prior", [(-1.0, 2.0), (0.0, 0.0), (float("inf"), 1.0)])
def test_shares_that_are_none_are_refused(prior):
    with pytest.raises(ValueError, match="prior must be shares of 0 or more"):
        OneHot(prior=prior)


def test_laplace_directions_have_heavier_tails():
    def kurtosis(theta: str) -> float:
        entries = OneHot(theta=theta).directions(50, 4000, draw())
        torch.testing.assert_close(entries.norm(dim=1), torch.ones(4000).double())
        return float(entries.pow(4).mean() / entries.square().mean() ** 2)

    assert kurtosis("uniform") == pytest.approx(3, rel=0.1)
    assert kurtosis("laplace") > 4.5
