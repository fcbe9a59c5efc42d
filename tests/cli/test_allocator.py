"""Freed memory is used again, unless the environment says otherwise."""

from __future__ import annotations

import os
import platform

import pytest

from cswf_core.cli.terminal import keep_freed_memory
from tests.processes import PYTHON, completed

FAULTS = """
import ctypes
import resource
import sys
from cswf_core.cli.terminal import keep_freed_memory

library = ctypes.CDLL(None)  # PyTorch for arm64 has an allocator of its own, which keeps memory anyway
library.malloc.restype = library.memset.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def fill(size=48_000_000):  # glibc never keeps that of its own accord
    piece = library.malloc(size)
    library.memset(piece, 1, size)
    library.free(piece)

print(keep_freed_memory() if sys.argv[1] == "keep" else False)
for _ in range(5):
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> tuple[str, int]:
    """Return whether memory is kept, and the page faults of a process that asks for 48 MB five times."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    done = completed(PYTHON, "-c", FAULTS, how, env={**clean, **environment})
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library here is not glibc")
def test_pages_are_asked_for_once():
    """By the C library's own blocks: on arm64, PyTorch keeps the memory of tensors by itself from 2.10 on."""
    kept, few = faults("keep")
    given_back, many = faults("as usual")
    assert (kept, given_back) == ("True", "False")
    assert 2 * few < many  # 48 MB are 11,700 pages of 4 kB, fewer where pages are larger


def test_what_the_environment_says_stays(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    for name in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "2")
            assert keep_freed_memory() is False
