"""DINOv2's features are those of its authors' code, of images as Pillow resizes them, and are computed once.

`dinov2_released_code.npz` has the class tokens (3×128, float32, on a CPU) that the authors' vision transformer
gives for the images and tensors that are made here. It was run from a copy that somebody has put on PyPI
(dinov2 0.0.1.dev2); timm 1.0.31 agrees with it where positions are not interpolated.
"""

import math
import pickle
from functools import partial
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
from cswf_more_metrics import FrechetDinov2, dinov2, frechet_dinov2
from cswf_more_metrics.dinov2 import (
    ADDRESS,
    DEVIATION,
    MEAN,
    NAME,
    DinoNetwork,
    DinoWeights,
    VisionTransformer,
    positions,
    prepare,
    refuse_others,
)
from PIL import Image
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Key, Space, Workbench
from cswf_core.kernels.frechet import frechet_distance, moments
from cswf_core.runs.durable import fingerprint

RELEASED = np.load(Path(__file__).with_name("dinov2_released_code.npz"))["features"]
CPU = torch.device("cpu")
WIDTH, DEPTH, GRID, SIDE = 128, 2, 5, 42
"""D with two heads; blocks; side of the grid of positions; pixels of the images, which are 3×3 patches."""


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors' shapes by name, in the order of names."""
    D = WIDTH
    of_block = {
        "attn.qkv.weight": (3 * D, D),
        "attn.qkv.bias": (3 * D,),
        "attn.proj.weight": (D, D),
        "mlp.fc1.weight": (4 * D, D),
        "mlp.fc1.bias": (4 * D,),
        "mlp.fc2.weight": (D, 4 * D),
    }
    vectors = ("attn.proj.bias", "mlp.fc2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")
    of_block |= dict.fromkeys((*vectors, "ls1.gamma", "ls2.gamma"), (D,))
    blocks = {f"blocks.{n}.{name}": shape for n in range(DEPTH) for name, shape in of_block.items()}
    others = {
        "cls_token": (1, 1, D),
        "mask_token": (1, D),
        "norm.bias": (D,),
        "norm.weight": (D,),
        "patch_embed.proj.bias": (D,),
        "patch_embed.proj.weight": (D, 3, 14, 14),
        "pos_embed": (1, 1 + GRID**2, D),
    }
    return dict(sorted((blocks | others).items()))


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Random numbers that are the same everywhere: NumPy does not change its old generator."""
    stream = np.random.RandomState(seed)
    made = {}
    for name, shape in shapes().items():
        matrix = name.endswith(".weight") and len(shape) > 1
        scale = 2 / math.sqrt(math.prod(shape[1:])) if matrix else 1.0
        made[name] = torch.from_numpy((stream.standard_normal(shape) * scale).astype(np.float32))
    return made


def images(count: int = 3) -> Tensor:
    """Images as the network takes them."""
    numbers = np.random.RandomState(1).standard_normal((count, 3, SIDE, SIDE))
    return torch.from_numpy(numbers.astype(np.float32))


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """A data folder with a small network in the place of DINOv2's."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path))
    file = tmp_path / "dinov2" / NAME
    file.parent.mkdir()
    torch.save(tensors(), file)
    return file


def pictures(count: int, seed: int = 0, channels: int = 3) -> Dataset:
    """Noise in 8×8 pixels."""
    x = Key(seed, "pictures").open().uniform(64 * channels, count) * 1.9 - 1
    return Dataset(x, Space((channels, 8, 8)))


def compare(generated: Dataset, real: Dataset, **more: object) -> Comparison:
    """A comparison on the CPU."""
    return Comparison(generated, real, Key(0, "metric").open(), **more)


def quiet(*_: object) -> None:
    """Hear of progress."""


def test_features_are_those_of_the_authors_code():
    computed = VisionTransformer(tensors(), SIDE)(images())
    np.testing.assert_allclose(computed.numpy(), RELEASED, atol=5e-5)


def test_without_the_authors_offset_in_positions_features_are_others(monkeypatch):
    monkeypatch.setattr(dinov2, "OFFSET", 0.0)
    assert np.abs(VisionTransformer(tensors(), SIDE)(images()).numpy() - RELEASED).max() > 0.1


def cubic(distance: np.ndarray) -> np.ndarray:
    """Cubic convolution with a = −3/4."""
    t, a = np.abs(distance), -0.75
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def test_positions_of_518_pixels_are_brought_to_224_by_cubic_convolution():
    stored = Key(0, "positions").open().normal(1, 1 + 37**2, 2)
    place = (np.arange(16) + 0.5) * 37 / 16.1 - 0.5
    line = np.zeros((16, 37))
    for tap in range(-1, 3):
        pixel = np.floor(place).astype(int) + tap
        np.add.at(line, (np.arange(16), pixel.clip(0, 36)), cubic(place - pixel))
    grid = stored[0, 1:].double().numpy().reshape(37, 37, 2)
    expected = np.einsum("ia,jb,abd->ijd", line, line, grid).reshape(256, 2)
    resized = positions(stored, 16)
    torch.testing.assert_close(resized[0, 1:].double(), torch.from_numpy(expected), atol=1e-5, rtol=0)
    assert torch.equal(resized[:, 0], stored[:, 0])
    assert positions(stored, 37) is stored


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (224, 96), (300, 224), (256, 256)])
def test_images_are_resized_as_by_pillow_to_the_bit(size):
    noise = torch.randint(0, 256, (2, 3, *size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    resized = [
        np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).resize((224, 224), Image.Resampling.BICUBIC))
        for image in noise
    ]
    shown = torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 255
    expected = (shown - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    assert torch.equal(prepare(noise), expected)


def test_grey_images_are_repeated_to_three_channels():
    grey = torch.arange(64).to(torch.uint8).reshape(1, 1, 8, 8)
    assert torch.equal(prepare(grey), prepare(grey.expand(1, 3, 8, 8)))
    with pytest.raises(DataError, match="1 or 3 channels, got 2"):
        prepare(grey.expand(1, 2, 8, 8))


def test_an_image_has_the_same_features_in_whichever_batch(small):
    shown = pictures(7).images()
    made = DinoNetwork(DinoWeights(small, fingerprint(small)), CPU)
    made.batch = 3  # the last one is filled up
    whole = made.features(shown, "", quiet)
    assert whole.shape == (7, WIDTH)
    assert torch.equal(whole[3:], made.features(shown[3:], "", quiet))
    assert torch.equal(whole[6:], made.features(shown[6:], "", quiet, part=True))


def test_the_score_is_the_frechet_distance_of_the_features_and_says_of_which_file(small):
    generated, real = pictures(12, 0), pictures(9, 1)
    comparison = compare(generated, real)
    scored = FrechetDinov2().compute(comparison)
    made = DinoNetwork(DinoWeights(small, fingerprint(small)), CPU)
    p, q = (moments(made.features(samples.images(), "", quiet)) for samples in (generated, real))
    assert scored.scores == {"fd_dinov2_128": pytest.approx(frechet_distance(p, q), rel=1e-7)}
    assert scored.scores["fd_dinov2_128"] > 1
    assert comparison.bench.used["dinov2"] == {"file": NAME, "sha256": fingerprint(small)}
    assert fingerprint(small)[:12] in scored.protocol
    assert scored.meanings["fd_dinov2_128"].aspect == "quality"
    same = FrechetDinov2().compute(compare(generated, generated))
    assert same.scores["fd_dinov2_128"] == pytest.approx(0, abs=1e-4)


def test_the_published_network_has_the_plain_name(small):
    """The name goes by the width of features, which are on the bench already."""
    real = pictures(3)
    file = DinoWeights(small, fingerprint(small))
    for width, name in ((1024, "fd_dinov2"), (768, "fd_dinov2_vitb14"), (384, "fd_dinov2_vits14")):
        rows = Key(0, "rows").open().normal(3, width)
        bench = Workbench()
        bench.keep(("features", real, file), partial(rows.clone))
        bench.keep(("moments", real, file), partial(moments, rows))
        assert set(FrechetDinov2().compute(compare(real, real, bench=bench)).scores) == {name}


def test_statistics_of_named_real_images_are_kept_and_used_again(small, monkeypatch):
    real, generated = pictures(4, 1), pictures(3, 2)
    first = FrechetDinov2().compute(compare(generated, real, bench=Workbench(names={real: "noise:train"})))
    folder = small.parents[1] / "statistics"
    kept = sorted(path.name for path in folder.iterdir())
    start = f"noise-train-4-3x8x8-dinov2-{fingerprint(small)[:8]}-"
    assert [name.startswith(start) for name in kept] == [True, True]
    assert [name.split("-v1")[1] for name in kept] == [".features.npy", ".npz"]
    asked, compute = [], DinoNetwork.features

    def heard(self: DinoNetwork, shown: Tensor, *more: object) -> Tensor:
        asked.append(len(shown))
        return compute(self, shown, *more)

    monkeypatch.setattr(DinoNetwork, "features", heard)
    again = Workbench(names={real: "noise:train"})
    assert FrechetDinov2().compute(compare(generated, real, bench=again)).scores == first.scores
    assert asked == [3]  # the generated images, which are not kept
    (folder / kept[1]).write_bytes(b"junk")
    repaired = compare(generated, real, bench=Workbench(names={real: "noise:train"}))
    assert FrechetDinov2().compute(repaired).scores == first.scores


def test_several_devices_share_the_images(small, monkeypatch):
    monkeypatch.setattr(dinov2, "BATCH", {"cpu": 2})
    monkeypatch.setattr(frechet_dinov2, "BATCH", {"cpu": 2})

    def share_out(work, shown: Tensor, together: int, tell) -> Tensor:
        work = pickle.loads(pickle.dumps(work))  # it goes to other processes
        parts = [work(shown[first : first + 2 * together], CPU, tell) for first in range(0, len(shown), 4)]
        return torch.cat(parts)

    generated, real = pictures(7), pictures(5, 1)
    alone = FrechetDinov2().compute(compare(generated, real))
    shared = FrechetDinov2().compute(compare(generated, real, bench=Workbench(share_out=share_out)))
    assert shared.scores == alone.scores


def test_without_the_file_one_sentence_says_where_it_is_to_be_had_and_to_be_put(tmp_path, monkeypatch):
    monkeypatch.setenv("CSWF_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        FrechetDinov2().check(pictures(2), Workbench(download=True))
    for words in (str(tmp_path / "dinov2" / NAME), ADDRESS, "parameter weights"):
        assert words in str(error.value)
    needed = FrechetDinov2().needed_files()
    assert (needed.path, needed.fault) == (None, "")
    assert ADDRESS in needed.advice
    with pytest.raises(DataError, match=r"other\.pth is not a file"):
        FrechetDinov2(weights=tmp_path / "other.pth").check(pictures(2), Workbench())


def test_a_file_that_is_there_passes_the_check_and_one_named_goes_before_it(small, tmp_path):
    FrechetDinov2().check(pictures(2), Workbench())
    assert FrechetDinov2().needed_files().path == small
    other = tmp_path / "other.pth"
    torch.save(tensors(seed=1), other)
    sets = pictures(3), pictures(3, 1)
    scores = [FrechetDinov2(weights=file).compute(compare(*sets)).scores for file in (None, other)]
    assert scores[0] != scores[1]


class Program:
    """Writes a file when it is unpickled by a careless reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_a_file_of_something_else_is_told_before_the_flow_and_no_program_in_it_is_run(small, tmp_path):
    def complaint() -> str:
        with pytest.raises(DataError) as error:
            FrechetDinov2().check(pictures(2), Workbench())
        return str(error.value)

    for content in (b"", b"junk", pickle.dumps([1])):
        small.write_bytes(content)
        assert "is not a file of weights" in complaint()
    torch.save([torch.zeros(2)], small)
    assert "something else than tensors by name" in complaint()
    torch.save({"weight": torch.zeros(2)}, small)
    assert "pretrain.pth is not a vision transformer" in complaint()
    torch.save({"cls_token": Program(tmp_path / "executed")}, small)
    assert "is not a file of weights" in complaint()
    assert not (tmp_path / "executed").exists()
    torch.load(small, weights_only=False)["cls_token"].close()
    assert (tmp_path / "executed").exists()  # it would have been


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"register_tokens": torch.zeros(1, 4, WIDTH)}, "has 'register_tokens' besides"),
        ({"cls_token": torch.zeros(())}, "'cls_token' is missing"),
        ({"cls_token": torch.zeros(1, 1, 24)}, "tokens of 24 numbers, and DINOv2's are a multiple of 64"),
        ({"pos_embed": torch.zeros(1, 24, WIDTH)}, "'pos_embed' is 1×24×128 and not 1×17×128"),
        ({"norm.bias": None}, "'norm.bias' is missing"),
        ({"blocks.0.mlp.fc1.weight": None}, "with plain layers: 'blocks.0.mlp.fc1.weight' is missing"),
        ({"blocks.1.ls2.gamma": torch.full((WIDTH,), torch.nan)}, "'blocks.1.ls2.gamma' that are not finite"),
    ],
)
def test_other_networks_are_refused_by_name(change, complaint):
    changed = {name: tensor for name, tensor in (tensors() | change).items() if tensor is not None}
    with pytest.raises(DataError) as error:
        refuse_others(changed)
    assert complaint in str(error.value)


def test_one_image_and_points_are_refused(small):
    with pytest.raises(DataError, match="needs at least two generated images, and there is 1"):
        FrechetDinov2().compute(compare(pictures(1), pictures(2)))
    points = attrs.evolve(pictures(2), x=torch.zeros(2, 9), space=Space((2,)))
    with pytest.raises(DataError, match="'frechet-dinov2' compares images"):
        FrechetDinov2().check(points, Workbench())
