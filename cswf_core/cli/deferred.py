"""PyTorch deferred: commands that only read recipes and plugins do not wait seconds for its import.

`torch` is a module in name only then. What annotations and type aliases need of it are stand-ins for its types;
whatever else is used imports PyTorch, and every module that has a stand-in gets what it stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, new_class
from typing import Any

from cswf_core.cli.signals import imported


def defer() -> None:
    """Defer the import of PyTorch from now on, unless it has been imported already."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = TORCH
        sys.meta_path.insert(0, SUBMODULES)


def load() -> ModuleType:
    """Import PyTorch if its import was deferred, and give it to all modules that have stand-ins."""
    if not is_deferred():
        return import_module("torch")
    del sys.modules["torch"]
    sys.meta_path.remove(SUBMODULES)
    torch = imported("torch")
    for module in set(sys.modules.values()) - {sys.modules[__name__]}:
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if value is TORCH:
                names[name] = torch
            elif type(value) is StandIn:
                names[name] = getattr(torch, value.__name__)
    return torch


def is_deferred() -> bool:
    """Say whether PyTorch is deferred and has not been imported yet."""
    return sys.modules.get("torch") is TORCH


class StandIn(type):
    """The class of stand-ins for types of PyTorch: without it, nothing is an instance of them."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: Mapping[str, Any], **options: Any) -> Any:
        """Return a stand-in; a class that is derived from one is derived from what it stands for."""
        if not bases:
            return super().__new__(cls, name, bases, dict(body))
        meant = tuple(base.meant if type(base) is StandIn else base for base in bases)
        return new_class(name, meant, options, lambda own: own.update(body))

    @property
    def meant(cls) -> Any:
        """What it stands for."""
        return getattr(load(), cls.__name__)

    def __instancecheck__(cls, instance: object) -> bool:
        return not is_deferred() and isinstance(instance, cls.meant)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or (not is_deferred() and issubclass(other, cls.meant))

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Return an object of the type that is meant."""
        return cls.meant(*arguments, **options)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # what `typing` asks of all that stands in an annotation
            raise AttributeError(name)
        return getattr(cls.meant, name)


class DeferredTorch(ModuleType):
    """The module `torch`, before it is imported."""

    types: Mapping[str, type] = {name: StandIn(name, (), {}) for name in ("Tensor", "device", "dtype")}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        if is_deferred() and name in self.types:
            return self.types[name]
        return getattr(load(), name)


class Submodules(MetaPathFinder, Loader):
    """Finds `torch.nn` and all others below `torch`: whoever imports one imports PyTorch."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return a module of PyTorch, imported."""
        del path, target
        if not fullname.startswith("torch."):
            return None
        load()
        return ModuleSpec(fullname, self, loader_state=import_module(fullname))

    def exec_module(self, module: ModuleType) -> None:
        """Put the imported module in the place of the empty one that Python has made."""
        assert module.__spec__ is not None
        sys.modules[module.__name__] = module.__spec__.loader_state


TORCH = DeferredTorch("torch")
TORCH.__path__ = []  # so that imports of its submodules reach `Submodules`
SUBMODULES = Submodules()
