"""Runs made by hand: folders with a recipe, a record and scores, and no flow behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cswf_core.interfaces.dataset import digest_of

RECIPE = "name: {name}\nseed: {seed}\ncondition:\n  amplifier: {amplifier}\n"


def score(name: str = "fid", value: float = 1.0, *, split: str = "train", **more: Any) -> dict[str, Any]:
    """A score as metrics.json has it, against 1,000 images of a data set."""
    against = {"data": "digits", "split": split, "count": 1000, "sha256": split[0] * 64}
    entry = {
        "name": name,
        "row": name.removesuffix("_test"),
        "value": value,
        "detail": False,
        "better": "lower",
        "metric": "fid",
        "parameters": {"use": "fid", "mode": "clean"},
        "against": against,
        "samples": 500,
        "protocol": "distance of features",
        "notes": [],
        "settings": {"seed": 0, "precision": "float32", "samples": 50_000},
        "device": {"type": "cuda", "name": "H200"},
        "versions": {"cswf": "1.2", "torch": "2.10"},
        "commit": "0123456789abcdef",
    }
    return entry | more


def write_run(
    folder: Path, *scores: dict[str, Any], seed: int = 0, name: str = "mine", amplifier: int = 1
) -> Path:
    """A run that is done, with some scores."""
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE.format(name=name, seed=seed, amplifier=amplifier))
    (folder / "run.json").write_text(json.dumps({"status": "done"}))
    (folder / "metrics.json").write_text(json.dumps({"format": 2, "scores": list(scores), "notes": []}))
    return folder


def write_samples(folder: Path, seed: int = 0) -> str:
    """A samples.npz with four images; returns the digest that an evaluation would write down."""
    import torch

    images = np.random.default_rng(seed).integers(0, 256, (4, 1, 2, 2), np.uint8)
    np.savez(folder / "samples.npz", images=images)
    return digest_of(torch.from_numpy(images))


def two_groups(folder: Path) -> list[Path]:
    """Two groups of three seeds; by FID the first is better beyond noise, by recall neither is."""
    shares = {"better": "higher", "metric": "precision-recall", "parameters": {}, "meaning": {"share": True}}
    values = {1: [(1.0, 0.50), (1.1, 0.52), (1.2, 0.54)], 2: [(5.0, 0.51), (5.2, 0.53), (5.1, 0.55)]}
    return [
        write_run(
            folder / f"{amplifier}-{seed}",
            score("fid", fid),
            score("recall", recall, protocol="balls around features", **shares),
            score("smallest", 0.1, detail=True),
            seed=seed,
            amplifier=amplifier,
        )
        for amplifier, each in values.items()
        for seed, (fid, recall) in enumerate(each)
    ]
