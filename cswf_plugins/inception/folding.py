"""The convolutions of the feature network's file, with batch normalisation folded into weights and biases.

Normalisation by fixed numbers is (y − mean)/√(variance + 0.001) + beta for each output y of a convolution,
which is a convolution with other weights and a bias. They are computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from cswf_plugins.inception.architecture import Shape

EPSILON = 1e-3
"""What the network adds to variances."""


@attrs.frozen(eq=False)
class Convolution:
    """y = weight ∗ x + bias."""

    weight: Tensor
    """Outputs × inputs × rows × columns."""
    bias: Tensor
    """One for each output."""

    @property
    def shape(self) -> Shape:
        """The shape of the weights."""
        outputs, inputs, rows, columns = self.weight.shape
        return outputs, inputs, rows, columns


def folded(arrays: Mapping[str, Tensor]) -> dict[str, Convolution]:
    """Return the convolutions by name, in float32 on the CPU.

    `arrays` are all numbers of the file by their names there: for each convolution weight, mean, var and beta.
    Raises `KeyError` where the file has other names.
    """
    last = "mixed_10.tower_2_conv.weight"
    prefix = next((name.removesuffix(last) for name in arrays if name.endswith(last)), None)
    if prefix is None:
        raise KeyError(last)
    inner = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    names = [name.removesuffix(".weight") for name in inner if name.endswith(".weight")]
    return {name: _convolution(inner, name) for name in names}


def _convolution(arrays: Mapping[str, Tensor], name: str) -> Convolution:
    weight, mean, variance, beta = (
        arrays[f"{name}.{each}"].detach().cpu().double() for each in ("weight", "mean", "var", "beta")
    )
    scale = (variance + EPSILON).rsqrt()
    return Convolution((weight * scale[:, None, None, None]).float(), (beta - mean * scale).float())


def joined(convolutions: Mapping[str, Convolution], names: Sequence[str], linear: int = 0) -> Convolution:
    """Return several convolutions of one input as one; the first `linear` outputs have no bias."""
    weight = torch.cat([convolutions[name].weight for name in names])
    bias = torch.cat([convolutions[name].bias for name in names])
    bias[:linear] = 0
    return Convolution(weight, bias)
