"""The memory of a device: how much there is, and whether an error means a lack of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.numbers import bytes_in_words

_limit: ContextVar[int | None] = ContextVar("memory limit", default=None)
"""Bytes that may be planned with; None if all memory may."""


def total_memory(device: torch.device) -> int:
    """Return the bytes of a device's memory that may be planned with: all, or the limit if that is less.

    The memory that is free just now would differ from run to run.
    """
    limit = _limit.get()
    return _installed(device) if limit is None else min(_installed(device), limit)


def _installed(device: torch.device) -> int:
    """Return the bytes of memory that a device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(size: int, wanted: str, remedy: str) -> None:
    """Raise `OutOfMemoryError` if this machine has less memory than is about to be allocated.

    An allocation that is far too large may fail in many ways, or succeed, and the process is killed when it is
    filled.

    Args:
        size: The bytes to be allocated.
        wanted: What they are for, in the plural.
        remedy: What the user can do.
    """
    installed = _installed(torch.device("cpu"))
    if size > installed:
        raise OutOfMemoryError(
            f"{wanted} need {bytes_in_words(size)}, and this machine has {bytes_in_words(installed)}; {remedy}"
        )


def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program on a device may have; 0 if that is not known."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return int(getattr(properties, "shared_memory_per_block_optin", 0))


def memory_limit() -> int | None:
    """Return the bytes of memory that may be planned with; None if all that a device has may."""
    return _limit.get()


@contextmanager
def memory_limited(limit: int | None) -> Iterator[None]:
    """Limit the memory to plan with to some bytes; None, or a limit within another one, changes nothing."""
    before = _limit.set(limit if _limit.get() is None else _limit.get())
    try:
        yield
    finally:
        _limit.reset(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that an allocation did not fit (PyTorch's CPU one has no class of its own)."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not isinstance(error, (RuntimeError, ValueError)):
        return False
    # Of PyTorch and NumPy, about sizes that no memory can have.
    signs = [
        "storage size calculation overflowed",
        "maximum allowed dimension exceeded",
        "array is too big",
        "maximum supported dimension",
        "numel: integer multiplication overflow",
        "maximum size exceeded",
    ]
    if isinstance(error, RuntimeError):
        signs += [
            "can't allocate memory",
            "cannot allocate memory",
            "not enough memory",
            "cuda error: out of memory",
            "status_alloc_failed",
            "can't start new thread",
        ]
    return any(sign in str(error).lower() for sign in signs)


@contextmanager
def out_of_memory_explained(sentence: str) -> Iterator[None]:
    """Raise `OutOfMemoryError` with a sentence if memory runs out inside."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(sentence) from error
