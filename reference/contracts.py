"""The contracts of plugins as pages: one for each kind, and one for what all plugins are handed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from cswf_core import errors
from cswf_core.plugins import KINDS
from reference import classes
from reference.markdown import anchor, code, heading, prose, required, section, table

INTERFACES = "cswf_core.interfaces"

BESIDE = {"cdf": ("cswf_core.kernels.rows:Rows",)}
"""Kind → modules, or single classes of them, that its contract needs besides its own module."""

SHARED = (
    f"{INTERFACES}.space",
    f"{INTERFACES}.draw:Draw",
    f"{INTERFACES}.draw:Key",
    f"{INTERFACES}.contract",
)
"""Modules, or single classes of them, that plugins of every kind meet."""

FUNCTIONS = {f"{INTERFACES}.contract": ("parameter",)}
"""Functions that plugins call, by their module."""


def contract_page(kind: str) -> str:
    """Return the contract of a kind: the class that plugins derive from, then those it returns or is handed."""
    contract = KINDS[kind][1]
    own = classes.public_classes(contract.__module__)
    others = [name for name in own if name != contract.__name__]
    return section(
        classes.describe_class(contract.__module__, contract.__name__),
        *(classes.describe_class(contract.__module__, name) for name in others),
        _names([contract.__module__]),
        *(_described(place) for place in BESIDE.get(kind, ())),
    )


def shared_page() -> str:
    """Return what plugins of every kind are handed or may use."""
    return section(*(_described(place) for place in SHARED), heading(2, "Errors", "errors"), errors_table())


def errors_table() -> str:
    """Return the errors that a person can mend, each with the status that the command line ends with."""
    kinds = [
        kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.CswfError)
    ]
    rows = [
        (code(kind.__name__), str(kind.exit_status), prose(required(kind.__doc__, kind.__name__)))
        for kind in kinds
    ]
    return table(["error", "exit status", "meaning"], rows)


def _described(place: str) -> str:
    """Return a module's classes, functions and names, or one class of it."""
    module, _, single = place.partition(":")
    if single:
        return classes.describe_class(module, single)
    return section(
        *(classes.describe_function(module, name) for name in FUNCTIONS.get(module, ())),
        *(classes.describe_class(module, name) for name in classes.public_classes(module)),
        _names([module]),
    )


def _names(modules: list[str]) -> str:
    parts = [text for module in modules if (text := classes.describe_names(module))]
    title = heading(2, "Names", f"names-{modules[0].rpartition('.')[2]}")
    return section(title, *parts) if parts else ""


def explained() -> Iterator[tuple[str, str]]:
    """Yield every class, function and name that a page explains, and where: `fitted` → a page's anchor."""
    for kind, (_, contract) in KINDS.items():
        for place in (contract.__module__, *BESIDE.get(kind, ())):
            yield from ((name, f"contracts/{kind}.md#{mark}") for name, mark in _marks(place))
    yield from ((name, "contracts/shared.md#errors") for name in classes.public_classes(errors.__name__))
    for place in SHARED:
        yield from ((name, f"contracts/shared.md#{mark}") for name, mark in _marks(place))


def _marks(place: str) -> Iterator[tuple[str, str]]:
    module, _, single = place.partition(":")
    names = [single] if single else [*classes.public_classes(module), *FUNCTIONS.get(module, ())]
    for name in names:
        yield name, anchor(name)
        if name not in FUNCTIONS.get(module, ()):
            yield from (
                (f"{name}.{method}", anchor(f"{name}.{method}"))
                for method in classes.public_methods(module, name)
            )
    if not single:
        mark = anchor(f"names-{module.rpartition('.')[2]}")
        yield from ((name, mark) for name in classes.public_names(module))
