"""Data readers: idx, CIFAR, .npz, pictures and packed images."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import attrs
import torch

from cswf_core.checks import check_dataset
from cswf_core.evaluation.samples import read
from cswf_core.interfaces import Dataset, Key
from cswf_core.packed import Manifest, PackedImages, find_damage
from cswf_core.pictures.read import read_picture
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.mnist import Mnist, read_idx
from cswf_plugins.datasets.npz import Npz
from cswf_plugins.datasets.packed import Packed
from tests.fuzz import values
from tests.fuzz.containers import changed_archive, changed_array
from tests.fuzz.damage import damaged
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, fresh


def check_data(data: Dataset) -> None:
    """Raise `DataError` as a flow does for such data, and `Fault` for what it could not use all the same."""
    check_dataset(data)
    if not len(data) or data.x.shape != (data.space.dimension, len(data)):
        raise Fault(f"data that are none: {tuple(data.x.shape)} numbers, {len(data)} samples of {data.space}")
    if not bool(torch.isfinite(data.x).all()):
        raise Fault("data with NaN or infinite values: no word of it")
    labels = data.conditions.labels
    if labels is not None and (
        len(labels) != len(data) or int(labels.min()) < 0 or int(labels.max()) >= len(data.classes)
    ):
        raise Fault("data with labels that name no class: no word of it")


class FileTarget(Target):
    """A reader of one file: those of the corpus, damaged."""

    def prepare(self) -> None:
        """Read the corpus."""
        self.seeds = {path.name: path.read_bytes() for path in sorted(self.corpus.iterdir()) if path.is_file()}

    def make(self, rng: random.Random) -> tuple[str, bytes]:
        """Return a name and a content."""
        name = rng.choice(list(self.seeds))
        return name, self._changed(rng, name, self.seeds[name])

    def _changed(self, rng: random.Random, name: str, content: bytes) -> bytes:
        return damaged(rng, content, list(self.seeds.values()))

    def case(self, path: Path) -> tuple[str, bytes]:
        """Return a file: its name after the last `--` is the one that is read."""
        return path.name.rpartition("--")[2], path.read_bytes()


class IdxTarget(FileTarget):
    """Files of MNIST: big-endian headers and bytes, gzipped or not."""

    name = "idx"
    share = 300_000
    chunk = 2000

    def _changed(self, rng: random.Random, name: str, content: bytes) -> bytes:
        if name.endswith(".gz") and rng.random() < 0.7:
            return gzip.compress(damaged(rng, gzip.decompress(content)), 1, mtime=0)
        return super()._changed(rng, name, content)

    def enter(self, folder: Path) -> None:
        """Write whole files for both splits, of which one is replaced."""
        super().enter(folder)
        self.root = fresh(folder / "mnist")
        for name, content in self.seeds.items():
            (self.root / name).write_bytes(content)

    def read(self, given: tuple[str, bytes]) -> None:
        """Read one file; if that is good, all of them as a data set."""
        name, content = given
        path = self.root / name
        path.write_bytes(content)
        try:
            read_idx(path, 3 if "images" in name else 1)
            check_data(Mnist(root=self.root, download=False).load(Key(0, "data").open()))
        finally:
            path.write_bytes(self.seeds[name])


class CifarTarget(FileTarget):
    """Files of CIFAR-10: records of bytes, or pickles."""

    name = "cifar"
    share = 150_000
    chunk = 1000

    def enter(self, folder: Path) -> None:
        """Make a folder with a whole set in each of both versions."""
        super().enter(folder)
        for name, content in self.seeds.items():
            root = folder / ("bin" if name.endswith(".bin") else "py")
            root.mkdir(exist_ok=True)
            for other in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
                (root / f"{other}{'.bin' if name.endswith('.bin') else ''}").write_bytes(content)

    def read(self, given: tuple[str, bytes]) -> None:
        """Read a data set whose test split is the file."""
        name, content = given
        version, suffix = ("bin", ".bin") if name.endswith(".bin") else ("py", "")
        (self.folder / version / f"test_batch{suffix}").write_bytes(content)
        source = Cifar10(root=self.folder / version, download=False, split="test")
        check_data(source.load(Key(0, "data").open()))


class NpzTarget(FileTarget):
    """Arrays in .npz files, as data and as samples to be scored."""

    name = "npz"
    share = 120_000

    def _changed(self, rng: random.Random, name: str, content: bytes) -> bytes:
        return changed_archive(rng, content, [rng.choice(list(self.seeds.values()))])

    def read(self, given: tuple[str, bytes]) -> None:
        """Read a file as a data set, or as samples."""
        path = self.folder / "data.npz"
        path.write_bytes(given[1])
        if len(given[1]) % 2:
            check_data(Npz(path=path).load(Key(0, "data").open()))
        else:
            samples = read(path).samples
            if not bool(torch.isfinite(samples.x).all()):
                raise Fault("samples with NaN or infinite values: no word of it")


class PicturesTarget(FileTarget):
    """Pictures: PNG, JPEG, BMP and WebP."""

    name = "pictures"
    share = 90_000

    def read(self, given: tuple[str, bytes]) -> None:
        """Read a picture alone, or a folder of two."""
        name, content = given
        path = self.folder / name
        path.write_bytes(content)
        try:
            picture = read_picture(path, "RGB" if len(content) % 2 else None)
            if 0 in picture.size or picture.mode not in ("L", "RGB"):
                raise Fault(f"a picture of {picture.size} in {picture.mode}: no word of it")
            if len(content) % 5 == 0:
                read(self.folder)
        finally:
            path.unlink()


@attrs.frozen
class TamperedPack:
    """A folder of packed images with another file."""

    name: str
    content: bytes | None
    forged: bool = False


class PackedTarget(Target):
    """Packed images: their manifest and their shards."""

    name = "packed"
    share = 85_000

    def prepare(self) -> None:
        """Read the corpus."""
        self.files = {path.name: path.read_bytes() for path in sorted(self.corpus.iterdir()) if path.is_file()}
        self.manifest = json.loads(self.files["manifest.json"])
        self.arrays = [content for name, content in self.files.items() if name.endswith(".npy")]

    def enter(self, folder: Path) -> None:
        """Write the folder."""
        super().enter(folder)
        self.pack = fresh(folder / "pack")
        for name, content in self.files.items():
            (self.pack / name).write_bytes(content)
        source = Packed(path=self.pack, verify="always")
        self.digest = source.load(Key(0, "data").open()).digest()

    def make(self, rng: random.Random) -> TamperedPack:
        """Return the folder with one file changed."""
        name = rng.choice([*self.files, "manifest.json", "manifest.json"])
        if name != "manifest.json":
            return TamperedPack(name, changed_array(rng, self.files[name], self.arrays), rng.random() < 0.5)
        if rng.random() < 0.15:
            return TamperedPack(name, damaged(rng, self.files[name]))
        return TamperedPack(name, values.bytes_of(values.changed(rng, self.manifest)))

    def read(self, given: TamperedPack) -> None:
        """Open the folder and read its images: they are the undisturbed ones, or it is refused."""
        path = self.pack / given.name
        path.write_bytes(given.content or b"")
        try:
            manifest = Manifest.read(self.pack)
            PackedImages.open(self.pack, manifest)
            find_damage(self.pack, manifest)
            data = Packed(path=self.pack, verify="never" if given.forged else "always").load(
                Key(0, "data").open()
            )
            check_data(data)
            if not given.forged and given.name != "manifest.json" and data.digest() != self.digest:
                raise Fault(f"silent difference: other images ({given.name})")
        finally:
            path.write_bytes(self.files[given.name])

    def case(self, path: Path) -> TamperedPack:
        """Return a file of the folder."""
        return TamperedPack(path.name.rpartition("--")[2], path.read_bytes())
