"""Freed memory is used again, unless the environment says otherwise."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import sys
import torch
from cswf_core.cli.allocator import keep_freed_memory

print(keep_freed_memory() if sys.argv[1] == "keep" else False)
for _ in range(20):
    torch.ones(12_000_000)  # 48 MB: glibc never keeps that of its own accord
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(12_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environment: str) -> tuple[str, int]:
    """Return whether memory is kept, and the page faults of a process that asks for 48 MB twenty times."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, count = done.stdout.split()
    return kept, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library here is not glibc")
def test_pages_are_asked_for_once():
    kept, few = faults("keep")
    given_back, many = faults("as usual")
    assert (kept, given_back) == ("True", "False")
    assert 2 * few < many  # 48 MB are 11,700 pages of 4 kB, fewer where pages are larger


def test_what_the_environment_says_stays():
    assert faults("keep", MALLOC_ARENA_MAX="2")[0] == "False"
    assert faults("keep", GLIBC_TUNABLES="glibc.malloc.perturb=0")[0] == "False"
