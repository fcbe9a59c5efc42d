"""Run folders for reports, made by hand in a moment: as a run would leave them, and as it should not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cswf_core.pictures.frames import Frames
from cswf_core.pictures.grid import png
from cswf_core.recipe.render import to_yaml

MakeRun = Callable[..., Path]


def score(name: str, value: float, better: str = "lower", **facts: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "better": better, "metric": name, "parameters": {}, **facts}


def meaning(aspect: str, sentence: str = "", **more: Any) -> dict[str, Any]:
    """What a score says, as an evaluation writes it."""
    return {
        "aspect": aspect,
        "sentence": sentence,
        "share": False,
        "expected": None,
        "of_samples": True,
        **more,
    }


def full_scores(fid: float = 36.9, error: float = 0.21) -> list[dict[str, Any]]:
    """Scores as today's metrics write them: with errors, meanings, classes and copies."""
    about = {
        "samples": 50_000,
        "settings": {"seed": 0, "precision": "float32"},
        "parameters": {"mode": "clean"},
    }
    real = {"data": "cifar10", "count": 50_000, "sha256": "cd" * 32}
    quality = meaning("quality", "Distance of features; 0 is equal.")
    sure = {"error": error, "error_method": "jackknife of 20 parts", "protocol": "By the book of FID."}
    copying = {"metric": "nearest-neighbours", "parameters": {"spaces": ["pixels"]}, "samples": 1000}
    share = meaning("copying", "Share of samples that are nearer than real ones.", share=True, expected=0.01)
    classes = {"zero": 40.0, "one": 20.0, "two": 10.0}
    return [
        score("fid", fid, meaning=quality, against={**real, "split": "train"}, **about, **sure),
        score("fid_test", fid + 2, meaning=quality, against={**real, "split": "test"}, **about, **sure)
        | {"metric": "fid"},
        score("recall", 0.5, "higher", meaning=meaning("coverage", share=True)),
        score("class_accuracy_real", 0.97, "", meaning=meaning("condition", share=True, of_samples=False)),
        *(
            score(f"class_fid.{name}", value, detail=True, meaning=meaning("condition"))
            for name, value in classes.items()
        ),
        score("near_l2", 0.159, "", meaning=share, error=0.012, protocol="By the book of copies.") | copying,
        score(
            "nearest_l2", 1.5, "", meaning=meaning("copying", expected=1.9), protocol="By the book of copies."
        )
        | copying,
    ]


def make_run(
    folder: Path,
    *,
    recipe: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    scores: list[dict[str, Any]] | None = None,
    notes: tuple[str, ...] = (),
    steps: int = 40,
    shape: tuple[int, int, int] = (1, 8, 8),
    seed: int = 0,
) -> Path:
    """Fill a folder with all the files of a finished run."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    said = {"name": "small", "description": "A small one.", "seed": seed, "data": {"use": "digits"}}
    said |= {"schedule": {"use": "constant", "steps": steps}} | (recipe or {})
    (folder / "recipe.yaml").write_text(to_yaml(said), encoding="utf-8")
    known = {
        "format": 1,
        "status": "done",
        "name": said["name"],
        "seed": seed,
        "device": {"type": "cpu", "name": "x86_64", "threads": 2},
        "particles": 60,
        "data": {"samples": 1797, "shape": list(shape), "sha256": "ab" * 32},
        "plugins": {"data": {"name": said["data"]["use"], "distribution": "cswf", "version": "0"}},
        "started": "2026-01-02T03:04:05+00:00",
        "versions": {"python": "3.11", "torch": "2.10"},
        "seconds": 3.5,
        "steps_done": steps,
        "steps_planned": steps,
        "metrics": {"sliced_wasserstein": 0.0228},
    }
    (folder / "run.json").write_text(json.dumps(known | (facts or {})), encoding="utf-8")
    rows = [
        {
            "step": step,
            "stage": int(step > steps // 2),
            "sliced_distance": 2.0 / step + 0.01 * seed,
            "displacement": None if step == 3 else 1.0 / step,
            "seconds": 0.02 * step,
        }
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    labels = np.repeat(np.arange(3), 20)
    images = rng.integers(0, 256, (60, *shape), dtype=np.uint8)
    np.savez(folder / "samples.npz", images=images, labels=labels)
    np.savez(folder / "real.npz", images=images[::4], labels=labels[::4])
    chosen = np.repeat(np.arange(3), 5)
    moving = rng.integers(0, 256, (6, 15, *shape), dtype=np.uint8)
    frames = Frames((0, 1, 4, 9, 20, steps), images=moving, labels=chosen, classes=("zero", "one", "two"))
    (folder / "frames.npz").write_bytes(frames.archive())
    (folder / "flow.gif").write_bytes(frames.gif())
    picture = png(Image.new("RGB", (120, 90), (120, 140, 160)))
    drawn = ("samples.png", "samples-offline.png", "flow.png", "completions.png", "nearest-neighbours.png")
    for name in drawn:
        (folder / name).write_bytes(picture)
    scores = [score("sliced_wasserstein", 0.0228)] if scores is None else scores
    content = {"format": 2, "scores": scores, "notes": list(notes), "figures": ["nearest-neighbours.png"]}
    (folder / "metrics.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    """Make the folder of a run by the given name."""

    def made(name: str = "run", **options: Any) -> Path:
        return make_run(tmp_path / name, **options)

    return made
