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


def score_pair(name: str, train: float, test: float, **facts: Any) -> list[dict[str, Any]]:
    """A score against both splits, as an evaluation writes it."""
    splits = {"train": (name, train), "test": (f"{name}_test", test)}
    return [score(*pair, against={"split": split}, **facts) for split, pair in splits.items()]


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
    chosen = np.repeat(np.arange(3), 5)
    moving = rng.integers(0, 256, (6, 15, *shape), dtype=np.uint8)
    frames = Frames((0, 1, 4, 9, 20, steps), images=moving, labels=chosen, classes=("zero", "one", "two"))
    (folder / "frames.npz").write_bytes(frames.archive())
    (folder / "flow.gif").write_bytes(frames.gif())
    picture = png(Image.new("RGB", (120, 90), (120, 140, 160)))
    drawn = ("samples.png", "samples-offline.png", "flow.png", "completions.png", "nearest-neighbours.png")
    for name in drawn:
        (folder / name).write_bytes(picture)
    if scores is not None:
        content = {"format": 1, "scores": scores, "notes": list(notes), "figures": ["nearest-neighbours.png"]}
        (folder / "metrics.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    """Make the folder of a run by the given name."""

    def made(name: str = "run", **options: Any) -> Path:
        return make_run(tmp_path / name, **options)

    return made
