"""`python -m tests.fuzz.corpus`: make the valid files of the corpus anew, each of some kB at most."""

from __future__ import annotations

import gzip
import io
import pickle
import random
import struct
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from cswf_core.interfaces import Key
from cswf_core.packed import LoadedImages, pack
from cswf_core.recipe import load_recipe
from cswf_core.recipe.render import to_yaml
from cswf_plugins.datasets.npz import Npz
from tests.fuzz import seeds
from tests.fuzz.target import CORPUS, fresh

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
        resolved = load_recipe(seeds.recipe(Path(folder))).resolved()
    write("recipe/resolved.yaml", to_yaml({**resolved, "data": {"use": "digits"}}).encode())
    rng = random.Random("corpus")
    idx(rng)
    cifar(rng)
    for kind in ("classes", "points", "vectors"):
        write(f"npz/{kind}.npz", seeds.archive(kind))
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
        data.write_bytes(seeds.archive("classes"))
        images = LoadedImages.of(Npz(path=data).load(Key(0, "data").open()))
        pack(images, folder, source={"use": "npz", "path": "classes.npz"}, seed=0, per_shard=7)
    for name, content in cases.items():
        write(f"packed/cases/{name}", content)


if __name__ == "__main__":
    main()
