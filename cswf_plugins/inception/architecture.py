"""The layers of the feature network, Inception as of 2015, and the order in which they are computed.

The network is a stem, one layer after the other, and then eleven blocks. A block has towers, each a path of
layers from the block's input, and its output is that of all towers side by side. Layers are called as in the
network's file. A `NetworkPlan` says what is computed from what and where its numbers go, and nothing of how:

* Convolutions of 1×1 with which a block's towers begin are joined into one. What they give lies in the
  block's own buffer, before its output, and the other layers read a part of that buffer: nothing is copied.
* Averages are taken after the 1×1 convolution that follows them in the network. Both are linear, so that the
  order does not matter, and there are fewer channels to average. Bias and ReLU come after both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

import attrs

SIDE = 299
"""Pixels of the images that the network takes."""
WIDTH = 2048
"""D, the number of features."""

Kind = Literal["convolution", "max", "average"]
Shape = tuple[int, int, int, int]
"""Of a convolution's weights: outputs, inputs, rows, columns."""


@attrs.frozen
class Layer:
    """A convolution, or a pooling of 3×3 pixels; it is padded so that the size stays, or not at all."""

    kind: Kind
    name: str = ""
    stride: int = 1
    padded: bool = True


Tower = tuple[Layer, ...]


def _tower(*names: str) -> Tower:
    """Return a path of convolutions; the last is taken at every second pixel if its name ends in `/2`."""
    return tuple(
        Layer("convolution", name.removesuffix("/2"), 2, padded=False)
        if name.endswith("/2")
        else Layer("convolution", name)
        for name in names
    )


HALVING = Layer("max", stride=2, padded=False)
AVERAGE = Layer("average")

STEM: Tower = (
    *_tower("conv/2"),
    Layer("convolution", "conv_1", padded=False),
    *_tower("conv_2"),
    HALVING,
    Layer("convolution", "conv_3", padded=False),
    Layer("convolution", "conv_4", padded=False),
    HALVING,
)
_SMALL = (
    _tower("conv"),
    _tower("tower.conv", "tower.conv_1"),
    _tower("tower_1.conv", "tower_1.conv_1", "tower_1.conv_2"),
    (AVERAGE, *_tower("tower_2.conv")),
)
_LONG = (
    _tower("conv"),
    _tower("tower.conv", "tower.conv_1", "tower.conv_2"),
    _tower("tower_1.conv", "tower_1.conv_1", "tower_1.conv_2", "tower_1.conv_3", "tower_1.conv_4"),
    (AVERAGE, *_tower("tower_2.conv")),
)
_FORKED = (
    _tower("conv"),
    _tower("tower_conv", "tower_mixed_conv"),
    _tower("tower_conv", "tower_mixed_conv_1"),
    _tower("tower_1_conv", "tower_1_conv_1", "tower_1_mixed_conv"),
    _tower("tower_1_conv", "tower_1_conv_1", "tower_1_mixed_conv_1"),
)
BLOCKS: Mapping[str, tuple[Tower, ...]] = {
    "mixed": _SMALL,
    "mixed_1": _SMALL,
    "mixed_2": _SMALL,
    "mixed_3": (_tower("conv/2"), _tower("tower.conv", "tower.conv_1", "tower.conv_2/2"), (HALVING,)),
    "mixed_4": _LONG,
    "mixed_5": _LONG,
    "mixed_6": _LONG,
    "mixed_7": _LONG,
    "mixed_8": (
        _tower("tower.conv", "tower.conv_1/2"),
        _tower("tower_1.conv", "tower_1.conv_1", "tower_1.conv_2", "tower_1.conv_3/2"),
        (HALVING,),
    ),
    "mixed_9": (*_FORKED, (AVERAGE, *_tower("tower_2_conv"))),
    "mixed_10": (*_FORKED, (Layer("max"), *_tower("tower_2_conv"))),
}


@attrs.frozen
class ChannelRange:
    """Some channels of a buffer, one beside the other."""

    buffer: str
    first: int
    count: int


@attrs.frozen
class Room:
    """A buffer's size."""

    channels: int
    height: int
    width: int


@attrs.frozen
class LayerStep:
    """A convolution or pooling from a part of one buffer to a part of another."""

    kind: Kind
    source: ChannelRange
    target: ChannelRange
    names: tuple[str, ...]
    """The convolutions that are joined here; or the one whose bias and ReLU come after an average."""
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    linear: int = 0
    """So many of the first outputs go without bias and ReLU, as an average is to come."""


@attrs.frozen
class NetworkPlan:
    """The whole network: the buffer `images` has its input, and `output` is averaged to the features."""

    steps: tuple[LayerStep, ...]
    rooms: Mapping[str, Room]
    output: ChannelRange

    def last_uses(self) -> list[list[str]]:
        """Return, for each step, the buffers that no later step reads."""
        last = {step.source.buffer: i for i, step in enumerate(self.steps)}
        last.pop(self.output.buffer, None)  # it is read after the last step
        return [[name for name, at in last.items() if at == i] for i in range(len(self.steps))]


def plan(shapes: Mapping[str, Shape], *, side: int = SIDE) -> NetworkPlan:
    """Return the network's steps; `shapes` are those of all weights, by name.

    Images of another `side` have features, too, but no meaning; they are for tests.
    """
    builder = _Builder(shapes, side)
    part = ChannelRange("images", 0, 3)
    for i, layer in enumerate(STEM):
        part = builder.layer("", layer, part, None, layer.name or f"pool{i}")
    for name, towers in BLOCKS.items():
        part = builder.block(name, towers, part)
    return NetworkPlan(tuple(builder.steps), builder.rooms, part)


class _Builder:
    """The steps and buffers so far."""

    def __init__(self, shapes: Mapping[str, Shape], side: int) -> None:
        self.shapes = shapes
        self.steps: list[LayerStep] = []
        self.rooms = {"images": Room(3, side, side)}

    def layer(
        self, block: str, layer: Layer, source: ChannelRange, target: ChannelRange | None, buffer: str
    ) -> ChannelRange:
        """Add a step for a layer; without a target it gets a buffer of its own."""
        names = (block + layer.name,) if layer.kind == "convolution" else ()
        _, _, *rectangle = self.shapes[names[0]] if names else (0, 0, 3, 3)
        rows, columns = rectangle
        padding = (rows // 2, columns // 2) if layer.padded else (0, 0)
        target = target or self._room(buffer, self._width(block, layer, source), source, layer, (rows, columns))
        step = LayerStep(layer.kind, source, target, names, (rows, columns), layer.stride, padding)
        self.steps.append(step)
        return target

    def block(self, name: str, towers: Sequence[Tower], source: ChannelRange) -> ChannelRange:
        """Add the steps of a block and return its output."""
        prefix = f"{name}."
        widths = [self._width(prefix, tower[-1], source) for tower in towers]
        before = self._before(prefix, towers)
        halving = next((tower[-1] for tower in towers if tower[-1].stride == 2), None)
        # What halves has an output of another size, and those before it lie elsewhere.
        first = sum(self.shapes[prefix + each][0] for each in before) if halving is None else 0
        self._room(name, first + sum(widths), source, halving or AVERAGE, (3, 3))
        starts = accumulate(widths, initial=first)
        places = [ChannelRange(name, start, width) for start, width in zip(starts, widths, strict=False)]
        reached = self._entries(prefix, towers, before, source, places[0])
        for tower, place in zip(towers, places, strict=True):
            if tower[0] == AVERAGE:
                entry = reached[tower[1:]]
                names = (prefix + tower[1].name,)
                self.steps.append(LayerStep("average", entry, place, names, padding=(1, 1)))
                continue
            part = source
            for i, layer in enumerate(tower, 1):
                if tower[:i] not in reached:
                    target = place if i == len(tower) else None
                    buffer = prefix + (layer.name or layer.kind)
                    reached[tower[:i]] = self.layer(prefix, layer, part, target, buffer)
                part = reached[tower[:i]]
        return ChannelRange(name, first, sum(widths))

    def _before(self, prefix: str, towers: Sequence[Tower]) -> list[str]:
        """Return the 1×1 convolutions of a block's input that others read: first those to be averaged."""
        averaged = [tower[1].name for tower in towers if tower[0] == AVERAGE]
        others = [tower[0].name for tower in towers if len(tower) > 1 and self._pointwise(prefix, tower[0])]
        return list(dict.fromkeys([*averaged, *others]))

    def _entries(
        self,
        prefix: str,
        towers: Sequence[Tower],
        before: Sequence[str],
        source: ChannelRange,
        output: ChannelRange,
    ) -> dict[Tower, ChannelRange]:
        """Add the 1×1 convolutions of a block's input and return where their numbers go."""
        averaged = {tower[1].name for tower in towers if tower[0] == AVERAGE}
        alone = [towers[0][0].name] if len(towers[0]) == 1 and self._pointwise(prefix, towers[0][0]) else []
        names = [*before, *alone]
        counts = [self.shapes[prefix + name][0] for name in names]
        starts = list(accumulate(counts, initial=0))
        own = ChannelRange(output.buffer, 0, starts[-1])
        if output.first != sum(counts[: len(before)]):  # the output has another size
            own = self._room(f"{prefix}entries", starts[-1], source, AVERAGE, (1, 1))
        parts = [ChannelRange(own.buffer, start, count) for start, count in zip(starts, counts, strict=False)]
        linear = sum(count for name, count in zip(names, counts, strict=True) if name in averaged)
        joined = tuple(prefix + name for name in names)
        self.steps.append(LayerStep("convolution", source, own, joined, (1, 1), linear=linear))
        return {(Layer("convolution", name),): part for name, part in zip(names, parts, strict=True)}

    def _pointwise(self, prefix: str, layer: Layer) -> bool:
        return layer.kind == "convolution" and self.shapes[prefix + layer.name][2:] == (1, 1)

    def _width(self, prefix: str, layer: Layer, source: ChannelRange) -> int:
        return self.shapes[prefix + layer.name][0] if layer.kind == "convolution" else source.count

    def _room(
        self, name: str, channels: int, source: ChannelRange, layer: Layer, kernel: tuple[int, int]
    ) -> ChannelRange:
        """Add a buffer for what a layer makes of a source."""
        room = self.rooms[source.buffer]
        height, width = (
            side if layer.padded and layer.stride == 1 else (side - extent) // layer.stride + 1
            for side, extent in zip((room.height, room.width), kernel, strict=True)
        )
        self.rooms[name] = Room(channels, height, width)
        return ChannelRange(name, 0, channels)
