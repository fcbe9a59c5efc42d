"""Files of several parts, taken apart, changed and put together again: safetensors, .npy and .npz."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import attrs

from tests.fuzz import values
from tests.fuzz.damage import damaged

SIZES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
}
"""Bytes of a number, by safetensors' names of types."""

PATTERNS = (b"\0", b"\xff", b"\x7f", b"\x80", b"\x01", b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\0\0\x80\xff")
"""Bytes that a tensor may be filled with: zeros, NaN, infinities, the largest and least numbers."""


@attrs.define
class Tensors:
    """A safetensors file: types, shapes and bytes by name, and facts in its header."""

    tensors: dict[str, tuple[str, list[int], bytes]]
    metadata: dict[str, str]

    @classmethod
    def parse(cls, content: bytes) -> Tensors:
        """Take a valid file apart."""
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        body = content[8 + length :]
        metadata = header.pop("__metadata__", {})
        parts = {
            name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
            for name, entry in header.items()
        }
        return cls(parts, metadata)

    @property
    def facts(self) -> Any:
        """The facts that cswf keeps beside tensors."""
        return json.loads(self.metadata.get("facts", "null"))

    def header(self) -> dict[str, Any]:
        """Return the header that belongs to the tensors."""
        header: dict[str, Any] = {"__metadata__": self.metadata} if self.metadata else {}
        end = 0
        for name, (dtype, shape, data) in self.tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
            end += len(data)
        return header

    def content(self, header: Any = None) -> bytes:
        """Return the file's bytes, with another header if one is given."""
        text = values.bytes_of(self.header() if header is None else header)
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in self.tensors.values())


def changed_tensors(rng: random.Random, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a safetensors file with other facts, tensors or header, mostly one that can be read."""
    file = Tensors.parse(content)
    action = rng.randrange(10)
    if action < 4 and "facts" in file.metadata:
        file.metadata["facts"] = values.text_of(values.changed(rng, file.facts))
    elif action < 8 and file.tensors:
        for _ in range(rng.choice([1, 1, 2])):
            _change_tensor(rng, file, others)
    elif action == 8:
        return file.content(values.changed(rng, file.header()))
    else:
        return damaged(rng, content, others)
    return file.content()


def _change_tensor(rng: random.Random, file: Tensors, others: Sequence[bytes]) -> None:
    name = rng.choice(list(file.tensors) or [""])
    if not name:
        return
    dtype, shape, data = file.tensors[name]
    action = rng.randrange(9)
    if action == 0:
        del file.tensors[name]
    elif action == 1:
        file.tensors[rng.choice([*file.tensors, f"{name}x", "x", "flow/x", "flow/z", "steps"])] = (
            file.tensors.pop(name)
        )
    elif action == 2:
        file.tensors[name] = (dtype, *_resized(rng, shape, SIZES[dtype]))
    elif action == 3:
        other = rng.choice(list(SIZES))
        numbers = len(data) // SIZES[dtype]
        file.tensors[name] = (other, shape, (data * 8)[: numbers * SIZES[other]])
    elif action == 4:
        file.tensors[name] = (dtype, shape[::-1], data)
    elif action == 5 and others:
        source = Tensors.parse(rng.choice(others)).tensors
        file.tensors[name] = rng.choice(list(source.values()) or [(dtype, shape, data)])
    elif action == 6:
        pattern = rng.choice(PATTERNS)
        file.tensors[name] = (dtype, shape, (pattern * len(data))[: len(data)])
    elif data:
        place = rng.randrange(0, len(data), SIZES[dtype])
        pattern = (rng.choice(PATTERNS) * 8)[: SIZES[dtype]]
        file.tensors[name] = (dtype, shape, data[:place] + pattern + data[place + len(pattern) :])


def _resized(rng: random.Random, shape: list[int], size: int) -> tuple[list[int], bytes]:
    """Return another shape, and as many bytes as it needs."""
    shape = list(shape)
    action = rng.randrange(4)
    if action == 0 or not shape:
        shape.insert(rng.randint(0, len(shape)), rng.choice([0, 1, 2]))
    elif action == 1:
        del shape[rng.randrange(len(shape))]
    else:
        index = rng.randrange(len(shape))
        shape[index] = rng.choice([0, 1, 2, 3, shape[index] + 1, max(0, shape[index] - 1), 1000])
    count = size
    for side in shape:
        count *= side
    if count > 1 << 20:
        return [0], b""
    return shape, bytes(count)


SHAPES = (
    *("()", "(0,)", "(1,)", "(2, 2)", "(-1,)", "(3, 1, 4, 4)", "(0, 1, 4, 4)", "(1000000000000,)", "(2, 0)"),
    *("(99999999, 99999999)", "(1000000, 3, 64, 64)", "(2.5,)", "('a',)", "(True,)", "(" + "9" * 5000 + ",)"),
    *("(" + "1," * 40 + ")", "(" * 300 + ")" * 300),
)
DTYPES = (
    *("|u1", "<f4", "<f8", "<i8", ">i4", "|b1", "<f2", "|O", "<U4", "|S3", "<c8", "<M8[s]", "<u2", "|V9"),
    *("<f16",),
    *("x", "", "|u0", "<f3", "<U999999999"),
)


def changed_array(rng: random.Random, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return an .npy file with a header that says something else, or damaged."""
    length = int.from_bytes(content[8:10], "little")
    header, body = content[10 : 10 + length].decode("latin1"), content[10 + length :]
    fields = re.match(r"\{'descr': '(?P<descr>[^']*)', .*'shape': (?P<shape>\([^()]*\))", header)
    if fields is None or rng.random() < 0.3:
        return damaged(rng, content, others)
    shape, descr = fields["shape"], fields["descr"]
    action = rng.randrange(6)
    if action < 2:
        header = header.replace(shape, rng.choice(SHAPES))
    elif action < 4:
        header = header.replace(descr, rng.choice(DTYPES))
    elif action == 4:
        header = header.replace("False", rng.choice(["True", "None", "2"]))
    else:
        header = damaged(rng, header.encode("latin1"), ()).decode("latin1")
    if rng.random() < 0.3:
        body = body * rng.choice([0, 2, 3]) if rng.random() < 0.5 else damaged(rng, body)
    encoded = header.encode("latin1")[:65535]
    return content[:8] + struct.pack("<H", len(encoded)) + encoded + body


def members_of(content: bytes) -> dict[str, bytes]:
    """Return the files in a zip archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(members: Sequence[tuple[str, bytes]], compressed: bool = False) -> bytes:
    """Return a zip archive of files; a name may come twice. All have one date."""
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = kind
            archive.writestr(entry, content)
    return buffer.getvalue()


NAMES = (
    "images.npy",
    "points.npy",
    "labels.npy",
    "vectors.npy",
    "arr_0.npy",
    "x",
    "../x.npy",
    "images",
    "",
    "é.npy",
)


def changed_archive(rng: random.Random, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return an .npz file with members changed, renamed, missing or repeated, or damaged as a whole."""
    if rng.random() < 0.2:
        return damaged(rng, content, others)
    members = list(members_of(content).items())
    more = [item for other in others for item in members_of(other).items()]
    for _ in range(rng.choice([1, 1, 2])):
        index = rng.randrange(len(members)) if members else 0
        action = rng.randrange(8)
        if not members or action == 7:
            members += more[:1] if not more else [rng.choice(more)]
        elif action < 4:
            name, array = members[index]
            members[index] = name, changed_array(rng, array, [array for _, array in more])
        elif action == 4:
            del members[index]
        elif action == 5:
            members[index] = rng.choice(NAMES), members[index][1]
        else:
            members[index] = members[index][0], rng.choice(more or members)[1]
    return archive_of(members, compressed=rng.random() < 0.3)
