"""Documents: JSON and tensors that the program has written, read back with names, types and ranges checked.

A file on a disk may be damaged, of another version, or a stranger's. `read_json` takes no more than JSON has,
and no more of it than memory holds; `structured` makes an object of an attrs class of it, or says which value
does not fit and what would. Types are those of the class, with rules such as `Size` for the range of a number.
A document that is sealed has a checksum of itself. `require_forms` does for tensors what `structured` does for
JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import attrs
import torch
from torch import Tensor

from cswf_core.errors import RunError
from cswf_core.fields import Decoder, kind_of
from cswf_core.fields import MisfitError as MisfitError
from cswf_core.fields import Rule as Rule
from cswf_core.nodes import DEEPEST, TOO_DEEP, RecipeError

LARGEST = 1 << 26
"""Bytes of a document at most."""

LONGEST_NUMBER = 400
"""Digits of a number at most; a float may be written with some 300."""

SEAL = "sha256"
"""The key of a document's own checksum."""

Made = TypeVar("Made")


def is_file_name(text: str) -> bool:
    """Say whether a text names a file in the same folder, and nothing elsewhere."""
    plain = text.isprintable() and not set(text) & {"/", "\\"} and text not in ("", ".", "..")
    return plain and len(text.encode()) < 256


Count = Annotated[int, Rule("0 or more", lambda number: number >= 0)]
Size = Annotated[int, Rule("1 or more", lambda number: number >= 1)]
Amount = Annotated[float, Rule("0 or more", lambda number: number >= 0)]
Fraction = Annotated[float, Rule("above 0 and at most 1", lambda number: 0 < number <= 1)]
Digest = Annotated[str, Rule("a SHA-256 of 64 digits", re.compile("[0-9a-f]{64}").fullmatch)]
FileName = Annotated[str, Rule("the name of a file in the same folder", is_file_name)]


def read_json(path: Path) -> Any:
    """Return what a JSON file says; raise `OSError`, or `ValueError` with a reason, if that cannot be had."""
    if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe may take for ever
        raise ValueError("it is no ordinary file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    return parse_json(content.decode("utf-8"))


def parse_json(text: str) -> Any:
    """Return what a JSON text says; raise `ValueError` for what JSON has not: NaN, or one key twice."""
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_whole,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except RecursionError:
        raise ValueError(f"it is {TOO_DEEP}") from None
    level = [value]
    depth = 0
    while level := [part for each in level for part in _parts(each)]:
        depth += 1
        if depth > DEEPEST:  # what can be read may still be too deep to be written
            raise ValueError(f"it is {TOO_DEEP}")
    return value


def read_document(path: Path, cls: type[Made], *, advice: str = "") -> Made:
    """Return a file as an object of an attrs class; raise `RunError`, with `advice`, if it is damaged."""
    try:
        made: Made = structured(read_json(path), cls)
    except MisfitError as misfit:
        raise RunError(f"{path} is damaged: {misfit}{advice}") from None
    except (OSError, ValueError) as reason:
        raise RunError(f"{path} cannot be read ({short(reason)}){advice}") from None
    return made


def structured(value: Any, type_: Any) -> Any:
    """Return a value of JSON as a type has it: objects as attrs classes; raise `MisfitError` if it has none."""
    try:
        return Decoder(strict=True).value(value, kind_of(type_), "")
    except RecipeError as error:
        raise MisfitError(error.problems[0].message) from None


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a checksum of all that it says."""
    return {**document, SEAL: _digest(document)}


def unseal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sealed document without its checksum; raise `MisfitError` if that is missing, or another."""
    rest = {key: value for key, value in document.items() if key != SEAL}
    if SEAL not in document:
        raise MisfitError("it lacks its own checksum")
    if document[SEAL] != _digest(rest):
        raise MisfitError("it is not what was written, its own checksum differs")
    return rest


@attrs.frozen
class TensorForm:
    """What a tensor in a file must be."""

    dtype: torch.dtype | Callable[[Tensor], bool]
    """Its type, or what says whether it has one of those that are good."""
    shape: tuple[int | None, ...]
    """Its size in each dimension; None: any."""
    optional: bool = False
    """Whether it may be missing."""

    def fits(self, tensor: Tensor) -> bool:
        """Say whether a tensor has this form."""
        right = tensor.dtype == self.dtype if isinstance(self.dtype, torch.dtype) else self.dtype(tensor)
        sizes = zip(self.shape, tensor.shape, strict=False)
        return right and len(self.shape) == tensor.ndim and all(want in (None, got) for want, got in sizes)

    def __str__(self) -> str:
        numbers = str(self.dtype).removeprefix("torch.") if isinstance(self.dtype, torch.dtype) else "floats"
        return f"{'×'.join('n' if size is None else str(size) for size in self.shape)} of {numbers}"


def require_forms(tensors: Mapping[str, Tensor], forms: Mapping[str, TensorForm], whose: str) -> None:
    """Raise `RunError` if tensors are missing, or are not as they must be; others may be there."""
    for name, form in forms.items():
        tensor = tensors.get(name)
        if tensor is None:
            if not form.optional:
                raise RunError(f"{whose} is damaged: it lacks the tensor '{name}'")
        elif not form.fits(tensor):
            raise RunError(
                f"{whose} is damaged: the tensor '{name}' should be {form}, and is {described(tensor)}"
            )


def described(tensor: Tensor) -> str:
    """Return a tensor's shape and type in words: `3×4 of float32`."""
    return f"{'×'.join(map(str, tensor.shape)) or 'one number'} of {str(tensor.dtype).removeprefix('torch.')}"


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _parts(value: Any) -> Iterable[Any]:
    """Return the values in a list or an object."""
    return value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {json.dumps(twice[:60])} is there twice")
    return document


def short(error: Exception) -> str:
    """Return what an error says, in one line."""
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
