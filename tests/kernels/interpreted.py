"""Triton kernels without a GPU: import this first, and they run in Triton's interpreter."""

from __future__ import annotations

import inspect
import os
import sys
from functools import lru_cache

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

interpreter = pytest.importorskip(
    "triton.runtime.interpreter", reason="Triton is not installed: the kernels for GPUs are not tested"
)
_patch = interpreter._patch_lang_tensor


def _patch_with_indices(tensor, scope):
    """Scalars are arrays of one number there, which NumPy 2.4 and newer do not take for an index."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch_with_indices


@lru_cache
def _builtins(package) -> list[str]:
    """The names of Triton's own functions in a module or class."""
    return [name for name, member in inspect.getmembers(package) if interpreter.tl.core.is_builtin(member)]


def _patch_builtins(package, builder, scope):
    """Triton looks at every name there is, before every call: here at one, as all are patched together."""
    names = _builtins(package)
    if names and interpreter.tl.core.is_builtin(getattr(package, names[0])):  # else it is patched already
        for name in names:
            interpreter._patch_attr(package, name, getattr(package, name), builder, scope)


interpreter._patch_builtin = _patch_builtins
_numpy_type = interpreter._get_np_dtype
_numpy_type_once = lru_cache(_numpy_type)


def _numpy_type_of(dtype):
    """Triton makes a table of all types to look up one: here once for each, but for pointers, which are few."""
    return _numpy_type(dtype) if dtype.scalar.is_ptr() else _numpy_type_once(dtype.scalar)


interpreter._get_np_dtype = _numpy_type_of
_patch_all = interpreter._patch_lang


@lru_cache
def _languages(module: str) -> list:
    """The modules of Triton's language that a module of kernels names."""
    named = vars(sys.modules[module]).values()
    return [lang for lang in (interpreter.tl, interpreter.tl.core) if any(value is lang for value in named)]


def _patch_once(fn):
    """Triton patches itself for every function that a kernel calls: here for the first of each module."""
    for lang in _languages(fn.__module__):
        if interpreter.tl.core.is_builtin(getattr(lang, _builtins(lang)[0])):
            return _patch_all(fn)
    return interpreter._LangPatchScope()


interpreter._patch_lang = _patch_once
_begin_block_type = interpreter.tl.block_type.__init__
_begin_tensor = interpreter.tl.tensor.__init__


def _begin_block_type_once(self, element_ty, shape):
    """Triton works out the type of every block again: here once for each shape of each type of numbers."""
    known = element_ty.__dict__.setdefault("known_blocks", {})
    sizes = tuple(getattr(size, "value", size) for size in shape)
    if sizes not in known:
        _begin_block_type(self, element_ty, shape)
        known[sizes] = self.__dict__
    self.__dict__ = known[sizes]


def _begin_tensor_once(self, handle, type):
    """A tensor's shape is that of another of its type."""
    if "like" not in type.__dict__:
        _begin_tensor(self, None, type)
        type.like = dict(self.__dict__)
    self.__dict__.update(type.like)
    self.handle = handle


def _equal(self, other):
    """Triton brings the other tuple into the same form, and works out its type, before it compares both."""
    return interpreter.tl.constexpr(self.values == list(other))


interpreter.tl.tuple.__eq__ = _equal
interpreter.tl.block_type.__init__ = _begin_block_type_once
interpreter.tl.tensor.__init__ = _begin_tensor_once
# Whether whole numbers overflow is worked out after every sum and product, and told only where `debug` is set.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
