"""Tensors of a small vision transformer with the names that DINOv2's files have, and images for it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

WIDTH, DEPTH, GRID, SIDE = 128, 2, 5, 42
"""D with two heads; blocks; side of the grid of positions; pixels of the images, which are 3×3 patches."""


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors' shapes by name, in the order of names."""
    D = WIDTH
    of_block = {
        "attn.qkv.weight": (3 * D, D),
        "attn.qkv.bias": (3 * D,),
        "attn.proj.weight": (D, D),
        "mlp.fc1.weight": (4 * D, D),
        "mlp.fc1.bias": (4 * D,),
        "mlp.fc2.weight": (D, 4 * D),
    }
    vectors = ("attn.proj.bias", "mlp.fc2.bias", "norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")
    of_block |= dict.fromkeys((*vectors, "ls1.gamma", "ls2.gamma"), (D,))
    blocks = {f"blocks.{n}.{name}": shape for n in range(DEPTH) for name, shape in of_block.items()}
    others = {
        "cls_token": (1, 1, D),
        "mask_token": (1, D),
        "norm.bias": (D,),
        "norm.weight": (D,),
        "patch_embed.proj.bias": (D,),
        "patch_embed.proj.weight": (D, 3, 14, 14),
        "pos_embed": (1, 1 + GRID**2, D),
    }
    return dict(sorted((blocks | others).items()))


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Random numbers that are the same everywhere: NumPy does not change its old generator."""
    stream = np.random.RandomState(seed)
    made = {}
    for name, shape in shapes().items():
        matrix = name.endswith(".weight") and len(shape) > 1
        scale = 2 / math.sqrt(math.prod(shape[1:])) if matrix else 1.0
        made[name] = torch.from_numpy((stream.standard_normal(shape) * scale).astype(np.float32))
    return made


def images(count: int = 3) -> Tensor:
    """Images as the network takes them."""
    numbers = np.random.RandomState(1).standard_normal((count, 3, SIDE, SIDE))
    return torch.from_numpy(numbers.astype(np.float32))
