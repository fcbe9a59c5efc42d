"""The layers of the feature network, Inception as of 2015: their weights, and the order of computing them.

The network is a stem, one layer after the other, and then eleven blocks. A block has towers, each a path of
layers from the block's input, and its output is that of all towers side by side. Layers are called as in the
network's file. A `NetworkPlan` says what is computed from what and where its numbers go, and nothing of how:

* Convolutions of 1×1 with which a block's towers begin are joined into one. What they give lies in the
  block's own buffer, before its output, and the other layers read a part of that buffer: nothing is copied.
* Averages are taken after the 1×1 convolution that follows them in the network. Both are linear, so that the
  order does not matter, and there are fewer channels to average. Bias and ReLU come after both.

Batch normalisation by fixed numbers is (y − mean)/√(variance + 0.001) + beta for each output y of a
convolution, which is a convolution with other weights and a bias. They are computed in float64 and rounded to
float32 once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

SIDE = 299
"""Pixels of the images that the network takes."""
WIDTH = 2048
"""D, the number of features."""

Tower = tuple[str, ...]
"""A path of layers: convolutions by their names, `max` or `average`, both of 3×3 pixels.

Layers are padded so that the size stays. One that is not has its stride behind it, as in `conv/2`.
"""

STEM: Tower = ("conv/2", "conv_1/1", "conv_2", "max/2", "conv_3/1", "conv_4/1", "max/2")
_SMALL: tuple[Tower, ...] = (
    ("conv",),
    ("tower.conv", "tower.conv_1"),
    ("tower_1.conv", "tower_1.conv_1", "tower_1.conv_2"),
    ("average", "tower_2.conv"),
)
_LONG: tuple[Tower, ...] = (
    ("conv",),
    ("tower.conv", "tower.conv_1", "tower.conv_2"),
    ("tower_1.conv", "tower_1.conv_1", "tower_1.conv_2", "tower_1.conv_3", "tower_1.conv_4"),
    ("average", "tower_2.conv"),
)
_FORKED: tuple[Tower, ...] = (
    ("conv",),
    ("tower_conv", "tower_mixed_conv"),
    ("tower_conv", "tower_mixed_conv_1"),
    ("tower_1_conv", "tower_1_conv_1", "tower_1_mixed_conv"),
    ("tower_1_conv", "tower_1_conv_1", "tower_1_mixed_conv_1"),
)
BLOCKS: Mapping[str, tuple[Tower, ...]] = {
    **dict.fromkeys(("mixed", "mixed_1", "mixed_2"), _SMALL),
    "mixed_3": (("conv/2",), ("tower.conv", "tower.conv_1", "tower.conv_2/2"), ("max/2",)),
    **dict.fromkeys(("mixed_4", "mixed_5", "mixed_6", "mixed_7"), _LONG),
    "mixed_8": (
        ("tower.conv", "tower.conv_1/2"),
        ("tower_1.conv", "tower_1.conv_1", "tower_1.conv_2", "tower_1.conv_3/2"),
        ("max/2",),
    ),
    "mixed_9": (*_FORKED, ("average", "tower_2_conv")),
    "mixed_10": (*_FORKED, ("max", "tower_2_conv")),
}


@attrs.frozen(eq=False)
class Convolution:
    """y = weight ∗ x + bias."""

    weight: Tensor
    """Outputs × inputs × rows × columns."""
    bias: Tensor
    """One for each output."""


@attrs.frozen
class ChannelRange:
    """Some channels of a buffer, one beside the other."""

    buffer: str
    first: int
    count: int


@attrs.frozen
class LayerStep:
    """A convolution or pooling from a part of one buffer to a part of another."""

    kind: Literal["convolution", "max", "average"]
    source: ChannelRange
    target: ChannelRange
    names: tuple[str, ...]
    """The convolutions that are joined here; or the one whose bias and ReLU come after an average."""
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    linear: int = 0
    """How many of the first outputs go without bias and ReLU, as an average is to come."""


class NetworkPlan:
    """The steps of the network: the buffer `images` has its input, and `output` is averaged to the features."""

    def __init__(self, convolutions: Mapping[str, Convolution], *, side: int = SIDE) -> None:
        """Images of another `side` have features, too, but no meaning; they are for tests."""
        self._shapes = {name: tuple(each.weight.shape) for name, each in convolutions.items()}
        self.steps: list[LayerStep] = []
        self.rooms = {"images": (3, side, side)}
        """The sizes of buffers: channels, rows and columns."""
        part = ChannelRange("images", 0, 3)
        for layer in STEM:
            part = self._layer(layer, part)
        for name, towers in BLOCKS.items():
            part = self._block(name, towers, part)
        self.output = part

    def last_uses(self) -> list[list[str]]:
        """Return, for each step, the buffers that no later step reads."""
        last = {step.source.buffer: i for i, step in enumerate(self.steps)}
        last.pop(self.output.buffer, None)  # it is read after the last step
        return [[name for name, at in last.items() if at == i] for i in range(len(self.steps))]

    def _layer(
        self, layer: str, source: ChannelRange, prefix: str = "", target: ChannelRange | None = None
    ) -> ChannelRange:
        """Add a step for a layer and return its output; without a target it gets a buffer of its own."""
        name, _, unpadded = layer.partition("/")
        pooled = name == "max"
        names = () if pooled else (prefix + name,)
        rows, columns = (3, 3) if pooled else self._shapes[prefix + name][2:]
        padding = (0, 0) if unpadded else (rows // 2, columns // 2)
        stride = int(unpadded or 1)
        if target is None:
            width = source.count if pooled else self._shapes[prefix + name][0]
            _, *sides = self.rooms[source.buffer]
            height, breadth = (
                (side + 2 * beyond - extent) // stride + 1
                for side, beyond, extent in zip(sides, padding, (rows, columns), strict=True)
            )
            target = ChannelRange(f"step {len(self.steps)}", 0, width)
            self.rooms[target.buffer] = (width, height, breadth)
        kind: Literal["max", "convolution"] = "max" if pooled else "convolution"
        self.steps.append(LayerStep(kind, source, target, names, stride, padding))
        return target

    def _block(self, name: str, towers: Sequence[Tower], source: ChannelRange) -> ChannelRange:
        """Add the steps of a block and return its output."""
        prefix = f"{name}."
        _, height, width = self.rooms[source.buffer]
        entered = self._entered(prefix, towers)
        before = sum(entered.values())
        entries = ChannelRange(name, 0, before)
        first = before
        if any(tower[-1].endswith("/2") for tower in towers):  # the output has another size, and lies elsewhere
            entries = ChannelRange(f"{prefix}entries", 0, before)
            self.rooms[entries.buffer] = (before, height, width)
            first = 0
            height, width = ((side - 3) // 2 + 1 for side in (height, width))
        elif len(towers[0]) == 1:  # the first tower is such a convolution itself, and begins the output
            entered[towers[0][0]] = self._shapes[prefix + towers[0][0]][0]
            entries = ChannelRange(name, 0, sum(entered.values()))
        reached: dict[Tower, ChannelRange] = {}
        start = 0
        for layer, count in entered.items():
            reached[(layer,)] = ChannelRange(entries.buffer, start, count)
            start += count
        linear = sum(entered[tower[1]] for tower in towers if tower[0] == "average")
        names = tuple(prefix + layer for layer in entered)
        self.steps.append(LayerStep("convolution", source, entries, names, linear=linear))
        last = [tower[-1].partition("/")[0] for tower in towers]
        widths = [source.count if layer == "max" else self._shapes[prefix + layer][0] for layer in last]
        self.rooms[name] = (first + sum(widths), height, width)
        start = first
        for tower, count in zip(towers, widths, strict=True):
            self._tower(prefix, tower, source, ChannelRange(name, start, count), reached)
            start += count
        return ChannelRange(name, first, sum(widths))

    def _entered(self, prefix: str, towers: Sequence[Tower]) -> dict[str, int]:
        """Return the outputs of the 1×1 convolutions of a block's input that other layers read, by their names.

        Those to be averaged come first.
        """
        averaged = [tower[1] for tower in towers if tower[0] == "average"]
        others = [tower[0] for tower in towers if len(tower) > 1]
        pointwise = [layer for layer in others if self._shapes.get(prefix + layer, ())[2:] == (1, 1)]
        return {layer: self._shapes[prefix + layer][0] for layer in (*averaged, *pointwise)}

    def _tower(
        self,
        prefix: str,
        tower: Tower,
        source: ChannelRange,
        place: ChannelRange,
        reached: dict[Tower, ChannelRange],
    ) -> None:
        """Add the steps of a tower but for those that were `reached` before; its output goes to a `place`."""
        if tower[0] == "average":
            averaged = reached[tower[1:]]
            self.steps.append(LayerStep("average", averaged, place, (prefix + tower[1],), padding=(1, 1)))
            return
        part = source
        for i, layer in enumerate(tower, 1):
            path = tower[:i]
            if path not in reached:
                reached[path] = self._layer(layer, part, prefix, place if i == len(tower) else None)
            part = reached[path]


def folded(arrays: Mapping[str, Tensor]) -> dict[str, Convolution]:
    """Return the convolutions by name, in float32 on the CPU, with batch normalisation folded into them.

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
    scale = (variance + 1e-3).rsqrt()
    return Convolution((weight * scale[:, None, None, None]).float(), (beta - mean * scale).float())


def joined(convolutions: Mapping[str, Convolution], step: LayerStep) -> Convolution | None:
    """Return a step's convolutions as one, without bias in its first `linear` outputs; None: it has none."""
    if not step.names:
        return None
    weight = torch.cat([convolutions[name].weight for name in step.names])
    bias = torch.cat([convolutions[name].bias for name in step.names])
    bias[: step.linear] = 0
    return Convolution(weight, bias)
