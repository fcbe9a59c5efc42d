"""The network sees each image once for each mode, however many metrics ask for its features."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from cswf_core.evaluation.evaluate import evaluate
from cswf_core.evaluation.samples import Generated
from cswf_core.evaluation.task import Reference, Task
from cswf_core.interfaces import Workbench
from cswf_core.recipe import choose
from cswf_plugins import cache
from cswf_plugins.inception import features as store
from tests.evaluation.conftest import compare

CPU = torch.device("cpu")
METRICS = (
    "{use: nearest-neighbours, samples: 10}",
    "fid",
    "{use: kid, subsets: 2, subset_size: 20}",
    "{use: precision-recall, k: 1}",
    "{use: density-coverage, k: 1}",
    "class-fid",
)


class Counted:
    """Stands for the network: what is asked is which images it sees, and its 8 features are sums of pixels."""

    seen: Counter[tuple[str, bytes]]

    def __init__(self, *_: object) -> None:
        pass

    def features(self, images: torch.Tensor, mode: str, *_: object) -> torch.Tensor:
        self.seen.update((mode, bytes(image)) for image in images.numpy())
        draw = torch.Generator().manual_seed(0)
        return images.flatten(1).float() @ torch.randn(images[0].numel(), 8, generator=draw)


@pytest.fixture
def seen(network, monkeypatch, tmp_path) -> Counter[tuple[str, bytes]]:
    """How often the network has seen an image in a mode."""
    monkeypatch.setattr(store, "Network", Counted)
    monkeypatch.setattr(cache, "data_root", lambda: tmp_path)
    Counted.seen = Counter()
    return Counted.seen


@pytest.mark.parametrize("order", [METRICS, METRICS[::-1]])
def test_metrics_share_the_features_of_every_set(order, seen, photographs, registry):
    training, generated = (photographs.take(torch.arange(first, first + 100)) for first in (0, 100))
    metrics = tuple(choose(registry, "metric", name) for name in (*order, "{use: fid, mode: clean}"))
    splits = (("train", training), ("test", photographs.held_out))
    references = tuple(Reference("cifar10", split, samples) for split, samples in splits)
    task = Task(metrics=metrics, references=references, training=training, held_out=photographs.held_out)
    scores = evaluate(Generated(generated), task, device=CPU).scores
    assert {"fid", "fid_test", "fid_clean", "kid", "recall", "coverage", "class_fid"} <= scores.keys()
    assert set(seen.values()) == {1}
    assert Counter(mode for mode, _ in seen) == {"legacy_tensorflow": 300, "clean": 300}


def test_features_of_some_images_are_not_computed_again_for_them_or_for_all(seen, photographs):
    comparison = compare(photographs, photographs, bench=Workbench())
    index = torch.tensor([7, 3, 100])
    features = store.InceptionFeatures(comparison, "clean")
    few, same = (features.some(photographs, index) for _ in range(2))
    assert sum(seen.values()) == 3
    assert torch.equal(few, same)
    every = features.of(photographs)
    assert sum(seen.values()) == len(every) == 200
    torch.testing.assert_close(every[index], few)
    others = features.some(photographs, torch.tensor([0, 1]))
    assert sum(seen.values()) == 200
    assert torch.equal(others, every[:2])
