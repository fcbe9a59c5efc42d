"""Outcomes of checks: passed, failed with what was expected and what came, or skipped with the reason."""

from __future__ import annotations

import inspect
import logging
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

import attrs
import numpy as np
import torch
from torch import Tensor

from cswf_core.checks import Adapter, checked
from cswf_core.errors import CswfError, DataError, PluginError, did_you_mean
from cswf_core.interfaces import Owner

T = TypeVar("T")
A = TypeVar("A")


class FailedChecksError(AssertionError):
    """Checks of a plugin that have failed, all of them, each with what was expected and what came."""


class FaultError(Exception):
    """A claim that does not hold."""

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"expected {expected}, got {got}")


class SkipError(Exception):
    """A claim that cannot be looked at here, for a reason in one sentence."""


def require(holds: bool, expected: str, got: object) -> None:
    """Raise `FaultError` unless a claim holds."""
    if not holds:
        raise FaultError(expected, str(got))


@attrs.frozen
class Outcome:
    """How one check of a plugin has ended."""

    claim: str
    """The check's name in words: `directions have unit length`."""
    result: Literal["passed", "failed", "skipped"]
    sentence: str = ""
    """Why it failed or was skipped; where it passed, a remark that is worth reading, or nothing."""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.result}: {self.claim}" + (f": {self.sentence}" if self.sentence else "")


Check = Callable[[Any], str | None]
"""A claim about a subject, with a docstring that says what it proves; may return a remark."""

OnResult = Callable[[Outcome], object]
"""Hears of every outcome as soon as it is known."""


class Subject(Generic[A]):
    """A plugin that is being checked, and what its checks share; each kind has a subject of its own."""

    kind: ClassVar[str]
    in_flows: ClassVar[Sequence[Check]] = ()
    """Checks of parts of flows that the kind shares with others."""

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin

    @property
    def owner(self) -> Owner:
        """What errors call the plugin: its class and module, unless it came through the plugin door."""
        return self.plugin.owner if isinstance(self.plugin, Adapter) else Owner.of(self.kind, self.plugin)

    @cached_property
    def checked(self) -> A:
        """The plugin behind the checks of its contract, as the engine calls it."""
        adapter: A = checked(self.plugin, self.owner, self.kind)
        return adapter

    def answers(self) -> Sequence[Any]:
        """Return what follows from keys, data and parameters alone: all that the plugin draws or computes."""
        raise NotImplementedError


def claims_about(subject: type[Subject[Any]]) -> list[Check]:
    """Return the checks of a subject's module: the functions whose `subject` is of this class, as written."""
    module = sys.modules[subject.__module__]
    functions = (value for value in vars(module).values() if inspect.isfunction(value))
    return [
        function
        for function in functions
        if function.__module__ == module.__name__
        and not function.__name__.startswith("_")
        and function.__annotations__.get("subject") == subject.__name__
    ]


def run(
    checks: Sequence[Check], subject: Subject[Any], excused: Mapping[str, str], on_result: OnResult | None
) -> list[Outcome]:
    """Return the outcome of every check; those that are `excused`, by claim, are skipped for a reason.

    The first is whether the class can be a plugin at all; if it cannot, the others are skipped. The engine's
    advice about step sizes is not shown: the flows of a kit are too short to follow it.
    """
    reasons = {in_words(name): reason for name, reason in excused.items()}
    claims = [in_words(check.__name__) for check in checks]
    for name in reasons.keys() - set(claims):
        raise PluginError(f"there is no check '{name}'{did_you_mean(name, claims)}")
    outcomes: list[Outcome] = []
    log = logging.getLogger("cswf")
    level = log.level
    for claim, check in zip(claims, checks, strict=True):
        if claim in reasons:
            outcome = Outcome(claim, "skipped", f"excused: {reasons[claim]}")
        elif outcomes and outcomes[0].result == "failed":
            outcome = Outcome(claim, "skipped", f"not tried: {outcomes[0].sentence}")
        else:
            log.setLevel(logging.ERROR)
            try:
                outcome = _outcome(claim, check, subject)
            finally:
                log.setLevel(level)
        outcomes.append(outcome)
        if on_result is not None:
            on_result(outcome)
    return outcomes


def in_words(name: str) -> str:
    """Return a check's name in words."""
    return name.replace("_", " ").strip()


def _outcome(claim: str, check: Check, subject: Subject[Any]) -> Outcome:
    began = time.perf_counter()
    result: Literal["passed", "failed", "skipped"] = "failed"
    try:
        sentence = check(subject) or ""
        result = "passed"
    except SkipError as reason:
        sentence = str(reason)
        result = "skipped"
    except (FaultError, CswfError) as fault:
        sentence = str(fault)
    except (Exception, SystemExit) as error:  # whatever a plugin's code raises is its outcome, not ours
        sentence = f"{type(error).__name__}: {error}"
    words = " ".join(sentence.split()).removeprefix(f"{subject.owner}: ")
    return Outcome(claim, result, words, time.perf_counter() - began)


def require_laws(gaps: Mapping[str, float], most: float, apart: str) -> None:
    """Raise `FaultError` unless the two sides of each law are near each other; `apart` has `{}` for the gap."""
    for law, gap in gaps.items():
        require(gap <= most, law, apart.format(f"{gap:.3g}"))


def refusals(nouns: Mapping[T, str], attempt: Callable[[T], object]) -> str:
    """Return in words what a plugin does not take, as `attempt` raises a `DataError` for it."""
    refused = []
    for each, noun in nouns.items():
        try:
            attempt(each)
        except DataError as error:
            refused.append(f"it does not take {noun}: {error}")
        except PluginError as error:
            raise PluginError(f"{error}, for {noun}") from None
    return "; ".join(refused)


def one_sentence(error: DataError) -> None:
    """Raise `FaultError` unless an error is one sentence."""
    require("\n" not in "\n".join(map(str, error.args)), "one sentence", f"{str(error)!r}")


def takeable(
    offered: Iterable[T], attempt: Callable[[T], object], nothing: Callable[[str], Exception]
) -> Iterator[T]:
    """Yield what a plugin takes, as `attempt` raises no `DataError`; raise `nothing(why)` if it takes none."""
    refusal = ""
    taken = False
    for each in offered:
        try:
            attempt(each)
        except DataError as error:
            refusal = refusal or str(error)
        else:
            taken = True
            yield each
    if not taken:
        raise nothing(refusal)


GENERATORS: Mapping[str, tuple[Callable[[int], object], Callable[[], Any], Callable[[Any], None]]] = {
    "random": (random.seed, random.getstate, random.setstate),
    "numpy.random": (np.random.seed, np.random.get_state, np.random.set_state),
    "torch": (
        torch.default_generator.manual_seed,
        lambda: torch.get_rng_state().numpy(),
        lambda state: torch.set_rng_state(torch.from_numpy(state)),
    ),
}
"""Each module with a global generator: what seeds it, returns its state, and sets that."""


@contextmanager
def _untouched(seed: int) -> Iterator[None]:
    """Seed all global generators, and put them back in the end; raise `FaultError` if work draws from one."""
    before = {name: state() for name, (_, state, _) in GENERATORS.items()}
    seeded = {}
    for name, (seeding, state, _) in GENERATORS.items():
        seeding(seed)
        seeded[name] = pickle.dumps(state())
    try:
        yield
        touched = [name for name, (_, state, _) in GENERATORS.items() if pickle.dumps(state()) != seeded[name]]
    finally:
        for name, (_, _, restore) in GENERATORS.items():
            restore(before[name])
    require(
        not touched,
        "all randomness to come from `draw`, so that runs can be repeated",
        f"a draw from the global generator of {' and '.join(touched)}",
    )


def answers_follow_from_their_keys(subject: Subject[Any]) -> None:
    """Asked twice with the same keys, it answers the same to the bit: resumed runs and saved models ask again.

    It answers in float32 or float64 as it is asked, and leaves the generators of `random`, NumPy and PyTorch
    alone.
    """
    answers = []
    for seed in (1, 2):
        with _untouched(seed):
            answers.append(subject.answers())
    require(same(*answers), "the same answers when it is asked twice with the same keys", "others")


def same(first: Any, second: Any) -> bool:
    """Say whether two answers are the same to the bit: tensors, plain values, and lists of these."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.equal(first, second)
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)
