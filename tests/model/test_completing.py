"""Images from a disk are completed, and what is given of them stays as it is, to the bit."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from cswf_core.errors import DataError, RunError
from cswf_core.flow.gaussian import regression_of
from cswf_core.interfaces import Key, Masked, Space
from cswf_core.model import load_model
from cswf_core.model.requests import Originals, SampleRequest
from cswf_core.pictures.read import read_images, read_mask
from tests.model.conftest import WHITENED, saving


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mask")
    saving(folder, "digits", "condition={use: mask, hidden: bottom}", "schedule.steps=20").run()
    return load_model(folder)


@pytest.fixture(scope="module")
def images(model) -> torch.Tensor:
    """Three digits, as bytes."""
    return model.data().take(torch.tensor([0, 1, 1500])).images()


def test_given_pixels_do_not_change_by_a_bit_and_the_others_are_filled_in(model, images):
    completed = model.complete(images, count=20, device="cpu")
    shown = completed.images().reshape(3, 20, 1, 8, 8)
    assert (shown[..., :4, :] == images[:, None, :, :4, :]).all()
    assert torch.equal(completed.conditions.origin, torch.arange(3).repeat_interleave(20))
    bottom = shown[..., 4:, :].float()
    assert (bottom.std(dim=1).mean(dim=(1, 2, 3)) > 1).all()  # not all alike
    real = model.data().images()[:, :, 4:].float()
    assert (bottom.mean() - real.mean()).abs() < 25


def test_given_pixels_do_not_change_by_a_bit_in_other_coordinates(images, tmp_path):
    saving(tmp_path, "digits", "condition={use: mask, hidden: bottom}", *WHITENED).run()
    model = load_model(tmp_path)
    each = torch.stack([torch.arange(64).reshape(8, 8) % (3 + i) > 0 for i in range(3)])
    with pytest.raises(RunError, match="here each has its own"):
        model.complete(images, mask=each, device="cpu")
    seen = model.observation(images).mask.expand(64, 3)
    completed = model.complete(images, count=2, device="cpu")
    shown = completed.images().reshape(3, 2, 64)
    given = images.reshape(3, 1, 64).expand(3, 2, 64)
    assert (shown == given).transpose(0, 1)[:, seen.T].all()
    assert not (shown == given).transpose(0, 1)[:, ~seen.T].all()
    flow = model.flow(torch.device("cpu"))
    request = SampleRequest(
        completed.conditions.take,
        6,
        0,
        originals=Originals(
            images.reshape(3, 64).T / 128.0 - 1, completed.conditions.origin, Masked(seen[:, :1])
        ),
    )
    group = flow.group(request, 0)
    before = group.particles.x.clone()
    gaussian, mask = flow.fitted.gaussian, Masked(seen[:, :1])
    drawn = gaussian.of_noise(flow._noise(Key(0, "offline start"), 0, "normal"))
    torch.testing.assert_close(before, regression_of(gaussian, mask, 1.0)(drawn, mask.seen(before)))
    assert float((before - drawn)[~seen[:, 0]].abs().mean()) > 0.1  # it makes a difference
    flow.run([group], 0, lambda: None)
    still = group.observation.mask[:, 0]
    assert torch.equal(group.particles.x[still], before[still])


def test_completions_do_not_depend_on_the_other_images(model, images):
    alone, together = (model.complete(some, count=2, device="cpu") for some in (images[:1], images))
    assert torch.equal(alone.x, together.x[:, :2])


def test_another_mask_is_possible_with_a_warning(model, images, caplog):
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[2:6, 2:6] = False
    with caplog.at_level(logging.WARNING, "cswf"):
        completed = model.complete(images, mask=mask, device="cpu").images()
    assert "has learned to complete something else" in caplog.text
    assert (completed == images)[:, :, mask].all()
    assert not (completed == images)[:, :, ~mask].all()


def test_a_model_that_learned_many_masks_takes_any_in_silence(tmp_path, images, caplog):
    saving(tmp_path, "digits", "condition={use: mask, hidden: boxes, masks: each}").run()
    model = load_model(tmp_path)
    masks = torch.ones(3, 8, 8, dtype=torch.bool)
    for i in range(3):
        masks[i, i : i + 3] = False
    completed = model.complete(images, mask=masks, count=2, device="cpu").images()
    assert caplog.text == ""
    assert (completed == images.repeat_interleave(2, dim=0))[masks.repeat_interleave(2, dim=0)[:, None]].all()
    drawn = model.observation(images).mask
    assert torch.equal(model.observation(images[:2]).mask, drawn[:, :2])
    seen = model.complete(images, device="cpu").images().reshape(3, -1)
    assert (seen == images.reshape(3, -1))[drawn.T].all()


def test_a_small_version_is_enough_where_the_condition_says_so(tmp_path, images):
    saving(tmp_path, "digits", "condition={use: super-resolution, size: 4, amplifier: 3}").run()
    model = load_model(tmp_path)
    blocks = model.complete(images, device="cpu").x.reshape(4, 2, 4, 2, 3).mean(dim=(1, 3))
    given = (images.float().reshape(3, 64).T / 128 - 1).reshape(4, 2, 4, 2, 3).mean(dim=(1, 3))
    assert (blocks - given).min() > -1e-4
    assert (blocks - given).max() < 1 / 128 + 1e-4  # the noise in a grey level


@pytest.mark.parametrize(("dequantise", "place"), [("none", 0.0), ("middle", 0.5), ("once", 0.5)])
def test_pixels_are_given_where_those_of_the_data_are_in_their_grey_levels(
    dequantise, place, model, images, tmp_path
):
    """Seen pixels come out as they went in, as numbers."""
    np.savez(tmp_path / "digits.npz", images=model.data().images()[:200])
    data = f"data={{use: npz, path: {tmp_path}/digits.npz, dequantise: {dequantise}}}"
    saving(tmp_path / "model", "digits", data, "condition={use: mask, hidden: bottom}").run()
    completed = load_model(tmp_path / "model").complete(images, device="cpu")
    upper = (completed.x.reshape(8, 8, 3)[:4] + 1) * 128
    torch.testing.assert_close(upper, images[:, 0, :4].permute(1, 2, 0).float() + place)
    assert torch.equal(completed.images()[:, :, :4], images[:, :, :4])


def test_a_mask_from_a_picture_needs_no_picture_later(tmp_path, images):
    path = tmp_path / "mask.png"
    pixels = np.full((8, 8), 255, np.uint8)
    pixels[:, 5:] = 0
    Image.fromarray(pixels).save(path)
    saving(tmp_path / "model", "digits", f"condition={{use: mask, hidden: picture, picture: {path}}}").run()
    path.unlink()
    completed = load_model(tmp_path / "model").complete(images, device="cpu").images()
    assert (completed[..., :5] == images[..., :5]).all()


@pytest.mark.parametrize(
    ("given", "mask", "said"),
    [
        (torch.zeros(1, 1, 8, 9, dtype=torch.uint8), None, "must be m×1×8×8 bytes, got 1×1×8×9"),
        (torch.zeros(1, 1, 8, 8), None, "of torch.float32"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.ones(8, 8), "nothing to fill in"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(8, 8), "nothing to see"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.zeros(8, 7), "got 8×7"),
    ],
)
def test_images_and_masks_that_do_not_fit_are_refused_with_a_sentence(given, mask, said, model):
    with pytest.raises(RunError, match=said):
        model.complete(given, mask=mask, device="cpu")


def picture(path, shape, mode="L"):
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(noise, mode).save(path)
    return noise


def test_pictures_become_grey_or_coloured_as_the_model_has_them(tmp_path):
    colour = picture(tmp_path / "a.png", (8, 8, 3), "RGB")
    grey = picture(tmp_path / "b.png", (8, 8))
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    three = read_images(paths, Space((3, 8, 8)), resize=False)
    assert three.shape == (2, 3, 8, 8)
    assert (three[0].permute(1, 2, 0).numpy() == colour).all()
    assert (three[1] == torch.from_numpy(grey)).all()
    assert read_images(paths, Space((1, 8, 8)), resize=False).shape == (2, 1, 8, 8)


def test_pictures_of_another_size_need_to_be_resized_and_other_files_are_refused(tmp_path):
    def read(name: str, resize: bool = False) -> torch.Tensor:
        return read_images([tmp_path / name], Space((1, 8, 8)), resize=resize)

    picture(tmp_path / "a.png", (20, 30))
    with pytest.raises(DataError, match=r"30×20 pixels, and the model's images have 8×8; --resize"):
        read("a.png")
    assert read("a.png", resize=True).shape == (1, 1, 8, 8)
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(DataError, match="cannot be read as an image"):
        read("text.png")
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        read("deep.png")


def test_a_mask_is_given_where_it_is_not_black(tmp_path):
    levels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(levels).save(tmp_path / "mask.png")
    assert (read_mask(tmp_path / "mask.png", Space((3, 8, 8)), resize=False).numpy() == (levels >= 128)).all()
