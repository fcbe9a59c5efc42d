"""Settings of a process's memory: freed memory is reused.

Every step of a flow on a CPU allocates and frees the same few megabytes. By default glibc returns them to the
system each time, and the next step causes a page fault for every page it touches: up to 2,300 in a step of the
digits demo, which is 40 % of its time. The process runs one flow, so that nobody else misses the memory.
PyTorch for arm64 keeps tensors' memory by itself from 2.10 on; there, the setting is for everything else.
"""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The numbers of these settings in glibc's <malloc.h>."""

MOST_FREE = 2**28
"""Free bytes at the end of the heap above which glibc returns them to the system."""

LARGEST = 2**26
"""Size in bytes above which glibc maps an allocation on its own, and unmaps it when it is freed."""


def keep_freed_memory() -> bool:
    """Make glibc reuse freed memory; return whether that could be done.

    If the environment has settings of its own, MALLOC_* or GLIBC_TUNABLES, these stay and nothing is done.
    """
    decided = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if decided or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, MOST_FREE) and mallopt(MMAP_THRESHOLD, LARGEST))
