"""The feature network by our own kernels, on CUDA devices with tensor cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from cswf_plugins.inception.architecture import SIDE, WIDTH, Part, Plan, Step, plan
from cswf_plugins.inception.folding import Convolution, joined
from cswf_plugins.inception.kernels import Filters, Halves, Tile, convolve, enter, filters, pool

Products = Literal[1, 2, 3]
Choose = Callable[[Step, int], Tile]
"""(a convolution, its inputs) → its tile."""


def chosen_tile(step: Step, inputs: int) -> Tile:
    """Return the sizes with which a convolution is computed: fixed ones, as sums depend on their order."""
    channels = 64 if step.target.count <= 64 else 128
    depth = 64 if inputs % 64 == 0 else 32 if inputs % 32 == 0 else 16
    return Tile(128, channels, depth)


class HalvesNetwork:
    """The network in float16, with so many products of halves for one of numbers.

    With 3, weights and all that is computed have 22 bits, nearly float32's 24; with 2, the weights have; with
    1, all have 11, as in TF32.
    """

    def __init__(
        self,
        convolutions: Mapping[str, Convolution],
        device: torch.device,
        *,
        products: Products,
        choose: Choose = chosen_tile,
        side: int = SIDE,
    ) -> None:
        self.pairs = products == 3
        shapes = {name: each.shape for name, each in convolutions.items()}
        self.plan: Plan = plan(shapes, joined=True, side=side)
        self._unused = self.plan.last_uses()
        self._filters: list[Filters | None] = []
        self.tiles: list[Tile] = []
        for step in self.plan.steps:
            layer = joined(convolutions, step.names, step.linear) if step.names else None
            on_device = None if layer is None else (layer.weight.to(device), layer.bias.to(device))
            self._filters.append(None if on_device is None else filters(*on_device, pairs=products > 1))
            self.tiles.append(choose(step, step.source.count))

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n×3×299×299, as `prepare` makes them): n×2,048."""
        buffers: dict[str, Halves] = {}
        for i, step in enumerate(self.plan.steps):
            target = self._part(buffers, step.target, images)
            self.run(i, images, target, None if i == 0 else self._part(buffers, step.source, images))
            for name in self._unused[i]:
                buffers.pop(name, None)
        return self._part(buffers, self.plan.output, images).numbers().mean(dim=(1, 2)).reshape(-1, WIDTH)

    def run(self, i: int, images: Tensor, target: Halves, source: Halves | None) -> None:
        """Compute the i-th step of the plan; the first one has the images for its source."""
        step, weights = self.plan.steps[i], self._filters[i]
        if source is None:
            assert weights is not None
            enter(images, weights, target)
        elif step.kind == "convolution":
            assert weights is not None
            convolve(source, weights, target, step.stride, step.padding, step.linear, self.tiles[i])
        else:
            bias = None if weights is None else weights.bias
            pool(source, target, step.stride, step.padding[0], bias)

    def _part(self, buffers: dict[str, Halves], part: Part, images: Tensor) -> Halves:
        if part.buffer not in buffers:
            room = self.plan.rooms[part.buffer]
            shape = (len(images), room.height, room.width, room.channels)
            high = torch.empty(shape, dtype=torch.float16, device=images.device)
            buffers[part.buffer] = Halves(high, torch.empty_like(high) if self.pairs else None)
        return buffers[part.buffer].part(part.first, part.count)
