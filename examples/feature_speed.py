"""How many images a second the feature network takes, and what our kernels do to FID.

    python examples/feature_speed.py
    python examples/feature_speed.py --data '{use: fashion-mnist, dequantise: none}' --count 5000

Real images are compared with others of the same data set, blurred and with noise. There is a row for the
program in the network's file, and one for what an evaluation takes. Images a second are those of both sets,
resizing included.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor
from torch.nn import functional

from cswf_core.interfaces import Workbench
from cswf_core.kernels.frechet import frechet_distance, moments
from cswf_core.plugins import Registry
from cswf_core.recipe import choose
from cswf_core.recipe.build import choose_device, load_chosen
from cswf_plugins.inception import weights
from cswf_plugins.inception.network import Network

WAYS = {"the file's program": "script", "ours": None}
"""A row's name → engine; None is the one that an evaluation takes."""


def worse(images: Tensor) -> Tensor:
    """Return images (n×C×H×W bytes) with some blur and noise."""
    pixels = images.float()
    blurred = functional.avg_pool2d(pixels, 3, 1, 1, count_include_pad=False)
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(7))
    return (0.5 * pixels + 0.5 * blurred + 12 * noise).round().clamp(0, 255).to(torch.uint8)


def scored(network: Network, mode: str, real: Tensor, generated: Tensor) -> tuple[float, float]:
    """Return images a second, and FID."""
    for _ in range(2):  # kernels are compiled, and memory is there
        network.features(real[: network.batch], mode, "", lambda *_: None)
    begun = time.perf_counter()
    features = [network.features(images, mode, "", lambda *_: None) for images in (real, generated)]
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)
    seconds = time.perf_counter() - begun
    p, q = map(moments, features)
    return (len(real) + len(generated)) / seconds, frechet_distance(p, q)


def main() -> None:
    """Print a row for each way to compute features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="{use: cifar10, dequantise: none}", help="a data set of images")
    parser.add_argument("--count", type=int, default=20_000, help="real images, and as many others")
    parser.add_argument("--mode", default="legacy_tensorflow", choices=("legacy_tensorflow", "clean"))
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    data = load_chosen(choose(Registry.discover(), "dataset", given.data), 0, torch.float32)
    real, others = data.images()[: 2 * given.count].split(min(given.count, len(data) // 2))[:2]
    device, file = choose_device(given.device), weights.find(Workbench())
    print(f"{'':20} {'images/s':>10} {'FID':>12} {'difference':>12}")
    first = None
    for name, engine in WAYS.items():
        speed, fid = scored(Network(file, device, engine), given.mode, real, worse(others))
        first = fid if first is None else first
        print(f"{name:20} {speed:10,.0f} {fid:12.5f} {fid - first:+12.6f}", flush=True)


if __name__ == "__main__":
    main()
