"""The Inception score is the customary one, of probabilities that the network's own file gives."""

import math

import pytest
import torch
from cswf_more_metrics import InceptionScore
from cswf_more_metrics.inception_score import score_of_logits
from torch import Tensor, nn

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Key, Space, Workbench
from cswf_core.runs.durable import fingerprint
from cswf_plugins.inception import network, weights

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
def folder(tmp_path, monkeypatch):
    """The place of the network in a data folder without any."""
    monkeypatch.setenv("CSWF_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(weights.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "data/inception"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def put(folder, monkeypatch):
    """A function that writes a network as clean-fid's file, and has its bytes known."""

    def put(module: nn.Module) -> None:
        file = folder / weights.WHOLE
        torch.jit.save(torch.jit.script(module), str(file))
        monkeypatch.setattr(network, "chosen_engine", lambda *_: "script")  # it has other layers
        monkeypatch.setitem(weights.PUBLISHED, weights.WHOLE, fingerprint(file))

    return put


def scored(generated: Dataset, seed: int = 0, **parameters: object):
    """The result, and the bench."""
    comparison = Comparison(generated, generated, Key(seed, "metric").open())
    return InceptionScore(**parameters).compute(comparison), comparison.bench


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


def test_probabilities_are_those_that_the_whole_file_gives_without_its_bias(put):
    module, generated = WholeNetwork().eval(), pictures(9)
    put(module)
    result, bench = scored(generated, splits=1)
    with torch.no_grad():
        shown = generated.images().float()
        unbiased, biased = (module(shown, no_output_bias=each).double().log() for each in (True, False))
    assert result.scores["inception_score"] == pytest.approx(score_of_logits(unbiased), rel=1e-4)
    assert abs(result.scores["inception_score"] - score_of_logits(biased)) > 0.01
    assert f"softmax over {CLASSES} classes of logits without bias" in result.protocol
    assert not result.spreads  # of one part
    used = {"file": weights.WHOLE, "sha256": weights.PUBLISHED[weights.WHOLE]}
    assert bench.used == {"weights": used, "classifier": used}


def test_parts_are_drawn_at_random_and_their_deviation_is_told(put):
    put(WholeNetwork())
    generated = pictures(40)
    first, again, other = (scored(generated, seed, splits=4)[0] for seed in (0, 0, 1))
    assert first.scores == again.scores
    assert first.scores != other.scores
    spread = first.spreads["inception_score"]
    deviation = first.details["inception_score_std"]
    assert spread.error == pytest.approx(deviation / math.sqrt(3))  # n − 1 of it, and a mean of four
    assert "inception_score_std" in spread.method
    assert set(scored(generated, mode="clean", splits=4)[0].scores) == {"inception_score_clean"}


def test_what_cannot_be_scored_is_one_sentence(put, folder, monkeypatch):
    with pytest.raises(DataError, match=r"two images for each of 10 parts \(splits\), and there are 19"):
        scored(pictures(19))
    with pytest.raises(DataError, match="'inception-score' compares images"):
        InceptionScore().check(Dataset(torch.zeros(2, 9), Space((2,))), Workbench())
    module = WholeNetwork()
    module.layers.append(nn.Linear(4, 5))
    put(module)
    with pytest.raises(DataError, match="should have one matrix, classes × 2048, and has 5×4, 12×2048"):
        scored(pictures(2), splits=1)


def test_a_file_without_the_classifier_is_not_enough_and_the_sentence_names_the_right_one(folder, monkeypatch):
    file = folder / weights.FEATURES
    file.write_bytes(b"the network without its classifier")
    monkeypatch.setitem(weights.PUBLISHED, weights.FEATURES, fingerprint(file))
    for bench in (Workbench(), Workbench(weights=file)):
        with pytest.raises(DataError, match=f"{file} has none; put {weights.WHOLE} beside it, or .*--weights"):
            InceptionScore().check(pictures(2), bench)
