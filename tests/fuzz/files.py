"""Hostile files: bytes and texts with damage, and safetensors, .npy and .npz files put together otherwise."""

from __future__ import annotations

import io
import json
import math
import struct
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fuzz import values
from tests.fuzz.values import chance, pick

TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\xff", b"\n", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"),
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 30, b"null", b"true", b'""', b"[]", b"{}", b"[[[[[[[["),
    *(
        b"\x93NUMPY",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"\x89PNG\r\n\x1a\n",
        b"IHDR",
        b"IDAT",
        b"\xff\xd8\xff",
        b"BM",
    ),
    *(b"RIFF", b"WEBP", b"<f4", b"|O", b"|u1", b">i8", b"'descr'", b"cos\nsystem\n", b"\xed\xa0\x80", b"\xc3("),
)


def damaged(draw: DrawFn, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a file's bytes with one to four faults; pieces of `others` may come into it."""
    for _ in range(draw(st.integers(1, 4))):
        content = _damaged_once(draw, content, others)
    return content


def _damaged_once(draw: DrawFn, content: bytes, others: Sequence[bytes]) -> bytes:
    # Headers are at the beginning, and small: half of all faults are there.
    place = draw(st.integers(0, min(len(content), 64) if draw(st.booleans()) else len(content)))
    head, tail = content[:place], content[place:]
    match draw(st.integers(0, 9)):
        case 0 | 1 | 2 if tail:
            return head + bytes([tail[0] ^ (1 << draw(st.integers(0, 7)))]) + tail[1:]
        case 3:
            return head
        case 4:
            return head + pick(draw, TOKENS) + tail
        case 5:
            token = pick(draw, TOKENS)
            return head + token + tail[len(token) :]
        case 6:
            return head + tail[pick(draw, (1, 2, 4, 8, 64)) :]
        case 7:
            part = tail[: pick(draw, (1, 4, 16, 256))]
            return head + part * pick(draw, (2, 3, 50)) + tail[len(part) :]
        case 8 if others:
            other = pick(draw, others)
            return head + other[draw(st.integers(0, len(other))) :]
    number = pick(draw, (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1))
    return head + struct.pack(pick(draw, "<>") + "I", number) + tail[4:]


LINES: tuple[str, ...] = (
    *(
        "&a ",
        "*a",
        "!!python/object:os.system ",
        "!!binary ",
        "!x ",
        "[",
        "{",
        "- ",
        ": ",
        "\t",
        "? ",
        "| ",
        "> ",
    ),
    *("<<: *a", "<<: ", "---\n", "...\n", "%YAML 9.9\n", "#", "'", '"', "\\", "\0", "\ufeff", "\x85", "\u2028"),
    *(
        "&a [*a]",
        "&a {x: *a}",
        "{a: &a [1, *a]}",
        "0o7",
        "1_000",
        "12:30:45",
        ".inf",
        ".nan",
        "=",
        "2001-01-01",
    ),
)


def damaged_text(draw: DrawFn, text: str, words: Sequence[str], others: Sequence[str] = ()) -> str:
    """Return a text of lines with one to four faults: in its lines, values and signs."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, len(lines) - 1))
        _damage_line(draw, lines, number, words, others)
        lines = lines or [""]
    return "\n".join(lines)


def _damage_line(
    draw: DrawFn, lines: list[str], number: int, words: Sequence[str], others: Sequence[str]
) -> None:
    line = lines[number]
    key, colon, value = line.partition(":")
    match draw(st.integers(0, 8)):
        case 0:
            del lines[number]
        case 1:
            lines.insert(draw(st.integers(0, len(lines))), line)
        case 2:
            lines[number] = " " * draw(st.integers(0, 4)) + line.lstrip(" ")
        case 3 if colon:
            lines[number] = f"{key}: {pick(draw, words)}"
        case 4 if colon:
            indent = " " * (len(key) - len(key.lstrip()))
            lines[number] = f"{indent}{pick(draw, words)}:{value}"
        case 5 if others:
            source = pick(draw, others).split("\n")
            first = draw(st.integers(0, len(source) - 1))
            lines[number:number] = source[first : first + draw(st.integers(1, 6))]
        case 6:
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(number))
        case _:
            place = draw(st.integers(0, len(line)))
            word = pick(draw, LINES if draw(st.booleans()) else words)
            lines[number] = line[:place] + word + line[place + pick(draw, (0, 0, 1, 8)) :]


SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "U8": 1, "I8": 1, "BOOL": 1}
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
        entries = header.items()
        parts = {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for name, e in entries}
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


def changed_tensors(draw: DrawFn, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a safetensors file with other facts, tensors or header, mostly one that can be read."""
    file = Tensors.parse(content)
    action = draw(st.integers(0, 9))
    if action < 4 and "facts" in file.metadata:
        file.metadata["facts"] = values.text_of(values.changed(draw, file.facts))
    elif action < 8 and file.tensors:
        _change_tensor(draw, file, others)
    elif action == 8:
        return file.content(values.changed(draw, file.header()))
    else:
        return damaged(draw, content, others)
    return file.content()


def _change_tensor(draw: DrawFn, file: Tensors, others: Sequence[bytes]) -> None:
    name = pick(draw, list(file.tensors))
    dtype, shape, data = file.tensors[name]
    size = SIZES[dtype]
    match draw(st.integers(0, 8)):
        case 0:
            del file.tensors[name]
        case 1:
            other_name = pick(draw, [*file.tensors, f"{name}x", "x", "flow/x", "flow/z", "steps"])
            file.tensors[other_name] = file.tensors.pop(name)
        case 2:
            other_shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 1000, *shape]), max_size=3))
            file.tensors[name] = (dtype, other_shape, bytes(math.prod(other_shape) * size))
        case 3:
            other = pick(draw, list(SIZES))
            file.tensors[name] = (other, shape, (data * 8)[: len(data) // size * SIZES[other]])
        case 4:
            file.tensors[name] = (dtype, shape[::-1], data)
        case 5 if others:
            source = Tensors.parse(pick(draw, others)).tensors
            file.tensors[name] = pick(draw, list(source.values()) or [(dtype, shape, data)])
        case 6:
            file.tensors[name] = (dtype, shape, (pick(draw, PATTERNS) * len(data))[: len(data)])
        case _ if data:
            place = size * draw(st.integers(0, len(data) // size - 1))
            number = (pick(draw, PATTERNS) * 8)[:size]
            file.tensors[name] = (dtype, shape, data[:place] + number + data[place + size :])


SHAPES = (
    *("()", "(0,)", "(1,)", "(2, 2)", "(-1,)", "(3, 1, 4, 4)", "(0, 1, 4, 4)", "(1000000000000,)", "(2, 0)"),
    *("(99999999, 99999999)", "(1000000, 3, 64, 64)", "(2.5,)", "('a',)", "(True,)", "(" + "9" * 5000 + ",)"),
    *("(" + "1," * 40 + ")", "(" * 300 + ")" * 300),
)
DTYPES = (
    *(
        "|u1",
        "<f4",
        "<f8",
        "<i8",
        ">i4",
        "|b1",
        "<f2",
        "|O",
        "<U4",
        "|S3",
        "<c8",
        "<M8[s]",
        "<u2",
        "|V9",
        "<f16",
    ),
    *("x", "", "|u0", "<f3", "<U999999999"),
)


def changed_array(draw: DrawFn, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return an .npy file with a header that says something else, or damaged."""
    if not content.startswith(b"\x93NUMPY\x01") or chance(draw, 0.3):
        return damaged(draw, content, others)
    file = io.BytesIO(content[8:])
    try:
        shape, order, dtype = np.lib.format.read_array_header_1_0(file)
    except (ValueError, SyntaxError, TypeError, EOFError):
        return damaged(draw, content, others)
    fields = {"descr": repr(dtype.str), "fortran_order": str(order), "shape": str(shape)}
    hostile = {"descr": list(map(repr, DTYPES)), "fortran_order": ["True", "None", "2"], "shape": SHAPES}
    key = pick(draw, list(fields))
    fields[key] = pick(draw, hostile[key])
    header = "{" + "".join(f"'{name}': {value}, " for name, value in fields.items()) + "}\n"
    encoded = header.encode("latin1")
    if chance(draw, 0.1):
        encoded = damaged(draw, encoded)[:65535]
    body = file.read()
    match draw(st.integers(0, 5)):
        case 4:
            body *= pick(draw, (0, 2, 3))
        case 5:
            body = damaged(draw, body)
    return content[:8] + struct.pack("<H", len(encoded)) + encoded + body


def members_of(content: bytes) -> list[tuple[str, bytes]]:
    """Return the files in a zip archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def archive_of(members: Sequence[tuple[str, bytes]], kind: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive of files; a name may come twice. All have one date."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, kind)
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


def changed_archive(draw: DrawFn, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return an .npz file with members changed, renamed, missing or repeated, or damaged as a whole."""
    if chance(draw, 0.2):
        return damaged(draw, content, others)
    members = members_of(content)
    more = [member for other in (content, *others) for member in members_of(other)]
    for _ in range(draw(st.integers(1, 2))):
        if not members:
            break
        index = draw(st.integers(0, len(members) - 1))
        name, array = members[index]
        match draw(st.integers(0, 7)):
            case 4:
                del members[index]
            case 5:
                members[index] = pick(draw, NAMES), array
            case 6:
                members[index] = name, pick(draw, more)[1]
            case 7:
                members.append(pick(draw, more))
            case _:
                members[index] = name, changed_array(draw, array, [content for _, content in more])
    return archive_of(members, zipfile.ZIP_DEFLATED if chance(draw, 0.3) else zipfile.ZIP_STORED)


def changed_file(draw: DrawFn, name: str, content: bytes) -> bytes:
    """Return a file of a run, changed as its ending says."""
    if chance(draw, 0.1):
        return damaged(draw, content)
    match name.rpartition(".")[2]:
        case "json":
            return values.bytes_of(values.changed(draw, json.loads(content)))
        case "jsonl":
            rows = values.changed(draw, [json.loads(line) for line in content.splitlines()])
            return b"\n".join(map(values.bytes_of, rows if isinstance(rows, list) else [rows])) + b"\n"
        case "npz":
            return changed_archive(draw, content)
        case "safetensors":
            return changed_tensors(draw, content)
    return damaged(draw, content)
