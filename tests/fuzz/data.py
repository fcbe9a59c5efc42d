"""Data readers of files: idx, CIFAR, .npz and pictures."""

from __future__ import annotations

import gzip

import torch
from hypothesis.strategies import DrawFn

from cswf_core.checks import check_dataset
from cswf_core.evaluation.samples import read
from cswf_core.interfaces import Dataset, DatasetSource, Key
from cswf_core.pictures.read import read_picture
from cswf_plugins.datasets.cifar10 import Cifar10
from cswf_plugins.datasets.mnist import Mnist, read_idx
from cswf_plugins.datasets.npz import Npz
from tests.fuzz.files import changed_archive, damaged
from tests.fuzz.oracle import Fault
from tests.fuzz.target import Target, fresh
from tests.fuzz.values import chance, pick

NamedFile = tuple[str, bytes]


def loaded(source: DatasetSource) -> Dataset:
    """Load data; raise `DataError` as a flow does, and `Fault` for what it could not use all the same."""
    data = source.load(Key(0, "data").open())
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
    return data


class FileTarget(Target):
    """A reader of one file: those of the corpus, damaged."""

    def make(self, draw: DrawFn) -> NamedFile:
        name = pick(draw, list(self.seeds))
        return name, self.changed(draw, name, self.seeds[name])

    def changed(self, draw: DrawFn, name: str, content: bytes) -> bytes:
        return damaged(draw, content, list(self.seeds.values()))


class IdxTarget(FileTarget):
    """Files of MNIST: big-endian headers and bytes, gzipped or not."""

    name = "idx"

    def prepare(self) -> None:
        self.root = fresh(self.folder / "mnist", self.seeds)

    def changed(self, draw: DrawFn, name: str, content: bytes) -> bytes:
        if name.endswith(".gz") and chance(draw, 0.7):
            return gzip.compress(damaged(draw, gzip.decompress(content)), 1, mtime=0)
        return super().changed(draw, name, content)

    def read(self, given: NamedFile) -> None:
        name, content = given
        path = self.root / name
        path.write_bytes(content)
        try:
            read_idx(path, 3 if "images" in name else 1)
            loaded(Mnist(root=self.root, download=False))
        finally:
            path.write_bytes(self.seeds[name])


class CifarTarget(FileTarget):
    """Files of CIFAR-10: records of bytes, or pickles."""

    name = "cifar"

    def prepare(self) -> None:
        for name, content in self.seeds.items():
            names = [name, *(name.replace("test_batch", f"data_batch_{i}") for i in range(1, 6))]
            fresh(self.folder / f"root of {name}", dict.fromkeys(names, content))

    def read(self, given: NamedFile) -> None:
        name, content = given
        root = self.folder / f"root of {name}"
        (root / name).write_bytes(content)
        loaded(Cifar10(root=root, download=False, split="test"))


class NpzTarget(FileTarget):
    """Arrays in .npz files, as data and as samples to be scored."""

    name = "npz"

    def changed(self, draw: DrawFn, name: str, content: bytes) -> bytes:
        return changed_archive(draw, content, [pick(draw, list(self.seeds.values()))])

    def read(self, given: NamedFile) -> None:
        path = self.folder / "data.npz"
        path.write_bytes(given[1])
        if len(given[1]) % 2:
            loaded(Npz(path=path))
        elif not bool(torch.isfinite(read(path).samples.x).all()):
            raise Fault("samples with NaN or infinite values: no word of it")


class PicturesTarget(FileTarget):
    """Pictures: PNG, JPEG, BMP and WebP."""

    name = "pictures"

    def read(self, given: NamedFile) -> None:
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
