"""Plot the FID of finished runs against the seconds they took.

    python examples/fid_against_seconds.py RUN... --out FILE.png

Seconds are those of the whole run, from start to report. Runs whose recipes differ in nothing but the seed, and
in what is written, are one point with the range of their scores. Scoring takes time too: compare runs that are
scored alike.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import yaml

PUBLISHED = {"ℓ-SWF, the paper, on eight A100s; its time is not stated": 59.7, "SINF": 66.5}
RELEASED = (255e-3 * 23_020, 63.3)
"""The authors' flow: seconds of their code for a step of 32×32 (docs/performance.md) times the steps, and FID
of the flow run by cswf (docs/paper.md). Steps on smaller grids take less: their code takes at most so long."""
APART = ("seed", "name", "description", "outputs")
"""Keys of recipes that matter neither to scores nor to seconds, or only by chance."""

reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
reader.add_argument("runs", nargs="+", type=Path, metavar="RUN")
reader.add_argument("--out", type=Path, default=Path("fid-seconds.png"))
chosen = reader.parse_args()

points = defaultdict(list)
for folder in chosen.runs:
    run = json.loads((folder / "run.json").read_text())
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    scores = json.loads((folder / "metrics.json").read_text())["scores"]
    fid = next((score for score in scores if score["name"] == "fid"), None)
    if fid is None or fid["samples"] != 50_000:
        raise SystemExit(f"{folder}: it has no FID of 50,000 samples, and others cannot be compared")
    settings = json.dumps({key: value for key, value in recipe.items() if key not in APART}, sort_keys=True)
    points[run["name"], run["steps_done"], settings].append((run["seconds"], fid["value"]))

figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
for name in sorted({name for name, _, _ in points}):
    line = []
    for _, steps, settings in sorted(key for key in points if key[0] == name):
        found = points[name, steps, settings]
        seconds, fids = mean(seconds for seconds, _ in found), [fid for _, fid in found]
        spread = f"{min(fids):.2f} to {max(fids):.2f}, {len(found)} seeds" if len(found) > 1 else "one seed"
        print(f"{name}, {steps:,} steps: {seconds:.0f} s, FID {mean(fids):.2f} ({spread})")
        axes.annotate(
            f"{steps:,} steps", (seconds, mean(fids)), textcoords="offset points", xytext=(5, 6), fontsize=8
        )
        axes.vlines(seconds, min(fids), max(fids))
        line.append((seconds, mean(fids)))
    axes.plot(*zip(*line, strict=True), marker="o", label=f"cswf run {name}, one H200")
axes.plot(
    *RELEASED,
    "s",
    color="black",
    label="the authors' flow, 50,000 particles; time of their code, one H200, reckoned",
)
for (name, value), style in zip(PUBLISHED.items(), ("--", ":"), strict=True):
    axes.axhline(value, linestyle=style, color="grey")
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    axes.annotate(f"{name}: {value}", (0.99, value), **place, fontsize=8, color="grey")
axes.set(xscale="log", xlabel="seconds from start to report", ylabel="FID of 50,000 samples, CIFAR-10")
axes.set_xlim(10, 20_000)
axes.set_xticks([10, 30, 100, 300, 1000, 3000, 10000], ["10", "30", "100", "300", "1,000", "3,000", "10,000"])
axes.minorticks_off()
axes.legend(fontsize=8, loc="center right")
figure.savefig(chosen.out, dpi=120)
print(f"see {chosen.out}")
