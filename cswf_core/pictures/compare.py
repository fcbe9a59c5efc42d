"""Pictures of several runs: their samples side by side, their flows one below the other.

They are made from the files in the runs' folders, so a run of long ago is shown like one of today.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from cswf_core.errors import CswfError, RunError
from cswf_core.pictures import grid as pictures
from cswf_core.pictures.grid import BACKGROUND, GAP, INK

COLUMNS = 8
ROWS = 10
"""Images of a run that are shown at most: in a row; rows, which are classes if there are any."""

FLOW_ROWS = 3
"""Particles of a run whose flow is shown."""

WIDEST = 2000
"""Pixels of a row of runs; what does not fit goes into the next row, but for a single run."""

LETTERS = 16
LINE = 20
"""Size of a label's letters and of its lines."""

NARROWEST = 140
LABEL = 220
"""Pixels that a label above a run has at least, and one to the left of a run at most."""

SPACE = 20
"""Pixels around the runs."""

HEADER = 16
"""Pixels above the images of a run's flow.png, where `pictures.table` writes the steps."""

_ASCII = {"×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "√": "sqrt", "∞": "inf"}

Run = tuple[str, Path]
"""A label and the folder of a finished run."""


def samples(runs: Sequence[Run], columns: int) -> Image.Image:
    """Draw the samples of all runs, side by side with the labels above."""
    drawn = [_samples(folder, min(columns, COLUMNS)) for _, folder in runs]
    width = max(NARROWEST, *(picture.width for picture in drawn))
    shown = [(_wrapped(label, width), picture) for (label, _), picture in zip(runs, drawn, strict=True)]
    across = max(1, (WIDEST - SPACE) // (width + SPACE))
    across = math.ceil(len(shown) / math.ceil(len(shown) / across))  # rows of about one length
    bands = [shown[i : i + across] for i in range(0, len(shown), across)]
    heads = [max(len(lines) for lines, _ in band) * LINE + 6 for band in bands]
    heights = [max(picture.height for _, picture in band) for band in bands]
    size = (SPACE + across * (width + SPACE), SPACE + sum(heads) + sum(heights) + SPACE * len(bands))
    canvas = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    y = SPACE
    for band, head, height in zip(bands, heads, heights, strict=True):
        for c, (lines, picture) in enumerate(band):
            x = SPACE + c * (width + SPACE)
            _write(pen, lines, x + width // 2, y + head - 6 - LINE * len(lines), "mm")
            canvas.paste(picture, (x + (width - picture.width) // 2, y + head))
        y += head + height + SPACE
    return canvas


def flows(runs: Sequence[Run]) -> Image.Image | None:
    """Draw the flows of all runs that have a flow.png, labels to the left; None if none has.

    Of images the first few particles are shown, and the steps once, above all runs, where they are the same.
    """
    found = [(label, *_flow(folder)) for label, folder in runs if (folder / "flow.png").is_file()]
    if not found:
        return None
    heads = [head for _, head, _ in found]
    steps = max(heads, key=lambda head: head.width)
    if not all(_begins(steps, head) for head in heads):
        found = [(label, head, _below(head, rows)) for label, head, rows in found]
        steps = Image.new("RGB", (1, 0))
    margin = math.ceil(min(max(_width(label) for label, _, _ in found), LABEL))
    bands = [(_wrapped(label, margin), rows) for label, _, rows in found]
    heights = [max(rows.height, LINE * len(lines)) + SPACE // 2 for lines, rows in bands]
    x, y = SPACE + margin + SPACE // 2, SPACE + steps.height
    size = (x + max(rows.width for _, rows in bands) + SPACE, y + sum(heights) + SPACE // 2)
    canvas = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(canvas)
    canvas.paste(steps, (x, SPACE))
    for (lines, rows), height in zip(bands, heights, strict=True):
        middle = y + (height - SPACE // 2) // 2
        canvas.paste(rows, (x, middle - rows.height // 2))
        _write(pen, lines, SPACE + margin, middle - LINE * len(lines) // 2, "rm")
        y += height
    return canvas


def spelled(text: str) -> str:
    """Return a text in letters that Pillow's font has: Greek ones by name, others without their accents."""
    return "".join(c if c.isascii() and c.isprintable() else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    name = unicodedata.name(character, "")
    if name.startswith("GREEK"):
        letter = name.partition("LETTER ")[2].split(" ")[0]
        return letter.capitalize() if "CAPITAL" in name else letter.lower()
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return _ASCII.get(character, plain or ("" if unicodedata.combining(character) else "?"))


def _samples(folder: Path, columns: int) -> Image.Image:
    """Draw a run's images without the names of classes, which are the same in all runs; or open its scatter."""
    with _reading(folder / "samples.npz") as file, np.load(file) as arrays:
        if "images" not in arrays:
            return _open(folder / "samples.png")
        images = torch.from_numpy(arrays["images"])
        labels = torch.from_numpy(arrays["labels"]) if "labels" in arrays else None
    if labels is None:
        groups = [images[i : i + columns] for i in range(0, min(len(images), columns * COLUMNS), columns)]
    else:
        groups = [images[labels == c][:columns] for c in torch.unique(labels)[:ROWS]]
    return pictures.table([[pictures.tile(image) for image in group] for group in groups])


def _flow(folder: Path) -> tuple[Image.Image, Image.Image]:
    """Return the steps above a run's flow.png and its first rows; of a scatter nothing and the whole."""
    whole = _open(folder / "flow.png")
    nothing = whole.crop((0, 0, whole.width, 0))
    with _reading(folder / "samples.npz") as file, np.load(file) as arrays:
        if "images" not in arrays:
            return nothing, whole
        width, height = pictures.tile(torch.from_numpy(arrays["images"][0])).size
    rows, rest = divmod(whole.height - HEADER - GAP, height + GAP)
    if rest or (whole.width - GAP) % (width + GAP):  # drawn by another version: show it as it is
        return nothing, whole
    bottom = HEADER + GAP + min(rows, FLOW_ROWS) * (height + GAP)
    return whole.crop((0, 0, whole.width, HEADER)), whole.crop((0, HEADER, whole.width, bottom))


def _below(head: Image.Image, rows: Image.Image) -> Image.Image:
    joined = Image.new("RGB", (rows.width, head.height + rows.height), BACKGROUND)
    joined.paste(head, (0, 0))
    joined.paste(rows, (0, head.height))
    return joined


def _open(path: Path) -> Image.Image:
    with _reading(path) as file, Image.open(file) as picture:
        return picture.convert("RGB")


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Turn whatever a damaged file makes its reader raise into one sentence."""
    try:
        yield path
    except CswfError:
        raise
    except Exception as error:
        raise RunError(f"{path} cannot be read ({error}); remove its folder to run it again") from error


def _begins(long: Image.Image, short: Image.Image) -> bool:
    """Say whether a picture has another at its left: the steps of a run that was over sooner."""
    return long.height == short.height and long.crop((0, 0, *short.size)).tobytes() == short.tobytes()


def _width(text: str) -> float:
    return pictures.font(LETTERS).getlength(spelled(text))


def _wrapped(label: str, width: int) -> list[str]:
    """Break a label into lines of at most `width` pixels: between words, or within one that is too long."""
    lines = [""]
    for word in spelled(label).split():
        joined = f"{lines[-1]} {word}".strip()
        if _width(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and _width(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines


def _write(pen: ImageDraw.ImageDraw, lines: Sequence[str], x: int, y: int, anchor: str) -> None:
    """Write lines below each other, the first one's upper edge at y."""
    for i, line in enumerate(lines):
        pen.text((x, y + i * LINE + LINE // 2), line, INK, pictures.font(LETTERS), anchor=anchor)
