"""The classifier of the Inception network: what it makes of the 2,048 features, as logits of its classes."""

from __future__ import annotations

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import Comparison
from cswf_plugins.inception import weights
from cswf_plugins.inception.architecture import WIDTH


def class_directions(comparison: Comparison) -> Tensor:
    """Return the classifier's matrix in float64, on the evaluation's device: classes × 2,048.

    A row's product with an image's features is the logit of a class, without the classifier's bias.
    """
    bench = comparison.bench
    file = weights.find(bench, classifier=True)
    bench.used["classifier"] = {"file": file.kind.name, "sha256": file.kind.sha256}
    matrix = bench.keep(("inception classifier", file.path), lambda: _matrix(file))
    return matrix.to(comparison.draw.device, torch.float64)


def _matrix(file: weights.Weights) -> Tensor:
    """Read the only matrix of the network: all else in it are convolutions and vectors."""
    matrices = [tensor.detach() for tensor in file.program("cpu").parameters() if tensor.ndim == 2]
    if len(matrices) != 1 or matrices[0].shape[1] != WIDTH:
        shapes = ", ".join("×".join(map(str, matrix.shape)) for matrix in matrices) or "none"
        raise DataError(f"{file.path} should have one matrix, classes × {WIDTH}, and has {shapes}")
    matrix: Tensor = matrices[0]
    return matrix
