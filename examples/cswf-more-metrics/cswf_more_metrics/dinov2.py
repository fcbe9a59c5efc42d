"""DINOv2: its file, the preparation of images, and its vision transformer, from images to the class token.

Nothing in the file is executed. Images are resized as Stein et al. do it, by Pillow's bicubic filter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces import NeededFiles, Workbench
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.columns import is_finite
from cswf_core.kernels.resizing import resizing
from cswf_core.runs.durable import fingerprint
from cswf_plugins.datasets.images import data_root

FOLDER = "dinov2"
NAME = "dinov2_vitl14_pretrain.pth"
"""ViT-L/14, 1.2 GB, as its authors have published it."""
ADDRESS = f"dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/{NAME}"
SIDE = 224
"""Pixels of the images that the network takes."""
BATCH = {"cuda": 128, "cpu": 8}
"""Images of a batch, by the type of device."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the red, green and blue of ImageNet's photographs, from 0 to 1."""
FRACTION = 2.0**22
"""Pillow rounds the weights of its filter to whole parts of this."""
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


@attrs.frozen
class DinoWeights:
    """A file of weights."""

    path: Path
    sha256: str

    def read(self) -> dict[str, Tensor]:
        """Return its tensors by name, on the CPU; raise where they are not of such a network."""
        try:
            tensors = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickles of strangers raise whatever they like
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.path} is not a file of weights ({reason})") from None
        if not isinstance(tensors, dict) or not all(isinstance(x, Tensor) for x in tensors.values()):
            raise DataError(f"{self.path} has something else than tensors by name")
        numbers = {str(name): tensor.float() for name, tensor in tensors.items()}
        try:
            refuse_others(numbers)
        except DataError as error:
            raise DataError(f"{self.path} {error}") from None
        return numbers


def find(bench: Workbench, named: Path | None) -> DinoWeights:
    """Return the file that is named, else that under the data's root; raise `DataError` where there is none."""
    return bench.keep(("dinov2 weights", named), lambda: _find(named))


def needed_files() -> NeededFiles:
    """Return the file under the data's root; it is only seen, as its bytes have no published checksum."""
    path = _place()
    advice = f"download {ADDRESS} (1.2 GB) into {path.parent}, if you want this metric"
    return NeededFiles(name="DINOv2", folder=path.parent, path=path if path.is_file() else None, advice=advice)


def _find(named: Path | None) -> DinoWeights:
    path = _place() if named is None else named.expanduser()
    if not path.is_file():
        raise DataError(
            f"DINOv2's weights: {path} is not a file; download {ADDRESS} to that place, "
            "or name the file with the metric's parameter weights"
        )
    try:
        return DinoWeights(path, fingerprint(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None


def _place() -> Path:
    return data_root() / FOLDER / NAME


class DinoNetwork:
    """The features of images, D each."""

    def __init__(self, weights: DinoWeights, device: torch.device) -> None:
        tensors = {name: tensor.to(device) for name, tensor in weights.read().items()}
        self.device = device
        self.batch = BATCH[device.type]
        self._transformer = VisionTransformer(tensors, SIDE)

    @torch.no_grad()
    def features(self, images: Tensor, title: str, tell: Tell, *, part: bool = False) -> Tensor:
        """Return the features of images (n×C×H×W bytes; C = 1 is repeated) on the device: n×D, float32.

        Batches have one size, and the last is filled up, so that it does not matter which batch of a large set
        an image is in. A set of less than a batch is filled up if it is a part of a larger one.
        """
        rows = torch.empty(len(images), self._transformer.width, device=self.device)
        for first in range(0, len(images), self.batch):
            batch = images[first : first + self.batch]
            count = len(batch)
            if first or part:
                batch = torch.cat([batch, batch[:1].expand(self.batch - count, -1, -1, -1)])
            rows[first : first + count] = self._transformer(prepare(batch.to(self.device)))[:count]
            tell(title, first + count, len(images))
        return rows


def part_features(weights: DinoWeights, title: str, images: Tensor, device: torch.device, tell: Tell) -> Tensor:
    """Return the features of some images of a set that several devices share: n×D."""
    return DinoNetwork(weights, device).features(images, title, tell, part=True)


def prepare(images: Tensor) -> Tensor:
    """Return images (n×C×H×W bytes) as the network takes them: n×3×224×224, normalised by ImageNet's colours.

    They are resized as by Pillow, to the bit: first along rows, then along columns, rounded to bytes each time.
    (Pillow 13 begins with the columns of some images that are not square; published numbers are older.) Sums of
    bytes times whole parts of 2²² are exact in float64, so every device has the same.
    """
    _, channels, height, width = images.shape
    if channels not in (1, 3):
        raise DataError(f"DINOv2 takes images of 1 or 3 channels, got {channels}")
    rows, columns = (_matrix(size, images.device) for size in (height, width))
    resized = _bytes(rows @ _bytes(images.double() @ columns.T)).float() / 255
    mean, deviation = (torch.tensor(x, device=images.device).view(3, 1, 1) for x in (MEAN, DEVIATION))
    return (resized - mean) / deviation


def _bytes(values: Tensor) -> Tensor:
    """Return the nearest whole numbers from 0 to 255; of a half, that above."""
    return (values + 0.5).floor().clamp(0, 255)


def _matrix(size: int, device: torch.device) -> Tensor:
    """Return the matrix that resizes a line of pixels to the network's size: 224 × size, float64."""
    weights = resizing(size, SIDE, "bicubic") * FRACTION
    rounded = np.trunc(weights + np.copysign(0.5, weights)) / FRACTION
    return torch.from_numpy(rounded).to(device)


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
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self._linear(f"{layer}.proj", attended.transpose(1, 2).reshape(n, count, width))

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
