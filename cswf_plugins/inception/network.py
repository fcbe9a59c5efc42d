"""The feature network on any device, with clean-fid's way of resizing and scaling images.

Both of clean-fid's modes resize rows and columns separately and linearly, so each is two matrices, and images
are resized on the device where the network is.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.metric import FeaturePrecision, Tell
from cswf_core.kernels.resizing import pinned_bilinear, resizing
from cswf_plugins.inception.architecture import SIDE, WIDTH
from cswf_plugins.inception.folding import folded
from cswf_plugins.inception.plain import PlainNetwork
from cswf_plugins.inception.weights import WHOLE, Weights

Mode = Literal["legacy_tensorflow", "clean"]
MODE_HELP = (
    "how images are brought to the network's size: 'legacy_tensorflow' as in the classic FID of most papers, "
    "'clean' by Pillow's bicubic filter"
)

Numbers = Literal["float32", "TF32"]
"""What convolutions are computed in; all else is float32."""

jit: Any = torch.jit
"""PyTorch does not say the types of these."""

Engine = Literal["script", "plain", "halves"]
"""How the network is computed: by the file's own program, by PyTorch's convolutions, or by our own kernels."""
Compute = Callable[[Tensor], Tensor]
"""Images as the network takes them (n×3×299×299) → their features (n×2,048)."""

BATCH = {"cuda": 512, "cpu": 32}
"""Images of a batch, by the type of device."""


class Network:
    """The features of images, 2,048 each."""

    def __init__(
        self,
        weights: Weights,
        device: torch.device,
        precision: FeaturePrecision = "float32",
        engine: Engine | None = None,
    ) -> None:
        self.device = device
        self.numbers = numbers(precision, device)
        self.batch = BATCH[device.type]
        self._compute = _computing(engine or chosen_engine(device), weights, device, self.numbers)

    @torch.no_grad()
    def features(self, images: Tensor, mode: Mode, title: str, tell: Tell, *, part: bool = False) -> Tensor:
        """Return the features of images (n×C×H×W bytes; C = 1 is repeated) on the device: n×2,048.

        In float32, an image gives the same features in whichever batch of a large set it comes: batches have
        one size, the last is filled up, and convolutions are not chosen by trial. A set of less than a batch is
        filled up if it is a part of a larger one.
        """
        fast = self.numbers == "TF32"
        features = torch.empty(len(images), WIDTH, device=self.device)
        repeatable = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=fast
        )
        with repeatable:
            for first in range(0, len(images), self.batch):
                batch = images[first : first + self.batch]
                count = len(batch)
                short = self.batch - count if first or part else 0
                if short:
                    batch = torch.cat([batch, batch[:1].expand(short, -1, -1, -1)])
                ready = prepare(batch.to(self.device), mode)
                features[first : first + count] = self._compute(ready)[:count]
                tell(title, first + count, len(images))
        return features


def chosen_engine(device: torch.device) -> Engine:
    """Return the fastest way to compute the network on a device."""
    return "script" if device.type == "cuda" else "plain"


def _computing(engine: Engine, weights: Weights, device: torch.device, computed_in: Numbers) -> Compute:
    """Return the network on a device."""
    module = _loaded(weights, device if engine == "script" else torch.device("cpu"))
    if engine == "script":
        last = computed_in == "TF32"  # tensor cores take channels last
        return partial(_scripted, module.to(memory_format=torch.channels_last) if last else module, last)
    try:
        convolutions = folded(module.state_dict())
    except KeyError as error:
        raise DataError(f"{weights.path} has no layer {error}") from None
    if engine == "plain":
        return PlainNetwork(convolutions, device)
    # Triton is imported only where it is needed.
    from cswf_plugins.inception.halves import HalvesNetwork

    return HalvesNetwork(convolutions, device, products=2 if computed_in == "TF32" else 3)


def _loaded(weights: Weights, device: torch.device) -> Any:
    """Return the program in the network's file."""
    try:
        # Bytes in memory that have been checked, not a path, where another file may be by now.
        module: Any = jit.load(io.BytesIO(weights.read()), map_location=device).eval()
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{weights.path} cannot be loaded ({reason})") from None
    return module.layers if weights.kind == WHOLE else module


def _scripted(module: Any, last: bool, images: Tensor) -> Tensor:
    """Return what the file's own program gives."""
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    with jit.optimized_execution(False):
        features: Tensor = module(images).reshape(len(images), WIDTH)
    return features


def part_features(
    weights: Weights,
    precision: FeaturePrecision,
    mode: Mode,
    title: str,
    images: Tensor,
    device: torch.device,
    tell: Tell,
) -> Tensor:
    """Return the features of some images of a set that several devices share: n×2,048."""
    network = Network(weights, device, precision)
    return network.features(images, mode, title, tell, part=True)


def numbers(precision: FeaturePrecision, device: torch.device) -> Numbers:
    """Return what convolutions are computed in: TF32 if `fast` is asked for and the device has it."""
    if precision == "fast" and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return "TF32"
    return "float32"


def prepare(images: Tensor, mode: Mode) -> Tensor:
    """Return images (n×C×H×W bytes) as the network takes them: n×3×299×299, (v − 128)/128."""
    _, channels, height, width = images.shape
    if channels not in (1, 3):
        raise DataError(f"the feature network takes images of 1 or 3 channels, got {channels}")
    rows, columns = (_matrix(size, mode, images.device) for size in (height, width))
    resized = rows @ (images.float() @ columns.T)
    if mode == "clean":
        resized = resized.clamp(0, 255)
    return ((resized - 128) / 128).expand(-1, 3, -1, -1)


def _matrix(size: int, mode: Mode, device: torch.device) -> Tensor:
    """Return the matrix that resizes a line of pixels to the network's size: 299 × size."""
    matrix = resizing(size, SIDE, "bicubic") if mode == "clean" else pinned_bilinear(size, SIDE)
    return torch.from_numpy(matrix).to(device, torch.float32)
