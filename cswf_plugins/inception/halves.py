"""The feature network by our own kernels, on CUDA devices with tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from cswf_plugins.inception.architecture import (
    SIDE,
    WIDTH,
    ChannelRange,
    Convolution,
    LayerStep,
    NetworkPlan,
    joined,
)
from cswf_plugins.inception.kernels import Filters, Halves, Tile, convolve, enter, filters, pool

FORMS = ((32, 32), (32, 64), (48, 64), (64, 96), (96, 96), (160, 160), (192, 192))
"""Inputs and outputs of convolutions with all tiles that there are, whose depths divide the inputs or not."""


def chosen_tile(inputs: int, outputs: int) -> Tile:
    """Return the sizes with which a convolution is computed: fixed ones, as sums depend on their order.

    They are nearly the fastest that were tried on an H200, with 512 images; outputs that fill no tile cost as
    much as others.
    """
    if outputs <= 32:
        return Tile(128, 32, 32, warps=4, stages=3)
    if inputs % 32:
        return Tile(128, 64, 16, warps=4, stages=4)
    if outputs <= 64 or 128 < outputs <= 192:
        return Tile(128, 64, 32, warps=4, stages=3)
    return Tile(64, 128, 32, warps=4, stages=3)


class HalvesNetwork:
    """The network by pairs of float16: weights and all that is computed have 22 bits, nearly float32's 24."""

    def __init__(
        self, convolutions: Mapping[str, Convolution], device: torch.device, *, side: int = SIDE
    ) -> None:
        self.plan = NetworkPlan(convolutions, side=side)
        self._unused = self.plan.last_uses()
        self._filters: list[Filters | None] = []
        self._tiles: list[Tile] = []
        for step in self.plan.steps:
            layer = joined(convolutions, step)
            made = None
            if layer is not None:
                made = filters(layer.weight.to(device), layer.bias.to(device))
            self._filters.append(made)
            self._tiles.append(chosen_tile(step.source.count, step.target.count))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n×3×299×299, as `prepare` makes them): n×2,048."""
        buffers: dict[str, Halves] = {}
        with _current(images.device):
            for i, step in enumerate(self.plan.steps):
                self._step(i, step, buffers, images)
                for name in self._unused[i]:
                    buffers.pop(name, None)
        return self._part(buffers, self.plan.output, images).numbers().mean(dim=(1, 2)).reshape(-1, WIDTH)

    def _step(self, i: int, step: LayerStep, buffers: dict[str, Halves], images: Tensor) -> None:
        """Compute the i-th step of the plan."""
        weights = self._filters[i]
        target = self._part(buffers, step.target, images)
        if i == 0:
            assert weights is not None
            enter(images, weights, target)
            return
        source = self._part(buffers, step.source, images)
        if step.kind == "convolution":
            assert weights is not None
            convolve(source, weights, target, step.stride, step.padding, step.linear, self._tiles[i])
        else:
            pool(source, target, step.stride, step.padding[0], None if weights is None else weights.bias)

    def _part(self, buffers: dict[str, Halves], part: ChannelRange, images: Tensor) -> Halves:
        if part.buffer not in buffers:
            channels, height, width = self.plan.rooms[part.buffer]
            high = torch.empty(len(images), height, width, channels, dtype=torch.float16, device=images.device)
            buffers[part.buffer] = Halves(high, torch.empty_like(high))
        return buffers[part.buffer].part(part.first, part.count)


def try_out(device: torch.device) -> None:
    """Compile and launch all forms of kernels that the network has, on a few numbers; raise what goes wrong."""

    def zeros(side: int, channels: int) -> Halves:
        high = torch.zeros(1, side, side, channels, dtype=torch.float16, device=device)
        return Halves(high, high.clone())

    def weights(outputs: int, inputs: int, side: int) -> Filters:
        layer = torch.ones(outputs, inputs, side, side, device=device)
        return filters(layer, torch.zeros(outputs, device=device))

    with _current(device):
        enter(torch.zeros(1, 3, 7, 7, device=device), weights(32, 3, 3), zeros(3, 32))
        for inputs, outputs in FORMS:
            tile = chosen_tile(inputs, outputs)
            convolve(zeros(3, inputs), weights(outputs, inputs, 1), zeros(3, outputs), 1, (0, 0), 0, tile)
        for bias in (None, torch.zeros(32, device=device)):
            pool(zeros(3, 32), zeros(3, 32), 1, 1, bias)
        if device.type == "cuda":
            torch.cuda.synchronize()  # what fails later is reported here


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Have Triton launch kernels on a device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
