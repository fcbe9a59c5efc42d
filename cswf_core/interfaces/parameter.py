"""`parameter`: an attrs field that also says what it means and what it allows."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import attrs


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
