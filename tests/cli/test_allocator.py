"""Freed memory is used again, unless the environment says otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from cswf_core.cli.allocator import keep_freed_memory

FAULTS = """
import ctypes, resource, sys
from cswf_core.cli.allocator import keep_freed_memory

SIZE = 48_000_000  # bytes: glibc never keeps that of its own accord
malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
free = ctypes.CDLL(None).free
free.argtypes = [ctypes.c_void_p]

def block():
    memory = malloc(SIZE)
    ctypes.memset(memory, 1, SIZE)
    free(memory)

def faults(allocate):
    for _ in range(20):
        allocate()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        allocate()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep = sys.argv[1] == "keep"
print(keep_freed_memory() if keep else False, faults(block))
if keep:
    import torch
    print(faults(lambda: torch.ones(SIZE // 4)))
"""


def faults(how: str, **environment: str) -> list[str]:
    """Return whether memory is kept, then the page faults of 20 blocks of 48 MB, and of tensors if it is."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library here is not glibc")
def test_pages_are_asked_for_once():
    """By the C library's own blocks: on arm64, PyTorch keeps the memory of tensors by itself from 2.10 on."""
    kept, *few = faults("keep")
    given_back, many = faults("as usual")
    assert (kept, given_back) == ("True", "False")
    assert len(few) == 2
    assert 2 * max(map(int, few)) < int(many)  # 48 MB are 11,700 pages of 4 kB, fewer where pages are larger


def test_what_the_environment_says_stays(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "2")
            assert keep_freed_memory() is False
