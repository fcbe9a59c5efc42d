"""Damage to bytes and to texts: bits that flip, ends that are missing, parts of one file in another."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\xff", b"\n", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"),
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"9" * 30, b"null", b"true", b'""', b"[]", b"{}", b"[[[[[[[["),
    *(b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06", b"\x89PNG\r\n\x1a\n", b"IHDR", b"IDAT"),
    *(b"\xff\xd8\xff", b"BM"),
    *(b"RIFF", b"WEBP", b"<f4", b"|O", b"|u1", b">i8", b"'descr'", b"cos\nsystem\n", b"\xed\xa0\x80", b"\xc3("),
)


def damaged(rng: random.Random, content: bytes, others: Sequence[bytes] = (), most: int = 4) -> bytes:
    """Return a file's bytes with one to `most` faults."""
    for _ in range(rng.randint(1, most)):
        content = _once(rng, content, others)
    return content


def _once(rng: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    size = len(content)
    # Headers are at the beginning, and small: half of all faults are there.
    place = rng.randint(0, min(size, 64) if rng.random() < 0.5 else size)
    action = rng.randrange(10)
    if action < 3 and size:
        return flipped(rng, content, min(place, size - 1))
    if action == 3:
        return content[:place]
    if action == 4:
        return content[:place] + rng.choice(TOKENS) + content[place:]
    if action == 5:
        token = rng.choice(TOKENS)
        return content[:place] + token + content[place + len(token) :]
    if action == 6:
        cut = rng.choice([1, 2, 4, 8, 64, size])
        return content[:place] + content[place + cut :]
    if action == 7:
        part = content[place : place + rng.choice([1, 4, 16, 256])]
        return content[:place] + part * rng.choice([2, 3, 50]) + content[place + len(part) :]
    if action == 8 and others:
        other = rng.choice(others)
        return content[:place] + other[rng.randint(0, len(other)) :]
    number = rng.choice([0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, rng.getrandbits(32)])
    packed = struct.pack(rng.choice("<>") + "I", number)
    return content[:place] + packed + content[place + 4 :]


def flipped(rng: random.Random, content: bytes, place: int) -> bytes:
    """Return bytes with one bit changed."""
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


def shortened(rng: random.Random, content: bytes) -> bytes:
    """Return the beginning of a file."""
    return content[: rng.randrange(len(content) + 1)]


LINES: tuple[str, ...] = (
    *("&a ", "*a", "!!python/object:os.system ", "!!binary ", "!x ", "[", "{", "- ", ": ", "\t", "? "),
    *("| ", "> "),
    *("<<: *a", "<<: ", "---\n", "...\n", "%YAML 9.9\n", "#", "'", '"', "\\", "\0", "\ufeff", "\x85", "\u2028"),
    *("&a [*a]", "&a {x: *a}", "{a: &a [1, *a]}", "0o7", "1_000", "12:30:45", ".inf", ".nan", "="),
    *("2001-01-01",),
)


def damaged_text(rng: random.Random, text: str, words: Sequence[str], others: Sequence[str] = ()) -> str:
    """Return a text of lines with one to four faults: in its lines, values and signs."""
    for _ in range(rng.randint(1, 4)):
        text = _once_in_text(rng, text, words, others)
    return text


def _once_in_text(rng: random.Random, text: str, words: Sequence[str], others: Sequence[str]) -> str:
    lines = text.split("\n")
    number = rng.randrange(len(lines))
    line, action = lines[number], rng.randrange(9)
    if action == 0:
        del lines[number]
    elif action == 1:
        lines.insert(rng.randrange(len(lines) + 1), line)
    elif action == 2:
        lines[number] = " " * rng.randrange(5) + line.lstrip(" ")
    elif action == 3 and ":" in line:
        lines[number] = f"{line.partition(':')[0]}: {rng.choice(words)}"
    elif action == 4 and ":" in line:
        start, _, value = line.partition(":")
        lines[number] = f"{' ' * (len(start) - len(start.lstrip()))}{rng.choice(words)}:{value}"
    elif action == 5 and others:
        source = rng.choice(others).split("\n")
        first = rng.randrange(len(source))
        lines[number:number] = source[first : first + rng.randint(1, 6)]
    elif action == 6:
        other = rng.randrange(len(lines))
        lines[number], lines[other] = lines[other], line
    else:
        place = rng.randint(0, len(line))
        lines[number] = line[:place] + rng.choice([*LINES, *words]) + line[place + rng.choice([0, 0, 1, 8]) :]
    return "\n".join(lines)
