"""Convolutions and poolings by tensor cores are those of PyTorch: in Triton's interpreter, or on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.kernels.interpreted import DEVICE

from cswf_plugins.inception import kernels  # isort: skip
from cswf_plugins.inception.architecture import NetworkPlan, folded
from cswf_plugins.inception.halves import FORMS, HalvesNetwork, chosen_tile, try_out
from cswf_plugins.inception.kernels import Halves, Tile
from cswf_plugins.inception.network import PlainNetwork

pytestmark = pytest.mark.interpreter

SMALL = Tile(32, 32, 32, warps=4, stages=2)


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def halves(x: torch.Tensor) -> Halves:
    """Numbers n×C×H×W, split."""
    x = x.permute(0, 2, 3, 1).contiguous()
    high = x.half()
    return Halves(high, (x - high.float()).half())


def empty(n: int, height: int, width: int, channels: int) -> Halves:
    return halves(torch.full((n, channels, height, width), 7.0, device=DEVICE))


def seen(y: Halves) -> torch.Tensor:
    return y.numbers().permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((1, 1), 1, (0, 0)), ((3, 3), 2, (0, 0)), ((5, 5), 1, (2, 2)), ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))],
)
def test_a_convolution_of_pairs_is_pytorch_s_to_float32(kernel, stride, padding):
    x, weight = sample(2, 32, 5, 6), sample(24, 32, *kernel, seed=1) * 0.03
    bias = sample(24, seed=2)
    exact = functional.conv2d(x.double(), weight.double(), bias.double(), stride, padding).relu()
    y = empty(2, *exact.shape[2:], 24)
    kernels.convolve(halves(x), kernels.filters(weight, bias), y, stride, padding, 0, SMALL)
    assert float((seen(y) - exact).abs().max() / exact.abs().max()) < 1e-6


def test_a_convolution_reads_and_writes_parts_of_buffers():
    """Also where the depth of a tile does not divide the channels, and some outputs stay as they are."""
    whole, buffer = halves(sample(1, 64, 5, 5)), empty(1, 5, 5, 48)
    weight, bias = sample(32, 24, 3, 3, seed=1), sample(32, seed=2)
    bias[:16] = 0
    given = kernels.filters(weight, bias)
    kernels.convolve(whole.part(16, 24), given, buffer.part(8, 32), 1, (1, 1), 16, SMALL)
    expected = functional.conv2d(seen(whole)[:, 16:40], weight, bias, 1, 1)
    expected[:, 16:].relu_()
    torch.testing.assert_close(seen(buffer)[:, 8:40], expected, atol=1e-4, rtol=1e-5)
    assert bool((seen(buffer)[:, :8] == 7).all())
    assert bool((seen(buffer)[:, 40:] == 7).all())


@pytest.mark.parametrize("grey", [False, True])
def test_the_first_convolution_takes_images_of_one_or_three_channels(grey):
    images = sample(2, 1, 13, 13).expand(-1, 3, -1, -1) if grey else sample(2, 3, 13, 13)
    weight, bias = sample(32, 3, 3, 3, seed=1), sample(32, seed=2)
    expected = functional.conv2d(images, weight, bias, 2).relu()
    y = empty(2, 6, 6, 32)
    kernels.enter(images, kernels.filters(weight, bias), y)
    torch.testing.assert_close(seen(y), expected, atol=1e-5, rtol=1e-5)


def test_poolings_are_pytorch_s():
    x, bias = sample(2, 40, 7, 7), sample(40, seed=1)
    split = halves(x)
    y = empty(2, 3, 3, 40)
    kernels.pool(split, y, 2, 0, None)
    assert torch.equal(seen(y), functional.max_pool2d(seen(split), 3, 2))
    y = empty(2, 7, 7, 40)
    kernels.pool(split, y, 1, 1, None)
    assert torch.equal(seen(y), functional.max_pool2d(seen(split), 3, 1, 1))
    kernels.pool(split, y, 1, 1, bias)
    mean = functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    torch.testing.assert_close(seen(y), (mean + bias[:, None, None]).relu(), atol=1e-6, rtol=1e-5)


ELSEWHERE = pytest.mark.skipif(
    DEVICE.type != "cuda", reason="on some CPUs, last digits of NumPy's products depend on the place in a tile"
)


@pytest.mark.parametrize(("side", "number"), [(5, 0), (8, 1), pytest.param(5, 1, marks=ELSEWHERE)])
def test_an_image_has_the_same_numbers_whatever_stands_beside_it(side, number):
    """Images of 8×8 begin with a tile; of those of 5×5, only the first does."""
    x, weight, bias = sample(3, 16, side, side), sample(16, 16, 3, 3, seed=1), sample(16, seed=2)
    one = slice(number, number + 1)
    given = kernels.filters(weight, bias)
    together, alone = empty(3, side, side, 16), empty(1, side, side, 16)
    kernels.convolve(halves(x), given, together, 1, (1, 1), 0, SMALL)
    kernels.convolve(halves(x[one]), given, alone, 1, (1, 1), 0, SMALL)
    assert torch.equal(seen(together)[one], seen(alone))


def test_small_weights_keep_their_digits():
    """Weights of 10⁻⁶ are below what float16 has in full."""
    weight, bias = sample(8, 16, 1, 1) * 1e-6, torch.zeros(8, device=DEVICE)
    given = kernels.filters(weight, bias)
    restored = (given.high.double() + given.low.double()) * given.factor
    error = (restored.T.reshape(8, 16, 1, 1) - weight).abs().max() / weight.abs().max()
    assert float(error) < 2**-21


def test_kernels_that_are_tried_out_are_those_that_the_network_needs(network):
    def form(inputs: int, outputs: int) -> tuple[Tile, bool]:
        tile = chosen_tile(inputs, outputs)
        return tile, inputs % tile.depth == 0

    convolutions = folded(torch.jit.load(str(network.path)).state_dict())
    steps = NetworkPlan(convolutions).steps[1:]  # the first has another
    needed = {form(step.source.count, step.target.count) for step in steps if step.kind == "convolution"}
    assert needed == {form(*sizes) for sizes in FORMS}


def test_kernels_can_be_tried_out():
    try_out(DEVICE)


@pytest.mark.slow
def test_the_whole_network_is_pytorch_s(network):
    """On images of 75×75, the smallest that have an output."""
    convolutions = folded(torch.jit.load(str(network.path)).state_dict())
    images = sample(1, 3, 75, 75)
    expected = PlainNetwork(convolutions, DEVICE, side=75)(images)
    computed = HalvesNetwork(convolutions, DEVICE, side=75)(images)
    difference = torch.linalg.vector_norm(computed - expected) / torch.linalg.vector_norm(expected)
    assert float(difference) < 1e-5
