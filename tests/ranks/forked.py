"""Several ranks as children of the test's process: quick to start, and gone when the test ends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from cswf_core.ranks import Dismissed, Ranks

Work = Callable[[Ranks], Any]


def on_ranks(size: int, folder: Path, work: Work, *, seconds: float = 120.0) -> list[Any]:
    """What `work(ranks)` returns on each of `size` ranks, joined by Gloo; any failure fails the test."""
    folder.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_child, args=(rank, size, folder, work)) for rank in range(size)]
    try:
        for child in children:
            child.start()
        deadline = time.monotonic() + seconds
        for child in children:
            child.join(max(0.1, deadline - time.monotonic()))
        answers = [pickle.loads((folder / f"{rank}.answer").read_bytes()) for rank in range(size)]
    finally:
        for child in children:
            child.kill()
            child.join()
    for failed, answer in answers:
        assert not failed, answer
    return [answer for _, answer in answers]


def _child(rank: int, size: int, folder: Path, work: Work) -> None:
    """Join the others, work, leave the answer in a file, and end without what the test's process would tidy."""
    try:
        store = dist.FileStore(str(folder / "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        answer = False, _led(Ranks(rank, size), work)
    except BaseException:
        answer = True, traceback.format_exc()
    (folder / f"{rank}.answer").write_bytes(pickle.dumps(answer))
    os._exit(0)


def _led(ranks: Ranks, work: Work) -> Any:
    """Work, and afterwards carry out the commands of rank 0 until that is done too."""
    try:
        answer = work(ranks)
        if ranks.leads:
            ranks.end_commands()
        else:
            ranks.receive_commands()
        return answer
    except Dismissed:
        return None
