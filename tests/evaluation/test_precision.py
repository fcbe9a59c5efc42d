"""Features in TF32 are asked for by one option, are kept apart from those in float32, and are said in print."""

from __future__ import annotations

import attrs
import pytest
import torch
from PIL import Image

from cswf_core.evaluation.task import Task
from cswf_core.interfaces import Conditions, Dataset, Key, Space, Workbench
from cswf_core.interfaces.metric import FEATURE_PRECISION
from cswf_core.kernels.frechet import moments
from cswf_core.recipe import load_recipe
from cswf_core.recipe.build import load_data
from cswf_plugins.inception import features as store
from cswf_plugins.inception.network import Network, numbers, prepare
from cswf_plugins.metrics.class_fid import ClassFid
from cswf_plugins.metrics.completion_fid import CompletionFid
from cswf_plugins.metrics.completions import scored_completions
from cswf_plugins.metrics.density_coverage import DensityCoverage
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.kid import Kid
from cswf_plugins.metrics.nearest_neighbours import NearestNeighbours
from cswf_plugins.metrics.perceptual_distance import PerceptualDistance
from cswf_plugins.metrics.precision_recall import PrecisionRecall
from tests.evaluation.conftest import compare

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MODE = "legacy_tensorflow"
WITH_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def pictures(count: int) -> torch.Tensor:
    """Images with something to see, one unlike the other: n×3×16×16 bytes."""
    coarse = Key(3, "images").open().uniform(count, 3, 4, 4)
    return (torch.nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear") * 255).to(torch.uint8)


def dataset(images: torch.Tensor, **conditions: torch.Tensor) -> Dataset:
    x = images.reshape(len(images), -1).T / 128 - 1
    return Dataset(x, Space(tuple(images.shape[1:])), Conditions(**conditions))


def quiet(*_: object) -> None:
    """Hear of progress."""


def test_a_recipe_s_option_reaches_the_bench(registry):
    for overrides, expected in (((), FEATURE_PRECISION), (("evaluate.precision=fast",), "fast")):
        recipe = load_recipe("digits", overrides, registry=registry)
        assert Task.of_recipe(recipe, load_data(recipe)).bench().precision == expected
        assert recipe.resolved()["evaluate"]["precision"] == expected


def test_the_command_s_option_reaches_the_network(network, cswf, tmp_path, monkeypatch):
    asked = []

    class Heard(Network):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            asked.append(arguments[2])

    monkeypatch.setattr(store, "Network", Heard)
    for name in ("generated", "real"):
        (tmp_path / name).mkdir()
        for i, image in enumerate(pictures(2)):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / name / f"{i}.png")
    arguments = ("--against", tmp_path / "real", "--metric", "kid", "--device", "cpu", "--precision", "fast")
    assert "TF32" not in cswf.output("eval", tmp_path / "generated", *arguments)
    assert asked == ["fast"]


def test_fast_is_float32_on_a_cpu_bit_for_bit_and_in_the_cache(network):
    images = pictures(1)
    exact, fast = (Network(network, CPU, precision) for precision in ("float32", "fast"))
    assert torch.equal(exact.features(images, MODE, "", quiet), fast.features(images, MODE, "", quiet))
    some = dataset(images)
    benches = [Workbench(names={some: "some:train"}, precision=each) for each in ("float32", "fast")]
    one, other = (store.cache_file(compare(some, some, bench=b), some, MODE, ".npz") for b in benches)
    assert one == other


@pytest.mark.slow
def test_channels_last_give_the_same_features_up_to_rounding(network, monkeypatch):
    """The way of TF32, on a CPU, which has no such numbers; with grey images, too."""
    exact = Network(network, CPU, engine="script")
    monkeypatch.setattr("cswf_plugins.inception.network.numbers", lambda *_: "TF32")
    fast = Network(network, CPU, "fast", engine="script")
    exact.batch = fast.batch = 2  # the last one is filled up
    for images in (pictures(3), pictures(1)[:, :1]):
        expected, computed = (each.features(images, MODE, "", quiet) for each in (exact, fast))
        torch.testing.assert_close(computed, expected, atol=1e-4, rtol=0)


def test_tf32_is_only_for_devices_that_have_it(monkeypatch):
    assert numbers("fast", CPU) == "float32"
    for capability, expected in (((7, 5), "float32"), ((8, 0), "TF32"), ((9, 0), "TF32")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert numbers("fast", CUDA) == expected
        assert numbers("float32", CUDA) == "float32"


def test_statistics_in_tf32_have_files_of_their_own_and_those_in_float32_the_names_they_had(
    network, data_folder, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    some = dataset(pictures(2))
    digest = Workbench().sha256(some)[:12]
    sums = f"{network.kind.sha256[:8]}-{digest}-v1.npz"
    for device, precision, computed in (
        (CPU, "float32", MODE),
        (CPU, "fast", MODE),
        (CUDA, "float32", MODE),
        (CUDA, "fast", f"{MODE}-tf32"),
    ):
        bench = Workbench(names={some: "some:train"}, precision=precision)
        comparison = attrs.evolve(compare(some, some, bench=bench), draw=Key(0, "metric").open(device))
        path = store.cache_file(comparison, some, MODE, ".npz")
        assert path == data_folder / "statistics" / f"some-train-2-3x16x16-{computed}-{sums}"
        key = store._key(comparison, some, MODE)
        assert key.get("convolutions") == ("TF32" if computed != MODE else None)


@pytest.mark.parametrize(
    "metric",
    [
        Fid(),
        Kid(subsets=1),
        ClassFid(),
        PrecisionRecall(k=1),
        DensityCoverage(k=1),
        NearestNeighbours(spaces=("features",)),
        PerceptualDistance(),
        CompletionFid(),
    ],
)
def test_protocols_say_a_precision_that_is_not_float32(metric, monkeypatch):
    """The features are there already: where they would be computed is what is asked about."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    labels = torch.arange(6) % 2
    real = dataset(pictures(6), labels=labels)
    generated = dataset(pictures(6).flip(0), labels=labels, origin=torch.arange(6))
    bench = Workbench(precision="fast")
    comparison = compare(generated, real, training=real, originals=real.x, bench=bench)
    scored = scored_completions(comparison, "test")
    for seed, samples in enumerate((generated, real, scored.images)):
        rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
        for computed in ("float32", "TF32"):
            bench.keep(("features", samples, MODE, computed), lambda rows=rows: rows)
            bench.keep(("moments", samples, MODE, computed), lambda rows=rows: moments(rows))
    plain = metric.compute(comparison).protocol
    assert "TF32" not in plain
    on_cuda = attrs.evolve(comparison, draw=Key(0, "metric").open(CUDA))
    assert metric.compute(on_cuda).protocol == f"{plain}; features in TF32"


def test_distances_in_pixels_have_nothing_to_say_of_features(monkeypatch):
    monkeypatch.setattr("cswf_plugins.metrics.inception.computed_in", lambda _: "TF32")
    some = dataset(pictures(6))
    metric = NearestNeighbours(spaces=("pixels",))
    assert "TF32" not in metric.compute(compare(some, some, training=some)).protocol


@WITH_CUDA
def test_fast_features_are_near_those_in_float32_on_a_gpu(network):
    images = pictures(20)
    exact, fast = (
        Network(network, CUDA, precision).features(images, MODE, "", quiet) for precision in ("float32", "fast")
    )
    apart = torch.linalg.vector_norm(fast - exact, dim=1) / torch.linalg.vector_norm(exact, dim=1)
    assert apart.max() < 1e-2
    if numbers("fast", CUDA) == "TF32":
        assert apart.min() > 0


@WITH_CUDA
@pytest.mark.parametrize(("precision", "apart"), [("float32", 0.0), ("fast", 1e-2)])
def test_an_image_has_the_same_features_in_every_batch_on_a_gpu(precision, apart, network):
    """Exactly so in float32; sums in TF32 depend on an image's place in its batch."""
    ours = Network(network, CUDA, precision)
    ours.batch = 8  # 20 images: the last batch is filled up
    images = pictures(20)
    once, again = (ours.features(x, MODE, "", quiet) for x in (images, images.flip(0)))
    difference = torch.linalg.vector_norm(once - again.flip(0), dim=1)
    assert float((difference / torch.linalg.vector_norm(once, dim=1)).max()) <= apart
    assert torch.equal(once, ours.features(images, MODE, "", quiet))


@WITH_CUDA
def test_images_are_resized_in_float32_also_where_convolutions_are_in_tf32():
    images = pictures(4).to(CUDA)
    expected = prepare(images, "clean")
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True):
        assert torch.equal(prepare(images, "clean"), expected)
