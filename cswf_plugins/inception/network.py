"""The feature network on any device, with clean-fid's way of resizing and scaling images.

Both of clean-fid's modes resize rows and columns separately and linearly, so each is two matrices, and images
are resized on the device where the network is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from cswf_core.errors import DataError
from cswf_core.interfaces.metric import Tell
from cswf_core.kernels.gpu import usable
from cswf_core.kernels.memory import is_out_of_memory
from cswf_core.kernels.resizing import pinned_bilinear, resizing
from cswf_plugins.inception.architecture import (
    SIDE,
    WIDTH,
    ChannelRange,
    Convolution,
    LayerStep,
    NetworkPlan,
    folded,
    joined,
)
from cswf_plugins.inception.weights import WHOLE, Weights

Mode = Literal["legacy_tensorflow", "clean"]
Engine = Literal["script", "plain", "halves"]
"""How the network is computed: by the file's own program, by PyTorch's convolutions, or by our own kernels."""
BATCH = {"cuda": 512, "cpu": 32}
"""Images of a batch, by the type of device."""

log = logging.getLogger(__name__)


class Network:
    """The features of images, 2,048 each."""

    def __init__(self, weights: Weights, device: torch.device, engine: Engine | None = None) -> None:
        self.device = device
        self.batch = BATCH[device.type]
        self._compute = _computing(engine or chosen_engine(device), weights, device)

    def features(self, images: Tensor, mode: Mode, title: str, tell: Tell, *, part: bool = False) -> Tensor:
        """Return the features of images (n×C×H×W bytes on the CPU; C = 1 is repeated) on the device: n×2,048.

        An image gives the same features in whichever batch of a large set it comes: batches have one size, the
        last is filled up, and convolutions are not chosen by trial. A set of less than a batch is filled up if
        it is a part of a larger one.
        """
        features = torch.empty(len(images), WIDTH, device=self.device)
        repeatable = torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=False
        )
        batches = self._prepared if self.device.type == "cpu" else self._prepared_beside
        with torch.no_grad(), repeatable:
            for first, ready in batches(images, mode, part):
                count = min(self.batch, len(images) - first)
                features[first : first + count] = self._compute(ready)[:count]
                tell(title, first + count, len(images))
        return features

    def _batches(self, images: Tensor, part: bool) -> Iterator[tuple[int, Tensor]]:
        """Yield the first index of each batch, and its images."""
        for first in range(0, len(images), self.batch):
            batch = images[first : first + self.batch]
            short = self.batch - len(batch) if first or part else 0
            yield first, torch.cat([batch, batch[:1].expand(short, -1, -1, -1)]) if short else batch

    def _prepared(self, images: Tensor, mode: Mode, part: bool) -> Iterator[tuple[int, Tensor]]:
        """Yield batches as the network takes them."""
        for first, batch in self._batches(images, part):
            yield first, prepare(batch.to(self.device), mode)

    def _prepared_beside(self, images: Tensor, mode: Mode, part: bool) -> Iterator[tuple[int, Tensor]]:
        """Yield the same on CUDA, where a batch is copied and resized while the network works on that before.

        There are two at a time: the host waits for the network to be done with the last but one.
        """
        cuda: Any = torch.cuda  # PyTorch does not say the types of these
        network = cuda.current_stream(self.device)
        beside = cuda.Stream(self.device)
        before = None
        for first, batch in self._batches(images, part):
            with cuda.stream(beside):
                ready = prepare(batch.pin_memory().to(self.device, non_blocking=True), mode)
            network.wait_stream(beside)
            ready.record_stream(network)  # its memory is free again when the network is done with it
            yield first, ready
            now = network.record_event()
            if before is not None:
                before.synchronize()
            before = now


def chosen_engine(device: torch.device) -> Engine:
    """Return the fastest way to compute the network on a device."""
    if device.type == "cuda":
        return "halves" if has_kernels(device) else "script"
    return "plain"


@lru_cache
def has_kernels(device: torch.device) -> bool:
    """Say whether our own kernels run on a device; where they should and do not, a warning says why."""
    if not usable(device):
        return False
    try:
        # Triton is imported only where it is needed.
        from cswf_plugins.inception.halves import try_out

        try_out(device)
    except Exception as error:  # too little shared memory, no C compiler: Triton's errors have no one class
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        log.warning("the feature network is computed in float32 by PyTorch, more slowly: %s", reason)
        return False
    return True


def _computing(engine: Engine, weights: Weights, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return the network on a device: images as it takes them (n×3×299×299) → their features (n×2,048)."""
    module = weights.program(device if engine == "script" else "cpu").eval()
    module = module.layers if weights.name == WHOLE else module
    if engine == "script":
        return partial(_scripted, module)
    try:
        convolutions = folded(module.state_dict())
    except KeyError as error:
        raise DataError(f"{weights.path} has no layer {error}") from None
    if engine == "plain":
        return PlainNetwork(convolutions, device)
    from cswf_plugins.inception.halves import HalvesNetwork

    return HalvesNetwork(convolutions, device)


def _scripted(module: Any, images: Tensor) -> Tensor:
    """Return what the file's own program gives."""
    jit: Any = torch.jit
    with jit.optimized_execution(False):
        features: Tensor = module(images).reshape(len(images), WIDTH)
    return features


class PlainNetwork:
    """The network by PyTorch's own convolutions in float32, with channels last in memory."""

    def __init__(
        self, convolutions: Mapping[str, Convolution], device: torch.device, *, side: int = SIDE
    ) -> None:
        self.plan = NetworkPlan(convolutions, side=side)
        self._unused = self.plan.last_uses()
        self._layers: list[Convolution | None] = []
        for step in self.plan.steps:
            layer = joined(convolutions, step)
            if layer is not None:
                weight = layer.weight.to(device).contiguous(memory_format=torch.channels_last)
                layer = Convolution(weight, layer.bias.to(device))
            self._layers.append(layer)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n×3×299×299, as `prepare` makes them): n×2,048."""
        buffers = {"images": images.contiguous(memory_format=torch.channels_last)}
        for step, layer, unused in zip(self.plan.steps, self._layers, self._unused, strict=True):
            self._put(buffers, step.target, self._computed(step, layer, self._part(buffers, step.source)))
            for name in unused:
                del buffers[name]
        return self._part(buffers, self.plan.output).mean(dim=(2, 3)).reshape(len(images), WIDTH)

    def _computed(self, step: LayerStep, layer: Convolution | None, x: Tensor) -> Tensor:
        """Return a step's outputs: n×C×H×W."""
        functional = torch.nn.functional
        if step.kind == "max":
            return functional.max_pool2d(x, 3, step.stride, step.padding)
        assert layer is not None
        if step.kind == "average":
            mean = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            return mean.add_(layer.bias[:, None, None]).relu_()
        x = functional.conv2d(x, layer.weight, layer.bias, step.stride, step.padding)
        x[:, step.linear :].relu_()
        return x

    def _part(self, buffers: Mapping[str, Tensor], part: ChannelRange) -> Tensor:
        return buffers[part.buffer].narrow(1, part.first, part.count)

    def _put(self, buffers: dict[str, Tensor], part: ChannelRange, values: Tensor) -> None:
        channels, height, width = self.plan.rooms[part.buffer]
        if part.count == channels:  # all of the buffer: there is nothing to copy
            buffers[part.buffer] = values
            return
        if part.buffer not in buffers:
            empty = values.new_empty((len(values), channels, height, width))
            buffers[part.buffer] = empty.contiguous(memory_format=torch.channels_last)
        self._part(buffers, part).copy_(values)


def part_features(
    weights: Weights, mode: Mode, title: str, images: Tensor, device: torch.device, tell: Tell
) -> Tensor:
    """Return the features of some images of a set that several devices share: n×2,048."""
    return Network(weights, device).features(images, mode, title, tell, part=True)


def prepare(images: Tensor, mode: Mode) -> Tensor:
    """Return images (n×C×H×W bytes) as the network takes them: n×3×299×299, (v − 128)/128."""
    _, channels, height, width = images.shape
    if channels not in (1, 3):
        raise DataError(f"the feature network takes images of 1 or 3 channels, got {channels}")
    rows, columns = (_matrix(size, mode, images.device) for size in (height, width))
    resized = rows @ (images.float() @ columns.T)
    if mode == "clean":
        resized.clamp_(0, 255)
    return resized.sub_(128).div_(128).expand(-1, 3, -1, -1)


def _matrix(size: int, mode: Mode, device: torch.device) -> Tensor:
    """Return the matrix that resizes a line of pixels to the network's size: 299 × size."""
    matrix = resizing(size, SIDE, "bicubic") if mode == "clean" else pinned_bilinear(size, SIDE)
    return torch.from_numpy(matrix).to(device, torch.float32)
