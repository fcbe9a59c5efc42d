"""Memory that a step frees is kept for the next one, where the C library can be told to.

The steps of a flow on a CPU ask for the same few megabytes again and again. By default glibc may hand them back
to the system each time, and every page that is asked for again is a fault: up to 2,300 in a step of the digits
demo, and 40 % of its time. In a process of our own there is nobody to keep them from.
"""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The names of these settings in glibc's <malloc.h>."""

KEPT = 2**28
"""Free bytes at the end of the heap from which on they are handed back."""

LARGEST = 2**26
"""Bytes from which on a piece of memory is mapped on its own, and handed back when it is freed."""


def keep_freed_memory() -> bool:
    """Let freed memory be used again; return whether that could be done.

    Settings in the environment, MALLOC_* and GLIBC_TUNABLES, stay as they are.
    """
    decided = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if decided or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
