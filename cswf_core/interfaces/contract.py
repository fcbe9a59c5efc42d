"""What contracts share: flags and parameters of plugin classes, who owns a plugin, and the files it needs."""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs

from cswf_core.errors import excerpt
from cswf_core.files import bytes_of
from cswf_core.numbers import LARGEST, whole_number


class Contract(abc.ABC):  # noqa: B024  the contracts have abstract methods
    """A contract that plugins implement as attrs classes, whose fields are the parameters of recipes.

    A contract's own flags, its booleans and class variables, say what a class can do. Written in a plugin as in
    the contract, `tempered: bool = True`, a flag would be a field to attrs, and so a parameter of recipes. It
    stays a flag here. Made with `parameter(...)` it is a parameter.
    """

    references: ClassVar[tuple[str, ...]] = ()
    """BibTeX entries of works to cite where this plugin is used; a property if parameters decide which."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Mark flags that have a type as class variables, before attrs looks at the class."""
        super().__init_subclass__(**options)
        if "__attrs_attrs__" in vars(cls):
            return  # attrs makes a class anew to give it slots
        own = vars(cls).get("__annotations__", {})
        for contract in (base for base in cls.__mro__[1:] if Contract in (base, *base.__bases__)):
            for name, type_ in vars(contract).get("__annotations__", {}).items():
                is_flag = name in vars(contract) and type_.startswith(("bool", "ClassVar"))
                has_own = name in own and name in vars(cls)
                if is_flag and has_own and not isinstance(vars(cls)[name], type(attrs.field())):
                    own[name] = ClassVar[Any]


class Written(abc.ABC):
    """A type of parameter that recipes write as a text of its own form, as `(8×8) [8, 7, 5, 3]`.

    `str(value)` must give a text that reads back as the same value.
    """

    form: ClassVar[str]
    """The form in words, for errors: "an entry such as '(8×8) [8, 7, 5, 3]'"."""

    @classmethod
    @abc.abstractmethod
    def from_text(cls, text: str) -> Any:
        """Return the value; raise `ValueError` with a sentence that says what is wrong."""


def parameter(
    help: str,
    *,
    default: Any = attrs.NOTHING,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    validator: Callable[[Any, Any, Any], None] | None = None,
) -> Any:
    """Declare a plugin's parameter; `help` and the bounds show up in errors, `cswf plugins` and the schema.

    A plain attrs field works as well; this one is documented. Bounds hold for numbers and are skipped
    for values of another type, so that `float | Literal["auto"]` can have them.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most}
    limits = {name: bound for name, bound in bounds.items() if bound is not None}

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            wrong = (
                (at_least is not None and not value >= at_least)
                or (above is not None and not value > above)
                or (at_most is not None and not value <= at_most)
            )
            if wrong:
                words = " and ".join(f"{name.replace('_', ' ')} {bound:,}" for name, bound in limits.items())
                raise ValueError(f"{attribute.name} must be {words}, got {value!r}")
        if validator is not None:
            validator(instance, attribute, value)

    return attrs.field(default=default, validator=check, metadata={"help": help, **limits})


@attrs.frozen
class Size(Written):
    """A number of bytes, above 0."""

    bytes: int
    """How many."""
    text: str = attrs.field(default="", eq=False, repr=False)
    """As it was written."""

    form: ClassVar[str] = "a size such as 500MB, 1.5GB or 2GiB"

    @classmethod
    def from_text(cls, text: str) -> Size:
        """Return the size that `500MB`, `1.5GB`, `2GiB` or `4096` means."""
        size = bytes_of(text)
        if not size:
            raise ValueError(f"'{text}' is not {cls.form}")
        return cls(size, text.strip())

    def __str__(self) -> str:
        return self.text or str(self.bytes)


@attrs.frozen
class Interval(Written):
    """An interval of steps or of seconds; with neither, never."""

    steps: int | None = None
    seconds: float | None = None
    text: str = attrs.field(default="never", eq=False, repr=False)
    """As it was written."""

    form: ClassVar[str] = "a number of steps such as 500, a time such as 30s, 10min or 2h, or never"

    @classmethod
    def from_text(cls, text: str) -> Interval:
        """Return the interval that `500`, `30s`, `10min`, `1.5h` or `never` means."""
        if text.strip() == "never":
            return cls()
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h)?", text.strip())
        if match is None or not float(match[1]) or not (match[2] or match[1].isdigit()):
            raise ValueError(f"'{excerpt(text)}' is not {cls.form}")
        number, unit = match.groups()
        steps = whole_number(number) if unit is None else None
        seconds = None if unit is None else float(number) * {"s": 1, "min": 60, "h": 3600}[unit]
        if (steps or seconds or math.inf) > LARGEST:
            raise ValueError(f"'{excerpt(text)}' is too large: 64 bits hold {LARGEST:,} at most")
        return cls(steps=steps, seconds=seconds, text=number + (unit or ""))

    def __str__(self) -> str:
        return self.text


@attrs.frozen
class Owner:
    """A plugin's name, and the distribution that brought it."""

    kind: str
    """`projection`, `cdf` and so on."""
    name: str
    """The name under which recipes ask for it."""
    distribution: str
    """The package that offers it, or the file of a one-file plugin."""
    version: str
    """The package's version; empty for a file."""
    sha256: str = ""
    """Of the code it comes from; "" where nobody has asked for it, or the code has no file."""

    @classmethod
    def of(cls, kind: str, plugin: object) -> Owner:
        """Name an object that did not come through the plugin door by its class and module."""
        return cls(kind, type(plugin).__name__, type(plugin).__module__, "")

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}' ({f'{self.distribution} {self.version}'.strip()})"


@attrs.frozen(kw_only=True)
class NeededFiles:
    """Published files that a plugin reads: whether they are there, and what to do if not."""

    name: str
    """What they are, in a word or two: 'cifar10', 'feature network'."""
    folder: Path
    """Where they belong, and where a download would put them."""
    path: Path | None = None
    """Where they are; None: they are missing."""
    verified: bool = False
    """Whether they were compared with a checksum, and not only seen."""
    fault: str = ""
    """Why files that are there cannot be used, if that is so."""
    advice: str = ""
    """What to do where they are missing or cannot be used, in one sentence."""
