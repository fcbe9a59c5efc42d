"""Hostile files: bytes and texts with damage, and safetensors, .npy and .npz files put together otherwise."""

from __future__ import annotations

import io
import json
import struct
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors.torch
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor

from tests.fuzz import values
from tests.fuzz.values import chance, pick

TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\xff", b"\n", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"NaN"),
    *(b"Infinity", b"-1", b"1e999", b"9" * 30, b"null", b"true", b'""', b"[]", b"{}", b"[[[[[[[["),
    *(b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06", b"\x89PNG\r\n\x1a\n", b"IHDR", b"IDAT", b"\xff\xd8\xff"),
    *(b"BM", b"RIFF", b"WEBP", b"<f4", b"|O", b"|u1", b">i8", b"'descr'", b"cos\nsystem\n"),
    *(b"\xed\xa0\x80", b"\xc3("),
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
    *("&a ", "*a", "!!python/object:os.system ", "!!binary ", "!x ", "[", "{", "- ", ": ", "\t"),
    *("? ", "| ", "> ", "0o7", "1_000", "12:30:45", ".inf", ".nan", "=", "2001-01-01"),
    *("<<: *a", "<<: ", "---\n", "...\n", "%YAML 9.9\n", "#", "'", '"', "\\", "\0", "\ufeff", "\x85", "\u2028"),
    *("&a [*a]", "&a {x: *a}", "{a: &a [1, *a]}"),
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


TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def unpacked(content: bytes) -> tuple[dict[str, Tensor], dict[str, str], Any]:
    """Return tensors, metadata and header of a safetensors file."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return safetensors.torch.load(content), header.get("__metadata__", {}), header


def changed_tensors(draw: DrawFn, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a safetensors file with other facts, tensors or header, mostly one that can be read."""
    tensors, metadata, header = unpacked(content)
    action = draw(st.integers(0, 9))
    if action < 4 and "facts" in metadata:
        metadata["facts"] = values.text_of(values.changed(draw, json.loads(metadata["facts"])))
    elif action < 9 and tensors:
        name = pick(draw, list(tensors))
        tensor = tensors.pop(name)
        if chance(draw, 0.1):
            name = pick(draw, [*tensors, f"{name}x", "x", "flow/x", "flow/z", "steps"])
        if chance(draw, 0.9):
            tensors[name] = _changed_tensor(draw, tensor, others).contiguous()
    elif action == 9:
        text = values.bytes_of(values.changed(draw, header))
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + content[8 + int.from_bytes(content[:8], "little") :]
    return safetensors.torch.save(tensors, metadata)


def _changed_tensor(draw: DrawFn, tensor: Tensor, others: Sequence[bytes]) -> Tensor:
    match draw(st.integers(0, 6)):
        case 0:
            shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 1000, *tensor.shape]), max_size=3))
            return torch.zeros(shape, dtype=tensor.dtype)
        case 1:
            return tensor.to(pick(draw, TYPES))
        case 2:
            return tensor.permute(*reversed(range(tensor.ndim))).clone()
        case 3 if others:
            return pick(draw, list(unpacked(pick(draw, others))[0].values()) or [tensor])
        case 4:
            return torch.cat([tensor.reshape(-1), tensor.reshape(-1)])
    changed = tensor.clone().reshape(-1).view(torch.uint8)
    size = tensor.element_size()
    numbers = slice(None)
    if len(changed) and draw(st.booleans()):
        first = size * draw(st.integers(0, len(changed) // size - 1))
        numbers = slice(first, first + size)
    # Zeros, NaN, infinities, the largest and least numbers, by their last bytes.
    changed[numbers] = pick(draw, (0, 0xFF, 0x7F, 0x80, 0x01))
    return changed.view(tensor.dtype).reshape(tensor.shape)


SHAPES = (
    *("()", "(0,)", "(1,)", "(2, 2)", "(-1,)", "(3, 1, 4, 4)", "(0, 1, 4, 4)", "(1000000000000,)", "(2, 0)"),
    *("(99999999, 99999999)", "(1000000, 3, 64, 64)", "(2.5,)", "('a',)", "(True,)", "(" + "9" * 5000 + ",)"),
    *("(" + "1," * 40 + ")", "(" * 300 + ")" * 300),
)
DTYPES = (
    *("|u1", "<f4", "<f8", "<i8", ">i4", "|b1", "<f2", "|O", "<U4", "|S3", "<c8", "<M8[s]", "<u2", "|V9"),
    *("<f16", "x", "", "|u0", "<f3", "<U999999999"),
)


def changed_array(draw: DrawFn, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return an .npy file with a header that says something else, or damaged."""
    if not content.startswith(b"\x93NUMPY\x01") or chance(draw, 0.3):
        return damaged(draw, content, others)
    file = io.BytesIO(content[8:])
    try:
        shape, order, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception:  # of one that is damaged already, whatever NumPy says
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
    *("images.npy", "points.npy", "labels.npy", "vectors.npy", "arr_0.npy", "x", "../x.npy", "images"),
    *("", "é.npy"),
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


def changed_file(draw: DrawFn, name: str, content: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a file, changed as its ending says; pieces of `others` of its kind may come into it."""
    if chance(draw, 0.1):
        return damaged(draw, content, others)
    match name.rpartition(".")[2]:
        case "json":
            return values.bytes_of(values.changed(draw, json.loads(content)))
        case "jsonl":
            rows = values.changed(draw, [json.loads(line) for line in content.splitlines()])
            return b"\n".join(map(values.bytes_of, rows if isinstance(rows, list) else [rows])) + b"\n"
        case "npz":
            return changed_archive(draw, content, others)
        case "npy":
            return changed_array(draw, content, others)
        case "safetensors":
            return changed_tensors(draw, content, others)
    return damaged(draw, content, others)
