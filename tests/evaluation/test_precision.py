"""Features in float16 are asked for by one option, kept apart from those in float32, and said in print."""

from __future__ import annotations

from unittest.mock import Mock

import attrs
import pytest
import torch
from PIL import Image

from cswf_core.evaluation.task import Task
from cswf_core.interfaces import Conditions, Dataset, Key, Space, Workbench
from cswf_core.interfaces.metric import FEATURE_PRECISION
from cswf_core.kernels.frechet import moments
from cswf_core.kernels.gpu import usable
from cswf_core.recipe import load_recipe
from cswf_core.recipe.build import load_data
from cswf_plugins.inception import features as store
from cswf_plugins.inception.network import Network, chosen_engine, has_kernels, numbers
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
    assert "float16" not in cswf.output("eval", tmp_path / "generated", *arguments)
    assert asked == ["fast"]


def test_fast_is_float32_on_a_cpu_bit_for_bit_and_in_the_cache(network):
    images = pictures(1)
    exact, fast = (Network(network, CPU, precision) for precision in ("float32", "fast"))
    assert torch.equal(exact.features(images, MODE, "", quiet), fast.features(images, MODE, "", quiet))
    some = dataset(images)
    benches = [Workbench(names={some: "some:train"}, precision=each) for each in ("float32", "fast")]
    one, other = (store.cache_file(compare(some, some, bench=b), some, MODE, ".npz") for b in benches)
    assert one == other


@pytest.fixture
def kernels_anywhere(monkeypatch):
    """What would be computed on a card where our kernels run is what is asked about."""
    monkeypatch.setattr("cswf_plugins.inception.network.has_kernels", lambda *_: True)


def test_float16_is_only_for_devices_with_our_kernels(monkeypatch):
    for run, expected, engine in ((False, "float32", "script"), (True, "float16", "halves")):
        monkeypatch.setattr("cswf_plugins.inception.network.has_kernels", lambda *_, run=run: run)
        assert numbers("fast", CPU) == numbers("float32", CPU) == numbers("float32", CUDA) == "float32"
        assert numbers("fast", CUDA) == expected
        assert [chosen_engine(CUDA, each) for each in ("float32", expected)] == [engine] * 2
        assert chosen_engine(CPU, "float32") == "plain"


@pytest.fixture
def failing(monkeypatch):
    """A function that has kernels fail with an error on every card."""
    pytest.importorskip("triton")

    def failing(error: Exception) -> None:
        monkeypatch.setattr("cswf_plugins.inception.network.usable", lambda _: True)
        monkeypatch.setattr("cswf_plugins.inception.halves.try_out", Mock(side_effect=error))

    has_kernels.cache_clear()
    yield failing
    has_kernels.cache_clear()


def test_a_card_on_which_kernels_fail_is_told_once_and_computes_in_float32(failing, caplog):
    failing(RuntimeError("out of resource: shared memory"))
    assert [numbers("fast", CUDA) for _ in range(2)] == ["float32"] * 2
    assert chosen_engine(CUDA, "float32") == "script"
    assert len(caplog.messages) == 2  # one for each precision
    assert all("by PyTorch, more slowly: out of resource: shared memory" in each for each in caplog.messages)
    failing(torch.OutOfMemoryError("CUDA out of memory"))  # a lack of memory is no lack of kernels
    with pytest.raises(torch.OutOfMemoryError):
        has_kernels(torch.device("cuda:7"), "float32")


def test_statistics_in_float16_have_files_of_their_own_and_those_in_float32_the_names_they_had(
    network, data_folder, kernels_anywhere
):
    some = dataset(pictures(2))
    digest = Workbench().sha256(some)[:12]
    sums = f"{network.sha256[:8]}-{digest}-v1.npz"
    for device, precision, computed in (
        (CPU, "float32", MODE),
        (CPU, "fast", MODE),
        (CUDA, "float32", MODE),
        (CUDA, "fast", f"{MODE}-float16"),
    ):
        bench = Workbench(names={some: "some:train"}, precision=precision)
        comparison = attrs.evolve(compare(some, some, bench=bench), draw=Key(0, "metric").open(device))
        path = store.cache_file(comparison, some, MODE, ".npz")
        assert path == data_folder / "statistics" / f"some-train-2-3x16x16-{computed}-{sums}"
        key = store._key(comparison, some, MODE)
        assert key.get("convolutions") == ("float16" if computed != MODE else None)


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
def test_protocols_say_a_precision_that_is_not_float32(metric, kernels_anywhere):
    """The features are there already: where they would be computed is what is asked about."""
    labels = torch.arange(6) % 2
    real = dataset(pictures(6), labels=labels)
    generated = dataset(pictures(6).flip(0), labels=labels, origin=torch.arange(6))
    bench = Workbench(precision="fast")
    comparison = compare(generated, real, training=real, originals=real.x, bench=bench)
    scored = scored_completions(comparison, "test")
    for seed, samples in enumerate((generated, real, scored.images)):
        rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
        for computed in ("float32", "float16"):
            bench.keep(("features", samples, MODE, computed), lambda rows=rows: rows)
            bench.keep(("moments", samples, MODE, computed), lambda rows=rows: moments(rows))
    plain = metric.compute(comparison).protocol
    assert "float16" not in plain
    on_cuda = attrs.evolve(comparison, draw=Key(0, "metric").open(CUDA))
    assert metric.compute(on_cuda).protocol == f"{plain}; features in float16"


def test_distances_in_pixels_have_nothing_to_say_of_features(monkeypatch):
    monkeypatch.setattr("cswf_plugins.metrics.inception.computed_in", lambda _: "float16")
    some = dataset(pictures(6))
    metric = NearestNeighbours(spaces=("pixels",))
    assert "float16" not in metric.compute(compare(some, some, training=some)).protocol


@WITH_CUDA
@pytest.mark.parametrize(("precision", "apart"), [("float32", 1e-5), ("fast", 2e-2)])
def test_features_on_a_gpu_are_those_of_the_file_s_own_program(precision, apart, network):
    """With colours and without, in both modes."""
    exact, ours = Network(network, CUDA, engine="script"), Network(network, CUDA, precision)
    for images, mode in ((pictures(20), MODE), (pictures(20)[:, :1], "clean")):
        expected, computed = (each.features(images, mode, "", quiet) for each in (exact, ours))
        norms = torch.linalg.vector_norm(expected, dim=1)
        difference = torch.linalg.vector_norm(computed - expected, dim=1) / norms
        assert float(difference.max()) < apart
        if ours.numbers == "float16":
            assert float(difference.min()) > 1e-5


@WITH_CUDA
@pytest.mark.parametrize("precision", ["float32", "fast"])
def test_an_image_has_the_same_features_in_every_batch_on_a_gpu(precision, network):
    ours = Network(network, CUDA, precision)
    ours.batch = 8  # 60 images: eight batches, of which the last is filled up
    images = pictures(60)
    once, again = (ours.features(x, MODE, "", quiet) for x in (images, images.flip(0)))
    assert torch.equal(once, again.flip(0))
    alone = torch.cat([ours.features(x, MODE, "", quiet, part=True) for x in images.split(8)])
    assert torch.equal(once, alone)


@WITH_CUDA
def test_our_kernels_run_on_cards_that_are_not_too_old():
    """Else a warning says so, and every evaluation takes four times as long."""
    if not usable(CUDA):
        pytest.skip("Triton's kernels are not for this card")
    assert [chosen_engine(CUDA, each) for each in ("float32", "float16")] == ["halves"] * 2
