"""Data `cifar10`: photographs of ten things, 3×32×32 pixels, 50,000 to see and 10,000 held out.

What it is: Krizhevsky's data set, from its binary version or from its Python version.
Cost: 170 MB to download, once; 0.6 GB of memory in float32, and 1.2 GB with flips.
When not to use it: for a first try; the flow needs many more directions here than for digits.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, ClassVar

import attrs
import numpy as np

from cswf_core.arrays import default_limit
from cswf_core.errors import DataError
from cswf_core.files import read_whole
from cswf_plugins.datasets.images import Bytes, PublishedImages, Split, Whole, damaged
from cswf_plugins.references import bibtex

PIXELS = 3 * 32 * 32


@attrs.frozen(kw_only=True)
class Cifar10(PublishedImages):
    """Colour photographs of animals and vehicles of 32×32 pixels."""

    NAME = "cifar10"
    references = bibtex("krizhevsky2009learning")
    licence = "CIFAR-10 names no licence; its authors ask to cite the report that describes it."
    FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
    FILES: ClassVar[dict[Split, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test": ("test_batch",),
    }
    SUFFIXES = (".bin", "")
    TORCHVISION = ("CIFAR10", "cifar-10-batches-py")
    CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def _read(self, files: list[Path]) -> tuple[Bytes, Whole]:
        batches = [read_binary(path) if path.suffix == ".bin" else read_python(path) for path in files]
        for path, (_, labels) in zip(files, batches, strict=True):
            wrong = labels[(labels < 0) | (labels >= len(self.CLASSES))]
            if len(wrong):
                raise damaged(path, f"it has the label {wrong[0]}, and {len(self.CLASSES) - 1} is the last")
        images = np.concatenate([images for images, _ in batches])
        return images, np.concatenate([labels for _, labels in batches])


def read_binary(path: Path) -> tuple[Bytes, Whole]:
    """Return images (n×3×32×32) and labels of a file of records: a label, then red, green and blue planes."""
    content = read_whole(path, default_limit())
    records, rest = divmod(len(content), 1 + PIXELS)
    if rest or not records:
        expected = f"a multiple of {1 + PIXELS:,} bytes"
        raise damaged(path, f"it should have {expected} and has {len(content):,}")
    table = np.frombuffer(content, np.uint8).reshape(records, 1 + PIXELS)
    return table[:, 1:].reshape(records, 3, 32, 32), table[:, 0].astype(np.int64)


def read_python(path: Path) -> tuple[Bytes, Whole]:
    """Return images (n×3×32×32) and labels of a pickled mapping with `data` and `labels`."""
    packed = read_whole(path, default_limit())
    try:
        _refuse_far_places(packed)
        content = ArraysOnly(io.BytesIO(packed), encoding="bytes").load()
    except DataError as error:
        raise damaged(path, str(error)) from None
    except Exception as error:  # a damaged pickle can raise almost anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(path, f"it cannot be unpickled, {reason}") from None
    by_name = content if isinstance(content, dict) else {}
    array = by_name.get(b"data", by_name.get("data"))
    images = array.rows() if isinstance(array, Pickled) else None
    labels = by_name.get(b"labels", by_name.get("labels"))
    if images is None:
        raise damaged(path, f"it should have 'data' of n×{PIXELS:,} bytes")
    numbers = labels if isinstance(labels, list) and len(labels) == len(images) else []
    # A larger number is no label of anything.
    if not numbers or not all(type(label) is int and abs(label) < 2**31 for label in numbers):
        raise damaged(path, f"it should have 'labels', a list of {len(images):,} whole numbers")
    return images.reshape(len(images), 3, 32, 32), np.array(numbers, np.int64)


def _refuse_far_places(packed: bytes) -> None:
    """Raise `DataError` if a pickle keeps a value at a place beyond its length, up to which room is made."""
    for code, place, _ in pickletools.genops(packed):
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT") and isinstance(place, int) and place > len(packed):
            raise DataError(f"it keeps a value at place {place:,}")


class Pickled:
    """Stands for a pickled array or its type: what it is made of is kept, and nothing is made of that."""

    arguments: tuple[object, ...] = ()
    state: object = None

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        """Keep the version, shape, type, order and bytes that a pickled array consists of."""
        self.state = state

    def rows(self) -> Bytes | None:
        """Return n×3,072 bytes; None if this is no such array."""
        state = self.state
        if not isinstance(state, tuple) or len(state) != 5:
            return None
        _, shape, kind, fortran, content = state
        is_byte = isinstance(kind, Pickled) and kind.arguments[:1] in (("u1",), (b"u1",))
        if not is_byte or not isinstance(content, bytes) or fortran:
            return None
        count, rest = divmod(len(content), PIXELS)
        if rest or shape != (count, PIXELS):
            return None
        return np.frombuffer(content, np.uint8).reshape(count, PIXELS)


class ArraysOnly(pickle.Unpickler):
    """Unpickles plain values and arrays of bytes: a pickle may name any function, and these are all we call."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for one of the four things that a pickled array names; refuse all else."""
        allowed: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): Pickled,
            ("numpy._core.multiarray", "_reconstruct"): Pickled,
            ("numpy", "ndarray"): Pickled,
            ("numpy", "dtype"): Pickled,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise DataError(f"it names {module}.{name}, which has no place in a list of images")
        return allowed[module, name]


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Return bytes that Python 3 pickled as a text."""
    del encoding
    return text.encode("latin1")
