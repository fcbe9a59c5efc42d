"""The memory of a device: how much there is, and whether an error means a lack of it."""

from __future__ import annotations

import os

import torch

SIGNS = ("can't allocate memory", "cuda error: out of memory", "status_alloc_failed", "cannot allocate memory")
"""What errors say that mean a lack of memory but have no class of their own."""


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory that a device has; what is free just now would change from run to run."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that an allocation did not fit (PyTorch's CPU one has no class of its own)."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)
