"""cswf: nonparametric image generation with Conditional Sliced-Wasserstein Flows.

Importing this package is quick; PyTorch is loaded when a name below is first used.
"""

from __future__ import annotations

# `typing` takes longer to import than all else that `cswf` does before it handles signals.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cswf_core.errors import CswfError
    from cswf_core.flow.flow import Flow
    from cswf_core.flow.settings import Parts, Settings
    from cswf_core.hookspecs import hookimpl
    from cswf_core.interfaces import Dataset
    from cswf_core.model import load_model
    from cswf_core.recipe import build_flow, load_recipe

_HOMES = {
    "CswfError": "cswf_core.errors",
    "Dataset": "cswf_core.interfaces",
    "Flow": "cswf_core.flow.flow",
    "Parts": "cswf_core.flow.settings",
    "Settings": "cswf_core.flow.settings",
    "build_flow": "cswf_core.recipe",
    "hookimpl": "cswf_core.hookspecs",
    "load_model": "cswf_core.model",
    "load_recipe": "cswf_core.recipe",
}

__all__ = [
    "CswfError",
    "Dataset",
    "Flow",
    "Parts",
    "Settings",
    "build_flow",
    "hookimpl",
    "load_model",
    "load_recipe",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cswf_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
