"""Features are clean-fid's, and are computed once."""

from __future__ import annotations

import hashlib
from functools import cache
from unittest.mock import Mock

import attrs
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Key, Result, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.frechet import frechet_distance, moments
from cswf_core.kernels.gpu import usable
from cswf_plugins.inception import features as store
from cswf_plugins.inception import weights
from cswf_plugins.inception.architecture import folded
from cswf_plugins.inception.network import Network, chosen_engine, has_kernels, prepare
from cswf_plugins.metrics.fid import Fid
from cswf_plugins.metrics.nearest_neighbours import NearestNeighbours
from tests.evaluation.conftest import compare, images

CUDA = torch.device("cuda")
WITH_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


class LikeCleanFids(nn.Module):
    """clean-fid's file has the network as `layers`, and resizes itself if called as a whole."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, return_features: bool = False) -> Tensor:
        """Resize by a grid whose pixel i lies at i·before/299, and let PyTorch interpolate."""
        assert return_features
        n, channels, height, width = x.shape
        shift = torch.tensor([[1.0, 0.0, 1 / width - 1 / 299], [0.0, 1.0, 1 / height - 1 / 299]])
        grid = nn.functional.affine_grid(shift.expand(n, 2, 3), [n, channels, 299, 299], align_corners=False)
        x = nn.functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
        return self.layers((x - 128) / 128)


@pytest.mark.parametrize(
    ("mode", "count"), [pytest.param("legacy_tensorflow", 3, marks=pytest.mark.slow), ("clean", 1)]
)
def test_features_are_those_of_clean_fid_s_own_code(mode, count, network, photographs, tmp_path):
    fid = pytest.importorskip("cleanfid.fid")
    wrapped = pytest.importorskip("cleanfid.inception_torchscript").InceptionV3W
    whole = torch.jit.script(LikeCleanFids(torch.jit.load(str(network.path)).eval()))
    torch.jit.save(whole, str(tmp_path / "inception-2015-12-05.pt"))
    theirs = wrapped(str(tmp_path), download=False, resize_inside=mode == "legacy_tensorflow")
    images = photographs.images()[:count]
    files = [str(tmp_path / f"{i:03}.png") for i in range(count)]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    how = {"num_workers": 0, "batch_size": 32, "device": torch.device("cpu"), "mode": mode, "verbose": False}
    expected = fid.get_files_features(files, theirs, **how)
    ours = Network(network, torch.device("cpu"))
    ours.batch = 2  # the last one is filled up
    found = ours.features(images, mode, "", lambda *_: None)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("count", "mode"), [(1, "legacy_tensorflow"), pytest.param(24, "clean", marks=pytest.mark.slow)]
)
def test_folded_layers_give_the_features_and_the_fid_of_the_file_s_own_program(
    count, mode, network, photographs
):
    networks = (Network(network, torch.device("cpu"), engine=engine) for engine in ("script", "plain"))
    images = photographs.images()[:count]
    script, plain = (each.features(images, mode, "", lambda *_: None) for each in networks)
    norm = torch.linalg.vector_norm
    assert float((norm(plain - script, dim=1) / norm(script, dim=1)).max()) < 1e-5
    if count > 1:
        half = count // 2
        expected, found = (frechet_distance(moments(x[:half]), moments(x[half:])) for x in (script, plain))
        assert found == pytest.approx(expected, rel=1e-4)


def test_a_file_with_other_layers_is_refused(network):
    arrays = torch.jit.load(str(network.path)).state_dict()
    assert len(folded(arrays)) == 94
    with pytest.raises(KeyError, match="mixed_10"):
        folded({name: array for name, array in arrays.items() if "mixed_10" not in name})


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (28, 40), (310, 305)])
def test_clean_resizing_is_clean_fid_s_and_grey_is_repeated_to_three_channels(size):
    build = pytest.importorskip("cleanfid.resize").build_resizer
    images = torch.randint(0, 256, (2, 3, *size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    theirs = np.stack([build("clean")(image.permute(1, 2, 0).numpy()) for image in images])
    expected = (torch.from_numpy(theirs).permute(0, 3, 1, 2) - 128) / 128
    torch.testing.assert_close(prepare(images, "clean"), expected, atol=1e-5, rtol=0)
    grey = images[:, :1]
    torch.testing.assert_close(prepare(grey, "clean"), prepare(grey.expand(2, 3, *size), "clean"))
    with pytest.raises(DataError, match="1 or 3 channels, got 2"):
        prepare(images[:, :2], "clean")


def features_in(comparison: Comparison) -> store.InceptionFeatures:
    return store.InceptionFeatures(comparison, "legacy_tensorflow")


def test_statistics_of_named_real_images_are_kept_and_used_again_unless_damaged(
    network, photographs, data_folder, monkeypatch
):
    def kept() -> list[str]:
        return sorted(path.name for path in (data_folder / "statistics").glob("kept-train-2-3x32x32-legacy*"))

    def named(index: int):
        """Two images under a name: what counts are the bytes, so it is another object each time."""
        some = photographs.take(torch.arange(index, index + 2))
        return compare(some, some, bench=Workbench(names={some: "kept:train"})), some

    monkeypatch.setattr(store, "Network", cache(Network))  # it takes a second to be loaded
    comparison, some = named(50)
    before = sorted((data_folder / "statistics").glob("*"))
    one = photographs.take(torch.arange(1))
    features_in(compare(one, one)).of(one)
    assert sorted((data_folder / "statistics").glob("*")) == before  # without a name, as generated images are
    first = features_in(comparison).moments(some)
    assert [name.split("-v1")[1] for name in kept()] == [".features.npy", ".npz"]
    sums = f"{network.sha256[:8]}-{Workbench().sha256(some)[:12]}"
    assert kept()[1] == f"kept-train-2-3x32x32-legacy_tensorflow-{sums}-v1.npz"
    for name in kept():
        (data_folder / "statistics" / name).write_bytes(b"junk")
    again, same = named(50)
    found = features_in(again).moments(same)
    torch.testing.assert_close(found.mean, first.mean)
    monkeypatch.setattr(Network, "features", lambda *_: pytest.fail("computed again"))
    last, same = named(50)
    assert torch.equal(features_in(last).moments(same).covariance, found.covariance)
    assert features_in(last).of(same).shape == (2, 2048)
    one, other = (features_in(comparison).file(some, ".npz") for comparison, some in (named(50), named(53)))
    assert one != other


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A data folder without the network's file."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(weights.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / "data/inception"


def test_without_the_right_file_one_sentence_says_what_to_put_where(alone, tmp_path):
    wrong = tmp_path / weights.FEATURES
    with pytest.raises(DataError, match="is not a file"):
        weights.find(Workbench(weights=wrong))
    wrong.write_bytes(b"not it")
    with pytest.raises(DataError, match=r"is neither inception-2015-12-05\.pt nor .*SHA-256"):
        weights.find(Workbench(weights=wrong))
    with pytest.raises(DataError) as error:
        Fid().check(images(2, 0), Workbench(download=False))  # before the flow
    assert str(error.value).count(". ") == 0
    for word in (str(alone), weights.WHOLE, weights.FEATURES, "--weights"):
        assert word in str(error.value)


def test_a_download_is_announced_and_what_arrives_is_checked(alone, tmp_path, monkeypatch, caplog):
    """The address is a file here: the same code, no internet."""
    helper = pytest.importorskip("cleanfid.downloads_helper")
    offered = tmp_path / "offered.pt"
    offered.write_bytes(b"the network")
    monkeypatch.setattr(helper, "inception_url", offered.as_uri())
    with pytest.raises(DataError, match=r"could not be downloaded .*not the published file"):
        weights.find(Workbench(download=True))
    assert "downloading the feature network" in caplog.text
    assert list(alone.iterdir()) == []
    monkeypatch.setitem(weights.PUBLISHED, weights.WHOLE, hashlib.sha256(b"the network").hexdigest())
    found = weights.find(Workbench(download=True))
    assert found.path.read_bytes() == b"the network"
    assert found.path == alone / weights.WHOLE


class SlowNetwork:
    """Stands for the network: a second for each image, and eight features that are random."""

    seconds = 0

    def __init__(self, *_: object) -> None:
        """Take what the network takes."""

    def features(self, images: Tensor, mode: str, title: str, tell: Tell) -> Tensor:
        for done in range(10, len(images) + 1, 10):
            SlowNetwork.seconds += 10
            tell(title, done, len(images))
        return torch.randn(len(images), 8, generator=torch.Generator().manual_seed(len(images)))


@pytest.fixture
def slow(network, monkeypatch):
    """The network's time, which does not pass by itself; its features are few, so that FID is quick."""
    monkeypatch.setattr(store, "WIDTH", 8)
    monkeypatch.setattr(store, "Network", SlowNetwork)
    monkeypatch.setattr(SlowNetwork, "seconds", 0)
    monkeypatch.setattr(store.time, "monotonic", lambda: SlowNetwork.seconds)


def bench_of(train: Dataset, test: Dataset) -> Workbench:
    names = {train: "some:train", test: "some:test"}
    return Workbench(names=names, references=(train, test), download=True, real_features=False)


def test_a_cpu_s_time_for_all_sets_that_are_missing_is_estimated_once_after_the_first_batch(slow, caplog):
    generated, train, test = images(20, 0), images(300, 1), images(100, 2)
    bench = bench_of(train, test)
    for real in (train, test):
        Fid().compute(compare(generated, real, bench=bench))
    assert caplog.messages == [
        "computing the features of 410 images takes about 0:06:50 (h:mm:ss) on this CPU, 1 images a second",
        "faster: a GPU, or these options of `cswf eval`: --against some:test, --real-count 1000, --count 1000, "
        "--metric sliced-wasserstein",
    ]
    caplog.clear()
    Fid().compute(compare(images(20, 3), train, bench=bench_of(train, test)))  # the real ones' are in the cache
    assert [said.split(" takes")[0] for said in caplog.messages] == ["computing the features of 10 images"]


def test_features_that_are_kept_are_of_the_samples_as_they_are(slow):
    """Not of those that are rounded to the data's grey levels, among which copies are looked for."""
    training = attrs.evolve(images(40, 0), bin_width=1 / 8)
    comparison = compare(images(20, 1), training, training=training)
    features = comparison.bench.features
    Fid().compute(comparison)
    kept = features["generated-inception-legacy_tensorflow"]
    NearestNeighbours(spaces=("features",)).compute(comparison)
    assert features["generated-inception-legacy_tensorflow"] is kept


def test_statistics_that_clean_fid_publishes_are_used_on_a_cpu_unless_the_cache_has_ours(
    slow, monkeypatch, caplog
):
    cleanfid = pytest.importorskip("cleanfid.features")
    fetch = Mock(return_value=(np.zeros(8), np.eye(8)))
    monkeypatch.setattr(cleanfid, "get_reference_statistics", fetch)
    train, test = images(30, 4), images(10, 5)
    bench = bench_of(train, test)
    monkeypatch.setattr(store, "SPLITS", {bench.sha256(train): "train"})

    def computed(real: Dataset, bench: Workbench) -> Result:
        return Fid().compute(compare(images(20, 0), real, bench=bench))

    result = computed(train, bench)
    published = "; mean and covariance of the real images' features as clean-fid publishes them"
    assert result.protocol.endswith(published)
    assert "over generated images only" in result.spreads["fid"].method
    assert "using the statistics of cifar10:train that clean-fid publishes" in caplog.text
    assert "publishes" not in computed(test, bench).protocol
    for other in ({"download": False}, {"real_features": True}, {}):  # by the last, ours are in the cache
        assert "publishes" not in computed(train, attrs.evolve(bench_of(train, test), **other)).protocol
    (call,) = fetch.call_args_list
    assert (*call.args, *call.kwargs.values()) == ("cifar10", 32, "legacy_tensorflow", "train")


def test_statistics_that_cannot_be_fetched_are_computed_after_one_try_and_one_line(slow, monkeypatch, caplog):
    cleanfid = pytest.importorskip("cleanfid.features")
    fetch = Mock(side_effect=OSError("no network"))
    monkeypatch.setattr(cleanfid, "get_reference_statistics", fetch)
    generated, train, test = images(20, 0), images(30, 6), images(10, 7)
    bench = bench_of(train, test)
    monkeypatch.setattr(store, "SPLITS", {bench.sha256(train): "train", bench.sha256(test): "test"})
    for real in (train, test):
        for mode in ("legacy_tensorflow", "clean"):
            Fid(mode=mode).compute(compare(generated, real, bench=bench))
    assert fetch.call_count == 1
    assert caplog.text.count("could not be fetched (no network)") == 1


@pytest.fixture
def failing(monkeypatch):
    """A function that has kernels fail with an error on every card."""
    pytest.importorskip("triton")

    def failing(error: Exception) -> None:
        def fails(*_: object) -> None:
            raise error

        monkeypatch.setattr("cswf_plugins.inception.network.usable", lambda _: True)
        monkeypatch.setattr("cswf_plugins.inception.halves.try_out", fails)

    has_kernels.cache_clear()
    yield failing
    has_kernels.cache_clear()


def test_a_card_on_which_kernels_fail_is_told_once_and_computes_the_file_s_program(failing, caplog):
    failing(RuntimeError("out of resource: shared memory"))
    assert [chosen_engine(CUDA) for _ in range(2)] == ["script"] * 2
    assert len(caplog.messages) == 1
    assert "by PyTorch, more slowly: out of resource: shared memory" in caplog.messages[0]
    assert chosen_engine(torch.device("cpu")) == "plain"


def test_a_lack_of_memory_is_no_lack_of_kernels(failing):
    failing(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        has_kernels(torch.device("cuda:7"))


def pictures(count: int) -> Tensor:
    """Images with something to see, one unlike the other: n×3×16×16 bytes."""
    coarse = Key(3, "images").open().uniform(count, 3, 4, 4)
    return (nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear") * 255).to(torch.uint8)


@WITH_CUDA
def test_features_on_a_gpu_are_those_of_the_file_s_own_program(network):
    """With colours and without, in both modes."""
    exact, ours = Network(network, CUDA, engine="script"), Network(network, CUDA)
    for some, mode in ((pictures(20), "legacy_tensorflow"), (pictures(20)[:, :1], "clean")):
        expected, computed = (each.features(some, mode, "", lambda *_: None) for each in (exact, ours))
        norms = torch.linalg.vector_norm(expected, dim=1)
        difference = torch.linalg.vector_norm(computed - expected, dim=1) / norms
        assert float(difference.max()) < 1e-5


@WITH_CUDA
def test_an_image_has_the_same_features_in_every_batch_on_a_gpu(network):
    ours = Network(network, CUDA)
    ours.batch = 8  # 60 images: eight batches, of which the last is filled up
    some = pictures(60)
    once, again = (ours.features(x, "legacy_tensorflow", "", lambda *_: None) for x in (some, some.flip(0)))
    assert torch.equal(once, again.flip(0))
    alone = [ours.features(x, "legacy_tensorflow", "", lambda *_: None, part=True) for x in some.split(8)]
    assert torch.equal(once, torch.cat(alone))


@WITH_CUDA
def test_our_kernels_run_on_cards_that_are_not_too_old():
    """Else a warning says so, and every evaluation takes four times as long."""
    if not usable(CUDA):
        pytest.skip("Triton's kernels are not for this card")
    assert chosen_engine(CUDA) == "halves"
