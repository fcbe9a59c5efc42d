"""Convolutions and poolings of the feature network on tensor cores, in float16 (Triton).

A number is the sum of two of float16, `high`, the nearest one, and `low`, the nearest to what is left: 22 bits,
of the 24 of float32. A product of two such numbers is three products of float16, whose sum is in float32:
high·low + low·high + high·high. Tensor cores cut sums off instead of rounding them, and a long sum would come
out too small; so they add up the terms of a tile's depth, and such sums are added by rounding.

Numbers lie with channels last: n×H×W×C. No kernel mixes pixels but for those of a convolution, and terms are
added in one order: an image's numbers are the same to the bit whatever stands beside it.
"""
# mypy: ignore-errors

from __future__ import annotations

import attrs
import torch
import triton
import triton.language as tl
from torch import Tensor

POOLED = (32, 64)
"""Pixels and channels of a tile of a pooling."""
ENTERING = 128
"""Pixels of a tile of the first convolution."""


@attrs.frozen
class Tile:
    """The sizes of a program's work: outputs, and terms added at a time."""

    pixels: int
    channels: int
    depth: int
    warps: int
    stages: int


@attrs.frozen(eq=False)
class Halves:
    """Numbers as two of float16, with channels last; a part of a buffer's channels has its strides."""

    high: Tensor
    """n×H×W×C."""
    low: Tensor
    """The same."""

    def part(self, first: int, count: int) -> Halves:
        """Return some channels."""
        end = first + count
        return Halves(self.high[..., first:end], self.low[..., first:end])

    def numbers(self) -> Tensor:
        """Return them in float32: n×H×W×C."""
        return self.high.float() + self.low.float()


@attrs.frozen(eq=False)
class Filters:
    """The weights of a convolution, of each output times a power of two: the largest is from 512 to 1,024.

    float16 has its full precision from 0.00006 to 65,504, and small weights would lose digits.
    """

    high: Tensor
    """(rows · columns · inputs)×outputs, of float16."""
    low: Tensor
    """The same."""
    factor: Tensor
    """What the sums are multiplied by."""
    bias: Tensor
    kernel: tuple[int, int]
    inputs: int


def filters(weight: Tensor, bias: Tensor) -> Filters:
    """Return weights (outputs×inputs×rows×columns) and biases as a kernel takes them."""
    outputs, inputs, rows, columns = weight.shape
    power = torch.frexp(weight.flatten(1).abs().amax(dim=1)).exponent.to(torch.int32)
    scaled = torch.ldexp(weight.flatten(1), (10 - power)[:, None]).view_as(weight)
    scaled = scaled.permute(2, 3, 1, 0).reshape(rows * columns * inputs, outputs).contiguous()
    factor = torch.ldexp(torch.ones_like(bias), power - 10)
    high = scaled.half()
    low = (scaled - high.float()).half()
    return Filters(high, low, factor, bias.contiguous(), (rows, columns), inputs)


@triton.jit
def _store(value, high, low, at, mask):
    """Round to float16, and what is left, too."""
    rounded = value.to(tl.float16)
    tl.store(high + at, rounded, mask=mask)
    tl.store(low + at, (value - rounded.to(tl.float32)).to(tl.float16), mask=mask)


PLACES = (
    "pixels", "out_height", "out_width", "height", "width",
    "taps", "columns", "stride", "above", "left", "linear",
)  # fmt: skip
"""Numbers for whose values, such as 1, no kernel is compiled of its own."""


@triton.jit(do_not_specialize=PLACES)
def _convolve(
    x_high, x_low, w_high, w_low, factor, bias, y_high, y_low,
    pixels, out_height, out_width, height, width, x_stride, y_stride, inputs, outputs,
    taps, columns, stride, above, left, linear,
    EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile of outputs: BM pixels × BN channels. The first `linear` channels are not rectified.

    EVEN says whether the depth BK divides the inputs.
    """
    across = tl.cdiv(outputs, BN)
    m = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    o = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    row = m // out_width
    top = (row % out_height) * stride - above
    side = (m % out_width) * stride - left
    corner = ((row // out_height) * height + top) * width + side
    blocks = tl.cdiv(inputs, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for i in range(taps * blocks):
        tap = i // blocks
        down = tap // columns
        right = tap % columns
        c = (i % blocks) * BK + tl.arange(0, BK)
        y = top + down
        x = side + right
        inside = ((m < pixels) & (y >= 0) & (y < height) & (x >= 0) & (x < width))[:, None]
        there = (o < outputs)[None, :]
        if not EVEN:
            inside &= (c < inputs)[None, :]
            there &= (c < inputs)[:, None]
        x_at = (corner + down * width + right)[:, None] * x_stride + c[None, :]
        w_at = (tap * inputs + c)[:, None] * outputs + o[None, :]
        a = tl.load(x_high + x_at, mask=inside, other=0.0)
        b = tl.load(w_high + w_at, mask=there, other=0.0)
        part = tl.dot(a, tl.load(w_low + w_at, mask=there, other=0.0))
        part = tl.dot(tl.load(x_low + x_at, mask=inside, other=0.0), b, part)
        total += tl.dot(a, b, part)
    there = o < outputs
    value = total * tl.load(factor + o, mask=there, other=0.0)[None, :]
    value += tl.load(bias + o, mask=there, other=0.0)[None, :]
    value = tl.where((o >= linear)[None, :], tl.maximum(value, 0.0), value)
    mask = (m < pixels)[:, None] & there[None, :]
    _store(value, y_high, y_low, m[:, None] * y_stride + o[None, :], mask)


@triton.jit(do_not_specialize=("pixels",))
def _enter(
    images, w_high, w_low, factor, bias, y_high, y_low,
    pixels, out_height, out_width, width, image_stride, channel_stride,
    BM: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """The first convolution, 3×3 of 3 channels at every second pixel: its 27 terms at once, from float32."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.arange(0, OUTPUTS)
    k = tl.arange(0, 32)
    row = m // out_width
    first = (row // out_height) * image_stride + (row % out_height) * 2 * width + (m % out_width) * 2
    tap = k // 3
    channel = k % 3
    offset = channel * channel_stride + (tap // 3) * width + tap % 3
    inside = (m < pixels)[:, None] & (k < 27)[None, :]
    value = tl.load(images + first[:, None] + offset[None, :], mask=inside, other=0.0)
    a = value.to(tl.float16)
    w_at = k[:, None] * OUTPUTS + o[None, :]
    there = (k < 27)[:, None]
    b = tl.load(w_high + w_at, mask=there, other=0.0)
    total = tl.zeros((BM, OUTPUTS), tl.float32)
    total = tl.dot((value - a.to(tl.float32)).to(tl.float16), b, total)
    total = tl.dot(a, tl.load(w_low + w_at, mask=there, other=0.0), total)
    total = tl.dot(a, b, total)
    total = total * tl.load(factor + o)[None, :] + tl.load(bias + o)[None, :]
    mask = (m < pixels)[:, None] & (o < OUTPUTS)[None, :]
    _store(tl.maximum(total, 0.0), y_high, y_low, m[:, None] * OUTPUTS + o[None, :], mask)


@triton.jit(do_not_specialize=("pixels",))
def _pool(
    x_high, x_low, bias, y_high, y_low,
    pixels, out_height, out_width, height, width, x_stride, y_stride, channels, stride, padding,
    AVERAGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The largest of 3×3 pixels, or the mean of those that are in the image, plus bias and rectified."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    row = m // out_width
    top = (row % out_height) * stride - padding
    side = (m % out_width) * stride - padding
    corner = ((row // out_height) * height + top) * width + side
    there = (c < channels)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    if not AVERAGE:
        total += float("-inf")
    count = tl.zeros((BM,), tl.float32)
    for tap in range(9):
        y = top + tap // 3
        x = side + tap % 3
        inside = (m < pixels) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        at = (corner + (tap // 3) * width + tap % 3)[:, None] * x_stride + c[None, :]
        mask = inside[:, None] & there
        value = tl.load(x_high + at, mask=mask, other=0.0).to(tl.float32)
        value += tl.load(x_low + at, mask=mask, other=0.0).to(tl.float32)
        if AVERAGE:
            total += value
            count += inside.to(tl.float32)
        else:
            total = tl.maximum(total, tl.where(mask, value, float("-inf")))
    if AVERAGE:
        total = total / tl.maximum(count, 1.0)[:, None]
        total = tl.maximum(total + tl.load(bias + c, mask=c < channels, other=0.0)[None, :], 0.0)
    mask = (m < pixels)[:, None] & there
    total = tl.where(mask, total, 0.0)  # infinity less infinity is no number
    _store(total, y_high, y_low, m[:, None] * y_stride + c[None, :], mask)


def convolve(
    x: Halves, weights: Filters, y: Halves, stride: int, padding: tuple[int, int], linear: int, tile: Tile
) -> None:
    """Write a convolution of x (n×H×W×C) plus bias to y, rectified but for the first `linear` channels."""
    n, height, width, inputs = x.high.shape
    _, out_height, out_width, outputs = y.high.shape
    assert inputs == weights.inputs
    rows, columns = weights.kernel
    pixels = n * out_height * out_width
    grid = (triton.cdiv(pixels, tile.pixels) * triton.cdiv(outputs, tile.channels),)
    _convolve[grid](
        x.high, x.low, weights.high, weights.low, weights.factor, weights.bias, y.high, y.low,
        pixels, out_height, out_width, height, width, x.high.stride(2), y.high.stride(2), inputs, outputs,
        rows * columns, columns, stride, *padding, linear,
        inputs % tile.depth == 0, tile.pixels, tile.channels, tile.depth,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def enter(images: Tensor, weights: Filters, y: Halves) -> None:
    """Write the first convolution of images (n×3×H×W in float32) to y, rectified; grey ones may be expanded."""
    _, out_height, out_width, outputs = y.high.shape
    width = images.shape[3]
    assert images.stride()[2:] == (width, 1)
    assert y.high.is_contiguous()
    pixels = len(images) * out_height * out_width
    _enter[(triton.cdiv(pixels, ENTERING),)](
        images, weights.high, weights.low, weights.factor, weights.bias,
        y.high, y.low, pixels, out_height, out_width, width, images.stride(0), images.stride(1),
        ENTERING, outputs, num_warps=4,
    )  # fmt: skip


def pool(x: Halves, y: Halves, stride: int, padding: int, bias: Tensor | None) -> None:
    """Write the largest of each 3×3 pixels of x (n×H×W×C) to y; with a bias, their mean plus it, rectified."""
    _, height, width, channels = x.high.shape
    n, out_height, out_width, _ = y.high.shape
    pixels = n * out_height * out_width
    grid = (triton.cdiv(pixels, POOLED[0]), triton.cdiv(channels, POOLED[1]))
    _pool[grid](
        x.high, x.low, y.high if bias is None else bias, y.high, y.low,
        pixels, out_height, out_width, height, width, x.high.stride(2), y.high.stride(2),
        channels, stride, padding,
        bias is not None, *POOLED, num_warps=4,
    )  # fmt: skip
