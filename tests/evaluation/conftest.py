"""What tests of evaluation share: a data folder of their own, and small sets of real images."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Conditions, Dataset, Key, Space, Workbench
from cswf_core.kernels.frechet import moments
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.images import data_root
from cswf_plugins.inception import weights
from tests.conftest import skip_without


@pytest.fixture(scope="session")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links to the real data, whose cache of statistics begins empty."""
    real, root = data_root(), tmp_path_factory.mktemp("data")
    if real.is_dir():
        for entry in real.iterdir():
            if entry.name not in ("statistics", "decoded"):
                (root / entry.name).symlink_to(entry)
    return root


@pytest.fixture(autouse=True)
def data_folder(_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what tests compute out of the person's own cache, and what they write out of the current folder."""
    monkeypatch.setenv("CSWF_DATA", str(_root))
    monkeypatch.chdir(tmp_path)
    return _root


@pytest.fixture
def network(data_folder: Path) -> weights.Weights:
    """The feature network's file; tests that need it are skipped without."""
    try:
        return weights.find(Workbench())
    except DataError:
        pytest.skip(
            "the feature network is not on this machine; `cswf eval` downloads it, or put "
            f"{weights.FEATURES} into ~/.cache/cswf/inception"
        )


@pytest.fixture(scope="session")
def cifar10() -> Dataset:
    """400 real images of CIFAR-10 with all those that it holds out."""
    skip_without("cifar10")
    return Cifar10(count=400, dequantise="none", download=False).load(Key(3, "data").open())


@pytest.fixture(scope="session")
def photographs(cifar10: Dataset) -> Dataset:
    """200 of them with 100 held out."""
    held_out = cifar10.held_out.take(torch.arange(100))
    return attrs.evolve(cifar10.take(torch.arange(200)), held_out=held_out)


def compare(generated: Dataset, real: Dataset, **more: object) -> Comparison:
    """A comparison on the CPU."""
    return Comparison(generated, real, Key(0, "metric").open(), **more)


def with_features(samples: dict[Dataset, torch.Tensor]) -> Workbench:
    """A bench that has the features of these sets already: the arithmetic behind them is what is tested."""
    bench = Workbench()
    for dataset, rows in samples.items():
        bench.keep(("features", dataset, "legacy_tensorflow"), lambda rows=rows: rows)
        bench.keep(("moments", dataset, "legacy_tensorflow"), lambda rows=rows: moments(rows))
    return bench


def images(n: int, seed: int, labels: torch.Tensor | None = None, classes: tuple[str, ...] = ()) -> Dataset:
    x = torch.rand(12, n, generator=torch.Generator().manual_seed(seed)) * 1.9 - 1
    return Dataset(x, Space((3, 2, 2)), Conditions(labels=labels), classes)


def joined(images: Dataset, others: Dataset, which: slice) -> Dataset:
    """The images and some of the others."""
    return attrs.evolve(images, x=torch.cat([images.x, others.x[:, which]], dim=1))


def cloud(n: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed)) + shift
