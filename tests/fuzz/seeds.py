"""What tampering begins with; `python -m tests.fuzz.seeds` makes the valid files of the corpus anew.

Tiny runs, models, sweeps and shards are made by the program as it is now, when fuzzing begins, and not kept in
the corpus: a checkpoint of other versions of packages goes on with a warning, and that would hide differences.
"""

from __future__ import annotations

import gzip
import io
import pickle
import random
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from PIL import Image

from cswf_core import hookimpl
from cswf_core.interfaces import Key
from cswf_core.packed.loaded import LoadedImages
from cswf_core.packed.writer import pack
from cswf_core.plugins import Registry
from cswf_core.recipe import load_recipe
from cswf_core.recipe.render import to_yaml
from cswf_core.runs.folder import RunFolder
from cswf_core.session.run import launch
from cswf_plugins.datasets.npz import Npz
from tests.fuzz.target import CORPUS, fresh

BASE: dict[str, Any] = {
    "name": "tiny",
    "description": "A flow that takes no time.",
    "particles": {"count": 6},
    "condition": {"use": "one-hot", "amplifier": 2.0},
    "schedule": {"use": "constant", "steps": 4, "directions": 8, "step_size": 0.2},
    "outputs": {"checkpoint_every": 1, "frames": 0, "snapshots": []},
    "model": {"save": True, "knots": 4},
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


SECTIONS = """\
name: sections
description: A recipe with every section.
seed: 3
data: {use: toy-2d, count: 8, target: [{mean: [1, 1]}, {mean: [-1, -1], std: [0.1, 0.2], weight: 2}]}
particles: {count: 5, start: gaussian}
condition: {use: none}
projection: {use: uniform, reuse: 1}
cdf: {use: histogram, bins: 16}
schedule: {use: constant, steps: 3, directions: 4, step_size: 0.2}
coordinates: {use: whitened, exponent: 0.8}
outputs: {log_every: 2, snapshots: [0, 3], frames: 2, checkpoint_every: 10min}
model: {save: false, knots: 8}
evaluate: {metrics: [sliced-wasserstein, {use: fid, mode: clean}]}
"""

SMALL = "data: {use: npz, path: ../some/points.npz}\nschedule: {use: constant, steps: 2, directions: 3}\n"


def main() -> None:
    """Write all files; what is not made here, the named cases, stays."""
    write("recipe/small.yaml", SMALL.encode())
    write("recipe/sections.yaml", SECTIONS.encode())
    with tempfile.TemporaryDirectory() as folder:
        resolved = load_recipe(recipe(Path(folder))).resolved()
    write("recipe/resolved.yaml", to_yaml({**resolved, "data": {"use": "digits"}}).encode())
    rng = random.Random("corpus")
    idx(rng)
    cifar(rng)
    for kind in ("classes", "points", "vectors"):
        write(f"npz/{kind}.npz", archive(kind))
    pictures(rng)
    packed()


def write(name: str, content: bytes) -> None:
    """Write a file of the corpus."""
    path = CORPUS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def idx(rng: random.Random) -> None:
    """Files of MNIST with two images a split, one pair of them gzipped."""
    for split, suffix in (("train", ""), ("t10k", ".gz")):
        images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 28, 28) + bytes(
            rng.choice((0, 0, 0, 200)) for _ in range(2 * 784)
        )
        labels = struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes([3, 7])
        for name, content in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
            write(f"idx/{name}{suffix}", gzip.compress(content, mtime=0) if suffix else content)


def cifar(rng: random.Random) -> None:
    """Files of CIFAR-10 with one image: of the binary version, and of the one for Python."""
    pixels = rng.randbytes(3072)
    write("cifar/test_batch.bin", bytes([3]) + pixels)
    batch = {b"data": np.frombuffer(pixels, np.uint8)[None].copy(), b"labels": [3], b"batch_label": b"one"}
    write("cifar/test_batch", pickle.dumps(batch, protocol=2))


def pictures(rng: random.Random) -> None:
    """A picture of each kind, of 8×8 pixels."""
    colour = Image.frombytes("RGB", (8, 8), rng.randbytes(192))
    for name, picture in (
        ("grey.png", colour.convert("L")),
        ("colour.png", colour),
        ("palette.png", colour.convert("P")),
        ("alpha.png", colour.convert("RGBA")),
        ("bits.png", colour.convert("1")),
        ("colour.jpg", colour),
        ("grey.bmp", colour.convert("L")),
        ("colour.webp", colour),
    ):
        buffer = io.BytesIO()
        picture.save(buffer, {"jpg": "jpeg"}.get(name.split(".")[1], name.split(".")[1]))
        write(f"pictures/{name}", buffer.getvalue())


def packed() -> None:
    """A folder of packed images, in two shards."""
    cases = {path.name: path.read_bytes() for path in (CORPUS / "packed" / "cases").glob("*")}
    folder = fresh(CORPUS / "packed")
    with tempfile.TemporaryDirectory() as work:
        data = Path(work) / "classes.npz"
        data.write_bytes(archive("classes"))
        images = LoadedImages.of(Npz(path=data).load(Key(0, "data").open()))
        pack(images, folder, source={"use": "npz", "path": "classes.npz"}, seed=0, per_shard=7)
    for name, content in cases.items():
        write(f"packed/cases/{name}", content)


if __name__ == "__main__":
    main()
