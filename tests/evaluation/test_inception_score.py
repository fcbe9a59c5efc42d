"""The Inception score is the customary one, of probabilities that the network's own file gives."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
import torch
from torch import Tensor, nn

from cswf_core.errors import DataError
from cswf_core.interfaces import Dataset, Key, Space, Workbench
from cswf_core.runs.durable import fingerprint
from cswf_plugins.inception import network, weights
from cswf_plugins.metrics.inception_score import InceptionScore, score_of_logits
from tests.evaluation.conftest import compare

CLASSES = 12


class WholeNetwork(nn.Module):
    """A small network, called as clean-fid's file is: it resizes, and gives features or probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 2048, 1, stride=60), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.output = nn.Linear(2048, CLASSES)
        for parameter in self.parameters():
            scale = 0.1 if parameter.ndim == 2 else 1
            parameter.data = Key(5, f"{tuple(parameter.shape)}").open().normal(*parameter.shape) * scale

    def forward(self, x: Tensor, return_features: bool = False, no_output_bias: bool = False) -> Tensor:
        """Put pixel i of 299 at i·before/299."""
        n, _, height, width = x.shape
        shift = torch.tensor([[1.0, 0.0, 1 / width - 1 / 299], [0.0, 1.0, 1 / height - 1 / 299]])
        grid = nn.functional.affine_grid(shift.expand(n, 2, 3), [n, 3, 299, 299], align_corners=False)
        x = nn.functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
        features = self.layers((x - 128) / 128).flatten(1)
        if return_features:
            return features
        if no_output_bias:
            return nn.functional.linear(features, self.output.weight).softmax(dim=1)
        return self.output(features).softmax(dim=1)


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """A data folder without any network."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(weights.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "data/inception"
    folder.mkdir(parents=True)
    return folder


def put(file: Path, module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a network as clean-fid's file, and have its bytes known."""
    torch.jit.save(torch.jit.script(module), str(file))
    monkeypatch.setattr(network, "chosen_engine", lambda device, computed_in: "script")  # it has other layers
    known = attrs.evolve(weights.WHOLE, sha256=fingerprint(file))
    monkeypatch.setattr(weights, "WHOLE", known)
    monkeypatch.setattr(network, "WHOLE", known)


def pictures(count: int) -> Dataset:
    """Noise, in each image around another colour: 3×8×8."""
    draw = Key(7, "pictures").open()
    x = draw.uniform(3, 1, count) * 1.5 + draw.uniform(3, 64, count) * 0.4 - 1
    return Dataset(x.reshape(192, count), Space((3, 8, 8)))


def logits(count: int, scale: float) -> Tensor:
    return Key(9, "logits").open().normal(count, CLASSES).double() * scale


@pytest.mark.parametrize("scale", [0.3, 4.0, 300.0])
def test_the_formula_is_torch_fidelity_s(scale):
    theirs = pytest.importorskip("torch_fidelity.metric_isc").isc_features_to_metric
    rows = logits(203, scale)
    for splits in (1, 10):
        expected = theirs(rows, splits=splits, shuffle=False)
        parts = [score_of_logits(rows[i * 203 // splits : (i + 1) * 203 // splits]) for i in range(splits)]
        scores = torch.tensor(parts, dtype=torch.float64)
        assert float(scores.mean()) == pytest.approx(expected["inception_score_mean"], rel=1e-12)
        assert float(scores.std(correction=0)) == pytest.approx(expected["inception_score_std"], rel=1e-9)


def test_one_class_scores_1_and_sure_classes_in_equal_shares_score_their_number():
    assert score_of_logits(logits(1, 2.0).expand(30, CLASSES)) == pytest.approx(1)
    sure = 1e4 * torch.eye(CLASSES, dtype=torch.float64).repeat(5, 1)
    assert score_of_logits(sure) == pytest.approx(CLASSES)
    never = torch.cat([sure, torch.full((5 * CLASSES, 3), -1e4, dtype=torch.float64)], dim=1)
    assert score_of_logits(never) == pytest.approx(CLASSES)


def test_probabilities_are_those_that_the_whole_file_gives_without_its_bias(alone, monkeypatch):
    module, generated = WholeNetwork().eval(), pictures(9)
    put(alone / weights.WHOLE.name, module, monkeypatch)
    comparison = compare(generated, generated)
    scored = InceptionScore(splits=1).compute(comparison)
    with torch.no_grad():
        shown = generated.images().float()
        unbiased, biased = (module(shown, no_output_bias=each).double().log() for each in (True, False))
    assert scored.scores["inception_score"] == pytest.approx(score_of_logits(unbiased), rel=1e-4)
    assert abs(scored.scores["inception_score"] - score_of_logits(biased)) > 0.01
    assert f"softmax over {CLASSES} classes of logits without bias" in scored.protocol
    assert not scored.spreads  # of one part
    used = {"file": weights.WHOLE.name, "sha256": weights.WHOLE.sha256}
    assert comparison.bench.used == {"weights": used, "classifier": used}


def test_parts_are_drawn_at_random_and_their_deviation_is_told(alone, monkeypatch):
    put(alone / weights.WHOLE.name, WholeNetwork(), monkeypatch)
    generated = pictures(40)
    first, again = (InceptionScore(splits=4).compute(compare(generated, generated)) for _ in range(2))
    other = InceptionScore(splits=4).compute(
        attrs.evolve(compare(generated, generated), draw=Key(1, "metric").open())
    )
    assert first.scores == again.scores
    assert first.scores != other.scores
    spread = first.spreads["inception_score"]
    deviation = first.details["inception_score_std"]
    assert spread.error == pytest.approx(deviation / math.sqrt(3))  # n − 1 of it, and a mean of four
    assert "inception_score_std" in spread.method
    assert set(InceptionScore(mode="clean", splits=4).compute(compare(generated, generated)).scores) == {
        "inception_score_clean"
    }


def test_parts_of_one_image_are_refused():
    with pytest.raises(DataError, match=r"two images for each of 10 parts \(splits\), and there are 19"):
        InceptionScore().compute(compare(pictures(19), pictures(19)))


def test_a_file_without_the_classifier_is_not_enough_and_the_sentence_names_the_right_one(alone, monkeypatch):
    file = alone / weights.FEATURES.name
    file.write_bytes(b"the network without its classifier")
    known = attrs.evolve(weights.FEATURES, sha256=fingerprint(file))
    monkeypatch.setattr(weights, "FEATURES", known)
    with pytest.raises(DataError) as error:
        InceptionScore().check(pictures(2), Workbench())
    for words in (str(alone), weights.WHOLE.name, f"({file.name}, which is there, has none)", "--weights"):
        assert words in str(error.value)
    with pytest.raises(DataError, match=r"has no classifier; inception-2015-12-05\.pt has one"):
        InceptionScore().check(pictures(2), Workbench(weights=file))
    assert weights.needed_files().path == file
    missing = InceptionScore().needed_files()
    assert missing.path is None
    assert missing.advice.endswith(f"downloads {weights.WHOLE.name} (96 MB), or put it into {alone}")


def test_beside_a_file_without_the_classifier_the_whole_one_is_downloaded(alone, tmp_path, monkeypatch):
    """The address is a file here: the same code, no internet."""
    helper = pytest.importorskip("cleanfid.downloads_helper")
    (alone / weights.FEATURES.name).write_bytes(b"the network without its classifier")
    put(tmp_path / "offered.pt", WholeNetwork(), monkeypatch)
    monkeypatch.setattr(helper, "inception_url", (tmp_path / "offered.pt").as_uri())
    InceptionScore().check(pictures(2), Workbench(download=True))
    assert InceptionScore().needed_files().path == alone / weights.WHOLE.name


def test_a_network_without_one_matrix_is_told(alone, monkeypatch):
    module = WholeNetwork()
    module.layers.append(nn.Linear(4, 5))
    put(alone / weights.WHOLE.name, module, monkeypatch)
    with pytest.raises(DataError, match="should have one matrix, classes × 2048, and has 5×4, 12×2048"):
        InceptionScore(splits=1).compute(compare(pictures(2), pictures(2)))


def test_points_are_refused_before_the_flow():
    points = Dataset(torch.zeros(2, 9), Space((2,)))
    with pytest.raises(DataError, match="'inception-score' compares images"):
        InceptionScore().check(points, Workbench())
