"""PyTorch and NumPy deferred: commands that only read recipes and plugins do not wait for their import.

`torch` and `numpy` are modules in name only then. What annotations and type aliases need of them are stand-ins
for their types; whatever else is used imports the library, and every module that has a stand-in gets what it
stands for.
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

TYPES: Mapping[str, tuple[str, ...]] = {
    "numpy": ("dtype", "float64", "floating", "generic", "int64", "ndarray", "uint8"),
    "numpy.typing": ("NDArray",),
    "torch": ("Tensor", "device", "dtype"),
}
"""Module → its types that annotations and type aliases use."""

NEEDED = {"torch": ("numpy", "torch"), "numpy": ("numpy",)}
"""Library → those that are imported with it, in this order."""


def defer() -> None:
    """Defer the imports of PyTorch and NumPy from now on, unless they have been imported already."""
    for name, module in MODULES.items():
        if _library(name) not in sys.modules or is_deferred(_library(name)):
            sys.modules[name] = module
    if SUBMODULES not in sys.meta_path:
        sys.meta_path.insert(0, SUBMODULES)


def load(library: str = "torch") -> ModuleType:
    """Import a library whose import was deferred, and give it to all modules that have stand-ins."""
    for name in NEEDED[library]:
        if is_deferred(name):
            _load(name)
    return sys.modules.get(library) or import_module(library)


def is_deferred(library: str = "torch") -> bool:
    """Say whether a library is deferred and has not been imported yet."""
    return sys.modules.get(library) is MODULES[library]


def _load(library: str) -> None:
    """Import a library, and put it in the place of all its stand-ins."""
    own = {name: module for name, module in MODULES.items() if _library(name) == library}
    for name in own:
        del sys.modules[name]
    imported(library)
    real = {id(module): import_module(name) for name, module in own.items()}
    for module in set(sys.modules.values()) - {sys.modules[__name__]}:
        names = getattr(module, "__dict__", {})
        for name, value in list(names.items()):
            if id(value) in real:
                names[name] = real[id(value)]
            elif type(value) is StandIn and _library(value.module) == library:
                names[name] = value.meant


def _library(module: str) -> str:
    return module.partition(".")[0]


class StandIn(type):
    """The class of stand-ins for types of a library: without it, nothing is an instance of them."""

    module: str

    def __new__(cls, name: str, bases: tuple[type, ...], body: Mapping[str, Any], **options: Any) -> Any:
        """Return a stand-in; a class that is derived from one is derived from what it stands for."""
        if not bases:
            return super().__new__(cls, name, bases, dict(body))
        meant = tuple(base.meant if type(base) is StandIn else base for base in bases)
        return new_class(name, meant, options, lambda own: own.update(body))

    @property
    def meant(cls) -> Any:
        """What it stands for."""
        load(_library(cls.module))
        return getattr(import_module(cls.module), cls.__name__)

    def __instancecheck__(cls, instance: object) -> bool:
        return not is_deferred(_library(cls.module)) and isinstance(instance, cls.meant)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or (not is_deferred(_library(cls.module)) and issubclass(other, cls.meant))

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Return an object of the type that is meant."""
        return cls.meant(*arguments, **options)

    def __getitem__(cls, _: object) -> Any:
        """Return itself: what an array holds is for readers."""
        return cls

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # what `typing` asks of all that stands in an annotation
            raise AttributeError(name)
        return getattr(cls.meant, name)


class DeferredModule(ModuleType):
    """A module of a library, before it is imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # so that imports of its submodules reach `Submodules`
        self.types = {each: StandIn(each, (), {"module": name}) for each in TYPES[name]}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        library = _library(self.__name__)
        if is_deferred(library) and name in self.types:
            return self.types[name]
        load(library)
        return getattr(sys.modules[self.__name__], name)


class Submodules(MetaPathFinder, Loader):
    """Finds `torch.nn` and all others below a library: whoever imports one imports the library."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return a module of a deferred library, imported."""
        del path, target
        library = _library(fullname)
        if library == fullname or library not in NEEDED or not is_deferred(library):
            return None
        load(library)
        return ModuleSpec(fullname, self, loader_state=import_module(fullname))

    def exec_module(self, module: ModuleType) -> None:
        """Put the imported module in the place of the empty one that Python has made."""
        assert module.__spec__ is not None
        sys.modules[module.__name__] = module.__spec__.loader_state


MODULES: Mapping[str, ModuleType] = {name: DeferredModule(name) for name in TYPES}
SUBMODULES = Submodules()
