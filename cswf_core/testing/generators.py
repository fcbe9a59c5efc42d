"""The global random generators of Python, NumPy and PyTorch, which plugins must leave alone."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

from cswf_core.testing.outcome import FaultError

T = TypeVar("T")


def _states() -> dict[str, bytes]:
    """Return the state of every global generator, by the name of its module."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy.random": pickle.dumps(np.random.get_state()),
        "torch": torch.random.get_rng_state().numpy().tobytes(),
    }


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed them all, and put them back as they were in the end."""
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])


def require_untouched(work: Callable[[], T]) -> T:
    """Return the answer of work; raise `FaultError` if it draws from a global generator, or seeds it."""
    with _seeded(1):
        before = _states()
        answer = work()
        touched = [name for name, state in _states().items() if state != before[name]]
    if touched:
        raise FaultError(
            "all randomness to come from `draw`, so that runs can be repeated",
            f"a draw from the global generator of {' and '.join(touched)}",
        )
    return answer


def under_two_seeds(work: Callable[[], T]) -> tuple[T, T]:
    """Return the answers of work under two different seeds of the global generators."""
    answers = []
    for seed in (1, 2):
        with _seeded(seed):
            answers.append(work())
    return answers[0], answers[1]
