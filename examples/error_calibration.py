"""Whether standard errors of scores are right, on Inception features of real images.

    python examples/error_calibration.py
    python examples/error_calibration.py --data '{use: fashion-mnist, dequantise: none}' --sizes 500

Training images are cut into disjoint parts, each of which is scored against the held-out images. A row has a
score's mean, the error that its metric says it has, on average, and the standard deviation over parts. All
parts share the held-out images, so for FID and KID the error is that of the generated part alone.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from cswf_core.interfaces import Comparison, Key, Workbench
from cswf_core.plugins import Registry
from cswf_core.recipe import choose
from cswf_core.recipe.build import choose_device, load_chosen

MOST_PARTS = 20
METRICS = ("fid", "kid", "precision-recall", "density-coverage")

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--data", default="{use: cifar10, dequantise: none}")
options.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000], help="images of a part")
options.add_argument("--device", default="auto")
arguments = options.parse_args()

registry, device = Registry.discover(), choose_device(arguments.device)
data = load_chosen(choose(registry, "dataset", arguments.data), 0, torch.float32)
real, metrics = data.held_out, [choose(registry, "metric", name).part for name in METRICS]
assert real is not None, "these data hold nothing out"
bench = Workbench()
order = torch.from_numpy(Key(1, "order").open().host.permutation(len(data)))
print(f"{'':24}{'mean':>12}{'error':>12}{'deviation':>12}{'ratio':>8}")
for size in arguments.sizes:
    scores: dict[str, list[tuple[float, float]]] = {}
    for part in torch.split(order, size)[: min(MOST_PARTS, len(data) // size)]:
        generated = data.take(part)
        for metric in metrics:
            measured = metric.compute(Comparison(generated, real, Key(0, "metric").open(device), bench=bench))
            for name, spread in measured.spreads.items():
                error = spread.own if name in ("fid", "kid") else spread.error
                scores.setdefault(name, []).append((measured.scores[name], error))
    for name, pairs in scores.items():
        values, errors = zip(*pairs, strict=True)
        error, deviation = statistics.fmean(errors), statistics.stdev(values)
        title = f"{name}, {len(pairs)} × {size:,}"
        print(
            f"{title:24}{statistics.fmean(values):12.5g}{error:12.3g}{deviation:12.3g}{error / deviation:8.2f}"
        )
