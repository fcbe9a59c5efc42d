"""The memory of a device: how much there is, and whether an error means a lack of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

SIGNS = ("can't allocate memory", "cuda error: out of memory", "status_alloc_failed", "cannot allocate memory")
"""What errors say that mean a lack of memory but have no class of their own."""


_limit: ContextVar[int | None] = ContextVar("memory limit", default=None)
"""Bytes that are planned with, at most; None: all that there are."""


def total_memory(device: torch.device) -> int:
    """Return the bytes of a device's memory that may be planned with: what it has, or less if that is limited.

    What is free just now would change from run to run.
    """
    if device.type == "cuda":
        there = int(torch.cuda.get_device_properties(device).total_memory)
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _limit.get()
    return there if limit is None else min(there, limit)


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
    return isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)
