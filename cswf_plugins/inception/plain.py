"""The feature network by PyTorch's own convolutions, on any device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cswf_plugins.inception.architecture import SIDE, WIDTH, ChannelRange, LayerStep, plan
from cswf_plugins.inception.folding import Convolution, joined


class PlainNetwork:
    """The network in float32, with channels last in memory."""

    def __init__(
        self, convolutions: Mapping[str, Convolution], device: torch.device, *, side: int = SIDE
    ) -> None:
        self.plan = plan({name: each.shape for name, each in convolutions.items()}, side=side)
        self._unused = self.plan.last_uses()
        self._layers = [self._layer(convolutions, step, device) for step in self.plan.steps]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features of images (n×3×299×299, as `prepare` makes them): n×2,048."""
        buffers = {"images": images.contiguous(memory_format=torch.channels_last)}
        for step, layer, unused in zip(self.plan.steps, self._layers, self._unused, strict=True):
            self._put(buffers, step.target, self._computed(step, layer, self._part(buffers, step.source)))
            for name in unused:
                del buffers[name]
        return self._part(buffers, self.plan.output).mean(dim=(2, 3)).reshape(len(images), WIDTH)

    def _layer(
        self, convolutions: Mapping[str, Convolution], step: LayerStep, device: torch.device
    ) -> Convolution | None:
        if not step.names:
            return None
        layer = joined(convolutions, step.names, step.linear)
        return Convolution(
            layer.weight.to(device).contiguous(memory_format=torch.channels_last), layer.bias.to(device)
        )

    def _computed(self, step: LayerStep, layer: Convolution | None, x: Tensor) -> Tensor:
        """Return a step's outputs: n×C×H×W."""
        if step.kind == "max":
            return torch.nn.functional.max_pool2d(x, 3, step.stride, step.padding)
        assert layer is not None
        if step.kind == "average":
            mean = torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
            return mean.add_(layer.bias[:, None, None]).relu_()
        x = torch.nn.functional.conv2d(x, layer.weight, layer.bias, step.stride, step.padding)
        x[:, step.linear :].relu_()
        return x

    def _part(self, buffers: Mapping[str, Tensor], part: ChannelRange) -> Tensor:
        return buffers[part.buffer].narrow(1, part.first, part.count)

    def _put(self, buffers: dict[str, Tensor], part: ChannelRange, values: Tensor) -> None:
        room = self.plan.rooms[part.buffer]
        if part.count == room.channels:  # all of the buffer: there is nothing to copy
            buffers[part.buffer] = values
            return
        if part.buffer not in buffers:
            shape = (len(values), room.channels, room.height, room.width)
            buffers[part.buffer] = values.new_empty(shape).contiguous(memory_format=torch.channels_last)
        self._part(buffers, part).copy_(values)
