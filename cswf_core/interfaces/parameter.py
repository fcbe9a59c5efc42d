"""`parameter`: an attrs field that also says what it means and what it allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


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
    given = {name: bound for name, bound in bounds.items() if bound is not None}

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            wrong = (
                (at_least is not None and not value >= at_least)
                or (above is not None and not value > above)
                or (at_most is not None and not value <= at_most)
            )
            if wrong:
                words = " and ".join(f"{name.replace('_', ' ')} {bound:,}" for name, bound in given.items())
                raise ValueError(f"{attribute.name} must be {words}, got {value!r}")
        if validator is not None:
            validator(instance, attribute, value)

    return attrs.field(default=default, validator=check, metadata={"help": help, **given})
