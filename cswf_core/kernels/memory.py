"""The memory of a device: how much there is, and whether an error means a lack of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from cswf_core.errors import OutOfMemoryError
from cswf_core.numbers import bytes_in_words

HOST = torch.device("cpu")

SIGNS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "cuda error: out of memory",
    "status_alloc_failed",
    "can't start new thread",
)
"""What errors say that mean a lack of memory but have no class of their own."""

OVERFLOWS = (
    "storage size calculation overflowed",
    "maximum allowed dimension exceeded",
    "array is too big",
    "maximum supported dimension",
    "numel: integer multiplication overflow",
    "maximum size exceeded",
)
"""What PyTorch and NumPy say of sizes that no memory can have."""


_limit: ContextVar[int | None] = ContextVar("memory limit", default=None)
"""Bytes that are planned with, at most; None: all that there are."""


def total_memory(device: torch.device) -> int:
    """Return the bytes of a device's memory that may be planned with: what it has, or less if that is limited.

    What is free just now would change from run to run.
    """
    limit = _limit.get()
    return _there(device) if limit is None else min(_there(device), limit)


def _there(device: torch.device) -> int:
    """Return the bytes of memory that a device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(size: int, wanted: str, remedy: str, device: torch.device = HOST) -> None:
    """Raise `OutOfMemoryError` if a device, or this machine, has fewer bytes than are wanted.

    It is asked before they are allocated: an allocation that is far too large may fail in many ways, or succeed
    and have the process killed when it is filled.
    """
    there = _there(device)
    if size > there:
        whose = "this machine" if device.type == "cpu" else str(device)
        raise OutOfMemoryError(
            f"{wanted} need {bytes_in_words(size)}, and {whose} has {bytes_in_words(there)}; {remedy}"
        )


def shared_memory(device: torch.device) -> int:
    """Return the bytes of fast memory that a program on a device may have; 0 if that is not known."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return int(getattr(properties, "shared_memory_per_block_optin", 0))


def memory_limit() -> int | None:
    """Return the bytes of memory that are planned with, at most; None: all that a device has."""
    return _limit.get()


@contextmanager
def memory_limited(limit: int | None) -> Iterator[None]:
    """Plan with so many bytes of memory inside, at most; None, or if there is a limit already: as outside."""
    before = _limit.set(limit if _limit.get() is None else _limit.get())
    try:
        yield
    finally:
        _limit.reset(before)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that an allocation did not fit (PyTorch's CPU one has no class of its own)."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    if isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS):
        return True
    return isinstance(error, (RuntimeError, ValueError)) and any(sign in text for sign in OVERFLOWS)
