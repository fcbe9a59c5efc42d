"""Metrics of completions: what is scored, and how near it comes to the originals."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Conditions, Dataset, Key, Space, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_plugins.inception import weights
from cswf_plugins.metrics.perceptual_distance import PerceptualDistance
from cswf_plugins.metrics.psnr import Psnr, scored_completions

SHAPE = (1, 4, 4)
METRICS = [Psnr(), PerceptualDistance()]


def levels(*values: int) -> torch.Tensor:
    """Even images of the given grey levels: d×n."""
    return (torch.tensor(values) / 128 - 1).expand(16, -1)


def completions(x: torch.Tensor, originals: torch.Tensor | None, origin: list[int] | None) -> Comparison:
    index = None if origin is None else torch.tensor(origin)
    generated = Dataset(x=x, space=Space(SHAPE), conditions=Conditions(origin=index))
    return Comparison(generated, generated, Key(0, "metric").open(), originals=originals)


def test_psnr_is_what_the_formula_gives_and_100_db_for_a_perfect_completion():
    result = Psnr().compute(completions(levels(110, 100, 50), levels(100, 101, 80), [-1, -2, -3]))
    expected = [10 * math.log10(255**2 / error**2) for error in (10, 1, 30)]
    assert result.scores["psnr"] == pytest.approx(sum(expected) / 3)
    assert result.scores["psnr_best"] == pytest.approx(sum(expected) / 3)
    assert result.samples == 3
    several = completions(levels(11, 20, 12, 14), levels(10, 10, 10, 10), [-1, -1, -1, -5])
    best = [10 * math.log10(255**2 / error**2) for error in (1, 4)]  # of each image
    assert Psnr().compute(several).scores["psnr_best"] == pytest.approx(sum(best) / 2)
    perfect = Psnr().compute(completions(levels(7), levels(7), [0])).scores
    assert perfect == {"psnr": pytest.approx(100), "psnr_best": pytest.approx(100)}


def test_held_out_images_are_scored_by_all_metrics_alike_and_others_only_without_them():
    comparison = completions(levels(10, 200, 12), levels(10, 10, 11), [4, -1, -1])
    scored = scored_completions(comparison, "psnr")
    assert (scored.held_out, len(scored.completed), len(scored.images)) == (True, 2, 1)
    assert scored.words == "2 completions of 1 held-out image"
    assert scored_completions(comparison, "perceptual-distance") is scored
    assert Psnr().compute(comparison).samples == 2
    others = completions(levels(10, 12, 14), levels(10, 11, 10), [4, 2, 4])
    scored = scored_completions(others, "psnr")
    assert scored.completed is others.generated
    assert scored.images.images()[:, 0, 0, 0].tolist() == [11, 10]
    assert scored.which.tolist() == [1, 0, 1]
    assert scored.words == "3 completions of 2 training images"


@pytest.mark.parametrize("metric", METRICS)
def test_samples_that_complete_nothing_are_one_sentence(metric):
    for comparison in (completions(levels(1), None, [0]), completions(levels(1), levels(1), None)):
        with pytest.raises(DataError, match=r"scores completions, and .* complete (no images|is not known)"):
            metric.compute(comparison)


@pytest.mark.parametrize("metric", METRICS)
def test_points_are_refused_before_the_flow(metric):
    with pytest.raises(DataError, match="images"):
        metric.check(Dataset(torch.zeros(2, 3), Space((2,))), Workbench())


def test_a_missing_network_is_said_before_the_flow(tmp_path, monkeypatch):
    monkeypatch.setenv("CSWF_DATA", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    with pytest.raises(DataError, match="feature network is not in"):
        PerceptualDistance().check(Dataset(levels(1), Space(SHAPE)), Workbench())


class Sums:
    """Stands for the network: eight random sums of an image's pixels."""

    def __init__(self, *_: object) -> None:
        pass

    def features(self, images: torch.Tensor, mode: str, title: str, tell: Tell) -> torch.Tensor:
        tell(title, len(images), len(images))
        draw = torch.Generator().manual_seed(0)
        return images.flatten(1).float() @ torch.randn(images[0].numel(), 8, generator=draw)


@pytest.fixture
def bench(monkeypatch) -> Workbench:
    """A workbench whose network is no large one."""
    monkeypatch.setattr("cswf_plugins.inception.features.Network", Sums)
    bench = Workbench()
    bench.keep("inception weights", lambda: weights.Weights(Path("nowhere"), weights.FEATURES))
    return bench


def faces(count: int) -> torch.Tensor:
    """Images with something to see, one unlike the other: d×n."""
    draw = Key(3, "images").open()
    coarse = draw.uniform(count, 1, 2, 2) * 2 - 1
    return torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="nearest").reshape(count, -1).T


def test_perceptual_distance_is_0_for_the_original_and_grows_with_the_damage(bench):
    x = faces(3)
    noise = Key(1, "noise").open().normal(*x.shape)
    little, much = (x + share * noise for share in (0.02, 0.3))
    completed = torch.cat([x[:, :1], little[:, 1:2], much[:, 1:2], much[:, 2:3]], dim=1).clamp(-1, 0.99)
    comparison = attrs.evolve(completions(completed, x[:, [0, 1, 1, 2]], [-1, -2, -2, -3]), bench=bench)
    told: list[str] = []
    result = PerceptualDistance().compute(
        attrs.evolve(comparison, bench=attrs.evolve(bench, tell=lambda what, done, total: told.append(what)))
    )
    best, mean = result.scores["perceptual_distance_best"], result.scores["perceptual_distance"]
    assert 0 < best < mean
    assert result.scores["perceptual_distance_unrelated"] > best
    assert (result.samples, len(told)) == (4, 2)
    assert "4 completions of 3 held-out images" in result.protocol


def test_one_image_has_no_unrelated_one_and_a_perfect_completion_no_distance(bench):
    x = faces(1)
    comparison = attrs.evolve(completions(x.repeat(1, 2), x.repeat(1, 2), [0, 0]), bench=bench)
    scores = PerceptualDistance(mode="clean").compute(comparison).scores
    assert scores == {
        "perceptual_distance_clean": pytest.approx(0, abs=1e-3),
        "perceptual_distance_best_clean": pytest.approx(0, abs=1e-3),
    }
