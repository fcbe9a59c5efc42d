"""What all contracts share: flags, which a plugin class may write with or without a type."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import attrs

_FIELD = type(attrs.field())


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
            for name in _flags(contract) & own.keys() & vars(cls).keys():
                if not isinstance(vars(cls)[name], _FIELD):
                    own[name] = ClassVar[Any]


def _flags(contract: type) -> set[str]:
    types = vars(contract).get("__annotations__", {})
    return {name for name in types if name in vars(contract) and types[name].startswith(("bool", "ClassVar"))}
