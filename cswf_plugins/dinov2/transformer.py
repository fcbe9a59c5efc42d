"""A vision transformer as DINOv2 has it: from images to the class token, by the tensors of its file."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.kernels.finite import is_finite

PATCH = 14
"""Pixels of a patch's side, in all published sizes."""
HEAD = 64
"""Numbers of a head of attention, in all published sizes."""
EPSILON = 1e-6
"""What is added to the variance in a normalisation."""
OFFSET = 0.1
"""What the authors' code adds to the side of the grid to which it interpolates positions, and so do we."""
SIZES = {"cls_token": 3, "pos_embed": 3, "blocks.0.mlp.fc1.weight": 2}
"""The tensors that tell how large a network is, and how many dimensions they have."""


class VisionTransformer:
    """The class token of images after all blocks, normalised.

    An image is cut into patches; each is a token, and one more stands for the whole image, the class token. In
    a block tokens attend to each other, and then each goes through two layers by itself; what comes of both is
    scaled and added to the tokens. D is the width of a token: 384, 768 or 1,024 in ViT-S, ViT-B and ViT-L.
    """

    def __init__(self, tensors: Mapping[str, Tensor], side: int) -> None:
        """`tensors` are those of the file, by name, float32; `side` is that of the images, in pixels."""
        self._tensors = tensors
        self.width = tensors["cls_token"].shape[-1]
        self.depth = _depth(tensors)
        self._positions = positions(tensors["pos_embed"], side // PATCH)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n×3×side×side, normalised): n×D."""
        weight, bias = (self._tensors[f"patch_embed.proj.{name}"] for name in ("weight", "bias"))
        patches = torch.nn.functional.unfold(images, PATCH, stride=PATCH).transpose(1, 2)
        tokens = torch.nn.functional.linear(patches, weight.flatten(1), bias)
        first = self._tensors["cls_token"].expand(len(images), -1, -1)
        tokens = torch.cat([first, tokens], dim=1) + self._positions
        for number in range(self.depth):
            block = f"blocks.{number}"
            attended = self._attention(f"{block}.attn", self._norm(f"{block}.norm1", tokens))
            tokens = tokens + attended * self._tensors[f"{block}.ls1.gamma"]
            hidden = torch.nn.functional.gelu(
                self._linear(f"{block}.mlp.fc1", self._norm(f"{block}.norm2", tokens))
            )
            tokens = tokens + self._linear(f"{block}.mlp.fc2", hidden) * self._tensors[f"{block}.ls2.gamma"]
        return self._norm("norm", tokens[:, 0])

    def _attention(self, layer: str, tokens: Tensor) -> Tensor:
        """Return, for each token (n×t×D), the mean of all by how much it attends to them, head by head."""
        n, count, width = tokens.shape
        heads = self._linear(f"{layer}.qkv", tokens).reshape(n, count, 3, width // HEAD, HEAD)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) / math.sqrt(HEAD)).softmax(dim=-1)
        return self._linear(f"{layer}.proj", (weights @ value).transpose(1, 2).reshape(n, count, width))

    def _linear(self, layer: str, tokens: Tensor) -> Tensor:
        return torch.nn.functional.linear(
            tokens, self._tensors[f"{layer}.weight"], self._tensors[f"{layer}.bias"]
        )

    def _norm(self, layer: str, tokens: Tensor) -> Tensor:
        weight, bias = self._tensors[f"{layer}.weight"], self._tensors[f"{layer}.bias"]
        return torch.nn.functional.layer_norm(tokens, (self.width,), weight, bias, EPSILON)


def positions(stored: Tensor, side: int) -> Tensor:
    """Return what is added to the tokens of a grid of side² patches: 1×(1 + side²)×D.

    `stored` is for another grid, of g² patches: 1×(1 + g²)×D. It is interpolated by cubic convolution with the
    scale (side + 0.1)/g, as in the authors' code; without that 0.1 features would be others.
    """
    first, grid = stored[:, :1], stored[:, 1:]
    before = math.isqrt(grid.shape[1])
    if before == side:
        return stored
    planes = grid.reshape(1, before, before, -1).permute(0, 3, 1, 2)
    scale = (side + OFFSET) / before
    resized = torch.nn.functional.interpolate(
        planes, scale_factor=(scale, scale), mode="bicubic", align_corners=False
    )
    return torch.cat([first, resized.flatten(2).transpose(1, 2)], dim=1)


def refuse_others(tensors: Mapping[str, Tensor]) -> None:
    """Raise `DataError` where tensors are not those of a network that is computed here, by names and shapes."""
    for name, dimensions in SIZES.items():
        if name not in tensors or tensors[name].ndim != dimensions:
            raise DataError(f"is not a vision transformer of DINOv2 with plain layers: '{name}' is missing")
    width = tensors["cls_token"].shape[-1]
    if width % HEAD:
        raise DataError(f"has tokens of {width} numbers, and DINOv2's are a multiple of {HEAD}")
    expected = _shapes(tensors)
    for name, shape in expected.items():
        if name not in tensors:
            raise DataError(f"is not a vision transformer of DINOv2: '{name}' is missing")
        if tensors[name].shape != shape:
            shapes = " and not ".join("×".join(map(str, each)) for each in (tensors[name].shape, shape))
            raise DataError(f"is not a vision transformer of DINOv2: '{name}' is {shapes}")
        if not is_finite(tensors[name]):
            raise DataError(f"has numbers in '{name}' that are not finite")
    others = sorted(tensors.keys() - expected.keys() - {"mask_token"})
    if others:
        raise DataError(f"has '{others[0]}' besides, which is not computed here: take a network without it")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that tensors must have, of a width, a depth and so on that some of them tell."""
    D, hidden = tensors["cls_token"].shape[-1], tensors["blocks.0.mlp.fc1.weight"].shape[0]
    tokens = math.isqrt(max(tensors["pos_embed"].shape[1] - 1, 1)) ** 2 + 1
    block = {"attn.qkv": (3 * D, D), "attn.proj": (D, D), "mlp.fc1": (hidden, D), "mlp.fc2": (D, hidden)}
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, D),
        "pos_embed": (1, tokens, D),
        "patch_embed.proj.weight": (D, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (D,),
        "norm.weight": (D,),
        "norm.bias": (D,),
    }
    for number in range(_depth(tensors)):
        for layer, shape in block.items():
            shapes[f"blocks.{number}.{layer}.weight"] = shape
            shapes[f"blocks.{number}.{layer}.bias"] = shape[:1]
        for vector in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "ls1.gamma", "ls2.gamma"):
            shapes[f"blocks.{number}.{vector}"] = (D,)
    return shapes


def _depth(tensors: Mapping[str, Tensor]) -> int:
    """Return how many blocks there are."""
    return sum(name.startswith("blocks.") and name.endswith(".mlp.fc1.weight") for name in tensors)
