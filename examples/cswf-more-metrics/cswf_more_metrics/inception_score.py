"""Metric `inception-score`: how sure a classifier is of each generated image, and how many classes it sees.

What it is: p(y|x) are the probabilities of 1,008 classes that the 2015 Inception network gives for an image x,
and p(y) is their mean over images. IS = exp(mean of KL(p(y|x) ‖ p(y))), between 1 and the number of
classes. The images are cut into `splits` parts in random order, and the score is the mean of the parts'.
Probabilities are the softmax of logits without the classifier's bias, as in the original code and StyleGAN's.
Cost: the features of the generated images (see `fid`), which it shares; the rest is nothing.
When not to use it: to compare with real images, which it does not look at; a set with one good image of each
class has the highest score there is. On images unlike those of ImageNet, such as digits, it says little. It
grows with the number of images in a part, so compare only equal numbers: 50,000 in 10 parts are customary.
"""

from __future__ import annotations

import itertools
import math

import attrs
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison, Dataset, Meaning, Result, Spread, Workbench, parameter
from cswf_plugins.inception import weights
from cswf_plugins.metrics.inception import InceptionMetric, Numbers

SALIMANS_2016 = r"""@inproceedings{salimans2016improved,
  author = {Salimans, Tim and Goodfellow, Ian and Zaremba, Wojciech and Cheung, Vicki and Radford, Alec and
            Chen, Xi},
  title = {Improved Techniques for Training {GANs}},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2016}
}"""


@attrs.frozen(kw_only=True)
class InceptionScore(InceptionMetric):
    """Inception score."""

    NAME = "inception-score"
    references = (SALIMANS_2016, *InceptionMetric.references)
    better = "higher"
    customary = 50_000
    once = True

    splits: int = parameter(
        "into how many parts the images are cut, whose scores are averaged", default=10, at_least=1
    )

    def check(self, data: Dataset, bench: Workbench) -> None:
        """Look for images, and for the network's file with the classifier, which not every such file has."""
        super().check(data, bench)
        file_with_classifier(bench)

    def compute(self, comparison: Comparison) -> Result:
        """Return `inception_score`, or `inception_score_clean`; the parts' deviation is a detail."""
        generated = comparison.generated
        count = len(generated)
        if count < 2 * self.splits:
            raise DataError(
                f"metric 'inception-score' needs two images for each of {self.splits} parts (splits), "
                f"and there are {count}"
            )
        classes = class_directions(comparison)
        rows = self.features(comparison).of(generated)
        order = torch.from_numpy(comparison.draw.host.permutation(count)).to(rows.device)
        ends = [part * count // self.splits for part in range(self.splits + 1)]
        parts = [order[first:end] for first, end in itertools.pairwise(ends)]
        values = [score_of_logits(rows[part].double() @ classes.T) for part in parts]
        scores = torch.tensor(values, dtype=torch.float64)
        deviation = self.named("inception_score_std")
        protocol = (
            f"Inception score of {count:,} generated images in random order, mean over {self.splits} parts; "
            f"softmax over {len(classes):,} classes of logits without bias, in float64, {self.resized}"
        )
        meaning = Meaning(
            "How sure a classifier of photographs is of each image, and how many classes it sees among all.",
            aspect="quality",
        )
        spread = None
        if self.splits > 1:
            method = (
                f"standard deviation over {self.splits} parts, divided by √{self.splits}; papers print the "
                f"deviation itself, which is {deviation}"
            )
            spread = Spread(method, own=float(scores.std()) / math.sqrt(self.splits))
        numbers = Numbers()
        numbers.add(self.named("inception_score"), float(scores.mean()), meaning, spread)
        numbers.details[deviation] = float(scores.std(correction=0))
        return numbers.result(protocol)


def file_with_classifier(bench: Workbench) -> weights.Weights:
    """Return the network's file; raise `DataError` where it has no classifier."""
    file = weights.find(bench)
    if file.name != weights.WHOLE:
        raise DataError(
            f"metric 'inception-score' needs the network's classifier, and {file.path} has none; put "
            f"{weights.WHOLE} beside it, or name that file with evaluate.weights (--weights)"
        )
    return file


def class_directions(comparison: Comparison) -> Tensor:
    """Return the classifier's matrix in float64, on the evaluation's device: classes × 2,048.

    A row's product with an image's features is the logit of a class, without the classifier's bias.
    """
    bench = comparison.bench
    file = file_with_classifier(bench)
    bench.used["classifier"] = {"file": file.name, "sha256": file.sha256}
    matrix = bench.keep(("inception classifier", file.path), lambda: _matrix(file))
    return matrix.to(comparison.draw.device, torch.float64)


def _matrix(file: weights.Weights) -> Tensor:
    """Read the only matrix of the network: all else in it are convolutions and vectors."""
    matrices = [tensor.detach() for tensor in file.program("cpu").parameters() if tensor.ndim == 2]
    if len(matrices) != 1 or matrices[0].shape[1] != 2048:
        shapes = ", ".join("×".join(map(str, matrix.shape)) for matrix in matrices) or "none"
        raise DataError(f"{file.path} should have one matrix, classes × 2048, and has {shapes}")
    matrix: Tensor = matrices[0]
    return matrix


def score_of_logits(logits: Tensor) -> float:
    """Return exp(mean KL(p(y|x) ‖ p(y))) of some images, with p the softmax of logits: n×classes."""
    log_p = logits.log_softmax(dim=1)
    p = log_p.exp()
    # Of a class that has underflowed to 0 in every image, 0·log 0 counts as 0.
    log_mean = p.mean(dim=0).clamp_min(torch.finfo(p.dtype).tiny).log()
    return math.exp(float((p * (log_p - log_mean)).sum(dim=1).mean()))
