"""Tiny runs and data, made by the program as it is now: what tampering begins with.

They are not kept in the corpus: a checkpoint of other versions of packages goes on with a warning, and that
would hide differences.
"""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from cswf_core import hookimpl
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch

BASE: dict[str, Any] = {
    "name": "tiny",
    "description": "A flow that takes no time.",
    "particles": {"count": 6},
    "condition": {"use": "one-hot", "amplifier": 2.0},
    "schedule": {"use": "constant", "steps": 4, "directions": 8, "step_size": 0.2},
    "outputs": {"checkpoint_every": 1, "frames": 0, "snapshots": []},
    "model": {"save": True, "knots": 5},
    "evaluate": {"metrics": []},
}

KINDS: dict[str, dict[str, Any]] = {
    "classes": {},
    "whitened": {
        "condition": "none",
        "coordinates": {"use": "whitened", "exponent": 0.8},
        "particles": {"count": 6, "start": "gaussian"},
    },
    "points": {"condition": "none"},
    "vectors": {"condition": {"use": "continuous", "amplifier": 2.0}},
    "masked": {"condition": {"use": "mask"}},
}
"""Models by what can be asked of them."""


@attrs.frozen
class Stop:
    """Ends a run as Ctrl-C does, after a step."""

    step: int

    @hookimpl
    def after_step(self, state: Any) -> None:
        """Stop if this is the step."""
        if state.total_step == self.step:
            raise KeyboardInterrupt


def arrays(kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return tiny data: images of two classes, or points, or points with condition vectors."""
    rng = random.Random(f"data/{kind}")
    labels = np.arange(12) % 2
    if kind in ("points", "vectors"):
        points = np.array([[rng.randrange(-99, 99) / 100 for _ in range(3)] for _ in labels], np.float32)
        more = {"vectors": points[:, :2].copy()} if kind == "vectors" else {}
        return {"points": points, **more}
    return {"images": np.frombuffer(rng.randbytes(12 * 16), np.uint8).reshape(12, 1, 4, 4), "labels": labels}


def archive(kind: str) -> bytes:
    """Return tiny data as an .npz file."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays(kind))
    return buffer.getvalue()


def recipe(folder: Path, kind: str = "classes", **sections: Any) -> dict[str, Any]:
    """Return the recipe of a tiny run of data in a folder, which are written there."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{kind}.npz"
    if not data.exists():
        data.write_bytes(archive(kind))
    return {**BASE, "data": {"use": "npz", "path": str(data)}, **KINDS[kind], **sections}


def run(folder: Path, recipe: dict[str, Any], registry: Registry, stop: int | None = None) -> str:
    """Run a recipe, up to a step if one is given; return the SHA-256 of its samples."""
    observers = [] if stop is None else [Stop(stop)]
    with suppress(KeyboardInterrupt):
        facts = launch(
            load_recipe(recipe, registry=registry), RunFolder(folder), device="cpu", observers=observers
        )
        return str(facts["samples_sha256"])
    return ""
