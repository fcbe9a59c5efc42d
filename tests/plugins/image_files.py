"""Small image files, laid out as the published ones are."""

from __future__ import annotations

import gzip
import io
import pickle
import struct

import numpy as np
import pytest
import torch

from cswf_core.errors import DataError
from cswf_core.interfaces import Key

TRAIN, TEST = 60, 20


def draw(seed: int = 0, dtype: torch.dtype = torch.float32):
    return Key(seed, "data").open(dtype=dtype)


def complaint_of(source) -> str:
    with pytest.raises(DataError) as error:
        source.load(draw())
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"dataset '{source.NAME}': ")
    return str(error.value)


def pixels_and_labels(count: int, shape: tuple[int, ...], seed: int):
    generator = np.random.default_rng(seed)
    labels = (np.arange(count) % 10).astype(np.uint8)
    return generator.integers(0, 256, (count, *shape), np.uint8), labels


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, zipped: bool = False):
    """Lay out a small MNIST; return what is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {}
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        content[name] = images, labels = pixels_and_labels(count, (28, 28), count)
        for stem, array in ((f"{name}-images-idx3-ubyte", images), (f"{name}-labels-idx1-ubyte", labels)):
            data = idx(array)
            (folder / (stem + ".gz" * zipped)).write_bytes(gzip.compress(data, mtime=0) if zipped else data)
    return content


def cifar_batches():
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    return {name: pixels_and_labels(20, (3, 32, 32), i) for i, name in enumerate(names)}


def write_cifar(folder, version: str):
    folder.mkdir(parents=True)
    batches = cifar_batches()
    for name, (images, labels) in batches.items():
        rows = images.reshape(20, -1)
        if version == "binary":
            (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], rows]).tobytes())
        else:
            mapping = {b"batch_label": b"x", b"data": rows, b"labels": [int(c) for c in labels]}
            packed = as_python_2(mapping) if version == "python 2" else pickle.dumps(mapping, protocol=2)
            (folder / name).write_bytes(packed)
    return batches


def as_python_2(value: object) -> bytes:
    """Pickle as in the published files, by Python 2: texts are bytes, and NumPy has its old names."""

    class Old(pickle._Pickler):
        dispatch = pickle._Pickler.dispatch.copy()

        def save_text(self, text):
            raw = text if isinstance(text, bytes) else text.encode("latin1")
            self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
            self.memoize(text)

        dispatch[bytes] = dispatch[str] = save_text

    stream = io.BytesIO()
    Old(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
