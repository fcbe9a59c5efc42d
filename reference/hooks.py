"""The hooks as a page: those that offer plugins, those that watch a flow, and what they are handed."""

from __future__ import annotations

import inspect

from cswf_core import hookspecs
from reference import classes
from reference.markdown import code, heading, prose, required, section, table

MODULE = hookspecs.__name__
HANDED = ("Register", "Flow", "State")
"""Protocols that say what hooks can rely on."""


def hooks_page() -> str:
    """Return every hook with its arguments and docstring."""
    return section(
        heading(2, "Hooks that offer plugins", "registration"),
        prose(required(hookspecs.Registration.__doc__, "Registration")),
        _listed(hookspecs.Registration),
        heading(2, "Hooks that watch a flow", "watching"),
        prose(required(hookspecs.Watching.__doc__, "Watching")),
        _listed(hookspecs.Watching),
        heading(2, "What hooks are handed", "handed"),
        *(classes.describe_class(MODULE, name, level=3) for name in HANDED),
    )


def names(spec: type) -> list[str]:
    """Return the hooks that a class of specifications has."""
    return [name for name in vars(spec) if not name.startswith("_")]


def _listed(spec: type) -> str:
    rows = []
    for name in names(spec):
        hook = getattr(spec, name)
        arguments = list(inspect.signature(hook).parameters)[1:]
        rows.append((code(name), ", ".join(map(code, arguments)), prose(required(hook.__doc__, name))))
    return table(["hook", "arguments", "when, and what for"], rows)
