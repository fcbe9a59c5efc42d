"""What tests of evaluation share: a data folder of their own, and small sets of real images."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Key, Workbench
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
            f"{weights.FEATURES.name} into ~/.cache/cswf/inception"
        )


@pytest.fixture(scope="session")
def photographs() -> Dataset:
    """200 real images of CIFAR-10 with 100 held out."""
    skip_without("cifar10")
    data = Cifar10(count=200, dequantise="none", download=False).load(Key(3, "data").open())
    assert data.held_out is not None
    return attrs.evolve(data, held_out=data.held_out.take(torch.arange(100)))


def compare(generated: Dataset, real: Dataset, **more: object) -> Comparison:
    """A comparison on the CPU."""
    return Comparison(generated, real, Key(0, "metric").open(), **more)
